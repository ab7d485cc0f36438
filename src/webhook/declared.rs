//! The event subscription `config`, which the configuration declares (`events.webhook_*`). Each new leader proposes it
//! if it differs from what its row says; its cursor and its dead letters stay. Nothing is removed when the keys are
//! emptied.

use std::time::Duration;

use prost::Message as _;

use super::leader::Leader;
use crate::base::proto::command::PutEventSubscription;
use crate::base::proto::command::command::Kind;
use crate::base::proto::state::EventSubscriptionOptions;
use crate::config::{Config, DECLARED_EVENTS};
use crate::machine::read_events;

/// Before the log is told again what it may not have heard.
const RETRY: Duration = Duration::from_millis(500);

/// Before the log is told again what it has refused.
const REFUSED_RETRY: Duration = Duration::from_secs(10);

/// What has become of a declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The rows say the same.
    InForce,
    /// It is not known to be in the log.
    Unknown,
    /// The log has it, and the rows say something else: there is no room, or the former one of this name is still
    /// going.
    Refused,
}

/// What the configuration says.
#[derive(Clone, Debug)]
pub(crate) struct Declared {
    options: Option<EventSubscriptionOptions>,
}

impl Declared {
    /// What this node's configuration says.
    pub(crate) fn new(config: &Config) -> Declared {
        Declared {
            options: config.event_subscription(),
        }
    }

    /// Proposes it until it is in force.
    pub(super) async fn keep(&self, leader: &dyn Leader) {
        let mut has_warned = false;
        loop {
            let pause = match self.declare(leader).await {
                Told::InForce => return,
                Told::Unknown => RETRY,
                Told::Refused => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(
                            name = DECLARED_EVENTS,
                            "the event subscription of events.webhook_url can't be made now: there are as many as \
                             there may be, or the dead letters of the former one are still going; it is tried again"
                        );
                    }
                    REFUSED_RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Proposes what differs.
    pub(super) async fn declare(&self, leader: &dyn Leader) -> Told {
        let Some(options) = &self.options else {
            return Told::InForce;
        };
        if has(leader, options).await {
            return Told::InForce;
        }
        let command = PutEventSubscription {
            name: DECLARED_EVENTS.to_owned(),
            expected_revision: None,
            options: options.encode_to_vec().into(),
            from_oldest: false,
        };
        if !leader.account(Kind::PutEventSubscription(command)).await {
            return Told::Unknown;
        }
        match has(leader, options).await {
            true => Told::InForce,
            false => Told::Refused,
        }
    }
}

/// Whether the rows say what is declared.
async fn has(leader: &dyn Leader, options: &EventSubscriptionOptions) -> bool {
    let backing = leader.backing();
    let read = move || read_events::subscription(&*backing, DECLARED_EVENTS);
    // It does not panic.
    let row = tokio::task::spawn_blocking(read).await.ok().flatten();
    row.and_then(|row| row.options).as_ref() == Some(options)
}
