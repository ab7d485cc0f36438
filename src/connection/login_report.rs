//! What operators are told of log-ins: a line of the log for each refusal, a count, and the audit log.
//!
//! Invariant: no password and no token is in it, and nothing of it reaches the client.
//! Invariant: strangers do not fill the log: what they say of themselves is cut, and lines have a rate
//! ([`super::refusal_lines`]).

use std::time::Instant;

use super::broker::Broker;
use crate::auth::{Client, Denial, Principal};
use crate::telemetry::audit::{self, Event, Kind, Outcome};

/// Bytes of a client id or user name in a line.
const LONGEST_TEXT_BYTES: usize = 256;

/// As much of a text as a line has of it.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_TEXT_BYTES)]
}

/// A client has proved who it is, or nothing was asked.
pub(super) fn accepted(kind: Kind, client: &Client<'_>, principal: &Principal) {
    audit::record(&Event {
        principal: Some(&*principal.name).filter(|name| !name.is_empty()),
        method: Some(principal.method.as_str()),
        ..event(kind, Outcome::Accepted, client)
    });
}

/// A client has not proved who it is.
pub(super) fn denied(kind: Kind, broker: &Broker, client: &Client<'_>, denial: &Denial) {
    broker.metrics.logins_refused.increment();
    let reason = &*denial.detail;
    if let Some(left_out) = broker.refusal_lines.admit(Instant::now()) {
        let (address, listener) = (client.address.map(tracing::field::display), client.listener);
        let (client_id, user_name) = (cut(client.client_id), client.user_name.map(cut));
        let left_out = (left_out > 0).then_some(left_out);
        tracing::info!(
            client_id,
            user_name,
            address,
            listener,
            reason = cut(reason),
            left_out,
            "not authenticated"
        );
    }
    audit::record(&Event {
        principal: client.user_name,
        reason: Some(reason),
        ..event(kind, Outcome::Refused, client)
    });
}

fn event<'a>(kind: Kind, outcome: Outcome, client: &Client<'a>) -> Event<'a> {
    Event {
        address: client.address,
        listener: Some(client.listener),
        client_id: Some(client.client_id),
        ..Event::new(kind, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_say_of_themselves_is_cut() {
        assert_eq!(cut(&"ü".repeat(60_000)).len(), LONGEST_TEXT_BYTES);
        assert_eq!(cut("anna"), "anna");
    }
}
