//! Tries an endpoint because an operator asks for it. The node that is asked sends the request, leader or not: so it
//! also shows whether this node reaches the endpoint, and has the secrets.

use uuid::Uuid;

use super::endpoint::{Endpoint, EndpointError, Reply};
use super::files::Files;
use super::question::Question;
use crate::base::proto::state::{EventSettings, EventSubscriptionOptions};
use crate::base::time::Millis;
use crate::events::answer::Consequence;
use crate::events::modes::{Form, trial};

/// Longest time for a trial, seconds, whatever the options say: an operator waits for it, and the administration gives
/// its answers in thirty seconds.
const LONGEST_TRIAL_S: u32 = 20;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The question whether the endpoint wants events.
    Validation,
    /// An event that says that it is a test.
    Event,
}

/// What came of it.
pub(crate) struct Tried {
    /// Whether the endpoint has said that it wants events, or has taken the test.
    pub(crate) is_accepted: bool,
    /// Whether it has said that it does not want events. Who has said nothing may not have been reached from here, and
    /// a gateway does not say it in its place.
    pub(crate) is_refused: bool,
    /// The rate that it asks for.
    pub(crate) rate_per_min: Option<u32>,
    /// How the request has ended.
    pub(crate) answer: String,
}

/// Tries the endpoint of an event subscription; `now`: wall time.
pub(crate) async fn try_out(
    name: &str,
    options: &EventSubscriptionOptions,
    settings: &EventSettings,
    files: &Files,
    kind: Kind,
    now: Millis,
) -> Tried {
    let asked = EventSubscriptionOptions {
        timeout_s: options.timeout_s.min(LONGEST_TRIAL_S),
        ..options.clone()
    };
    let known = files.clone();
    let made = tokio::task::spawn_blocking(move || Endpoint::new(&asked, &known)).await;
    let endpoint = match made.unwrap_or(Err(EndpointError::Stopped)) {
        Ok(endpoint) => endpoint,
        Err(error) => return tried(false, None, Reply::unable(&error)),
    };
    match kind {
        Kind::Validation => {
            let question = Question::new(name, options);
            let request = question.request(settings, now);
            let reply = endpoint.send(request, &question.id(), now).await;
            let given = question.judge(&reply);
            tried(given.is_some(), given.flatten(), reply)
        }
        Kind::Event => {
            let id = Uuid::new_v4();
            let request = trial(&Form::of(name, options), settings, id, now);
            let reply = endpoint.send(request, &format!("{id}-1"), now).await;
            let is_taken = reply.end.consequence() == Consequence::Delivered;
            tried(is_taken, None, reply)
        }
    }
}

fn tried(is_accepted: bool, rate_per_min: Option<u32>, reply: Reply) -> Tried {
    Tried {
        is_accepted,
        is_refused: !is_accepted && reply.end.is_from_endpoint(),
        rate_per_min,
        answer: reply.text,
    }
}
