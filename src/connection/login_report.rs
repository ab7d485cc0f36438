//! What operators are told of log-ins: a line of the log for each refusal, a count, and the audit log.
//!
//! Invariant: no password and no token is in it, and nothing of it reaches the client.

use super::broker::Broker;
use crate::auth::{Client, Denial, Principal};
use crate::telemetry::audit::{self, Event, Kind, Outcome};

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
    let (address, listener) = (client.address.map(tracing::field::display), client.listener);
    let (client_id, user_name) = (client.client_id, client.user_name);
    let reason = &*denial.detail;
    tracing::info!(
        client_id,
        user_name,
        address,
        listener,
        reason,
        "not authenticated"
    );
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
