//! Event subscriptions: who is to get events, as an operator has asked for it, and how far it has come.
//!
//! Invariant: the cursor of an event subscription never goes back, whoever says so and however late.
//! Invariant: an account of another revision changes nothing.

use prost::Message as _;

use super::super::batch::Batch;
use super::super::effect::EventsReply;
use super::super::schema;
use super::{Events, outbox};
use crate::base::limits;
use crate::base::proto::{command, state};
use crate::events::kind::is_type;

/// Of [`state::EventSubscription`].
pub(super) const ACTIVE: u32 = 1;
const GONE: u32 = 3;

/// The last number of a reason.
const REASONS: u32 = 11;

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=limits::EVENT_SUBSCRIPTION_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter)
}

/// What can be read of options whose form is right.
fn options(bytes: &[u8]) -> Option<state::EventSubscriptionOptions> {
    if bytes.len() > limits::EVENT_SUBSCRIPTION_BYTES {
        return None;
    }
    let options = state::EventSubscriptionOptions::decode(bytes).ok()?;
    let has_types = options.types.iter().all(|text| is_type(text));
    let has_reasons = options
        .reasons
        .iter()
        .all(|reason| (1..=REASONS).contains(reason));
    (has_types && has_reasons && !options.url.is_empty()).then_some(options)
}

impl Events {
    /// Makes or changes an event subscription.
    pub fn put(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: command::PutEventSubscription,
    ) -> EventsReply {
        let Some(options) = options(&command.options).filter(|_| is_name(&command.name)) else {
            return EventsReply::Invalid;
        };
        let known = self.subscriptions.get(&command.name);
        if known.is_some_and(|row| row.options.is_none()) {
            return EventsReply::Busy;
        }
        let revision = known.map_or(0, |row| row.revision);
        if command
            .expected_revision
            .is_some_and(|expected| expected != revision)
        {
            return EventsReply::Conflict { revision };
        }
        if known.is_none() && self.subscriptions.len() >= limits::EVENT_SUBSCRIPTIONS {
            return EventsReply::Full;
        }
        let mut row = known.cloned().unwrap_or_else(|| state::EventSubscription {
            through: match command.from_oldest {
                true => batch.meta.first_event().saturating_sub(1),
                false => batch.meta.last_event(),
            },
            state: ACTIVE,
            created_ms: batch.now.0,
            ..Default::default()
        });
        let former = row.options.replace(options);
        let url = |options: &Option<state::EventSubscriptionOptions>| {
            options.as_ref().map(|options| options.url.clone())
        };
        if row.state == GONE && url(&former) != url(&row.options) {
            row.state = ACTIVE;
        }
        row.revision = batch.index.0;
        self.store(batch, &command.name, row);
        EventsReply::Done(batch.index)
    }

    /// Writes the row of an event subscription.
    pub(super) fn store(
        &mut self,
        batch: &mut Batch<'_, '_>,
        name: &str,
        row: state::EventSubscription,
    ) {
        batch.tables.put::<schema::EventSubscription>(name, &row);
        self.subscriptions.insert(name.to_owned(), row);
        self.has_changed = true;
    }

    /// Ends an event subscription; what it has parked and given up goes, now or later.
    pub fn delete(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: command::DeleteEventSubscription,
    ) -> EventsReply {
        let name = command.name;
        let known = self.subscriptions.get(&name).cloned();
        let Some(mut row) = known.filter(|row| row.options.is_some()) else {
            return EventsReply::NotFound;
        };
        row.options = None;
        self.store(batch, &name, row);
        self.go_on_with_letters(batch, &name);
        outbox::trim_at(batch, batch.now);
        EventsReply::Done(batch.index)
    }

    /// What became of events of an event subscription.
    pub fn progress(
        &mut self,
        batch: &mut Batch<'_, '_>,
        command: command::EventProgress,
    ) -> EventsReply {
        let consent = command.consent.as_ref().map_or(0, |consent| consent.len());
        let error = command.last_error.as_ref().map_or(0, |error| error.len());
        let items = command.parked.len() + command.unparked.len() + command.dead.len();
        if items > limits::EVENT_PROGRESS_ITEMS
            || consent + error > limits::EVENT_SUBSCRIPTION_BYTES
            || command.state > GONE
        {
            return EventsReply::Invalid;
        }
        let known = self.subscriptions.get(&command.name).cloned();
        let Some(mut row) = known.filter(|row| row.options.is_some()) else {
            return EventsReply::NotFound;
        };
        if row.revision != command.revision {
            let revision = row.revision;
            return EventsReply::Conflict { revision };
        }
        self.sort_out(batch, &mut row, &command);
        row.through = row
            .through
            .max(command.through.min(batch.meta.last_event()));
        row.delivered += command.delivered;
        if let Some(consent) = command.consent {
            row.consent = consent;
        }
        if command.state != 0 {
            row.state = command.state;
        }
        if let Some(error) = command.last_error {
            row.last_error_ms = if error.is_empty() { 0 } else { batch.now.0 };
            row.last_error = error;
        }
        let is_replaying = row.replay_through != 0;
        self.store(batch, &command.name, row);
        outbox::trim_at(batch, batch.now.plus(1));
        if is_replaying {
            self.go_on_with_letters(batch, &command.name);
        }
        EventsReply::Done(batch.index)
    }
}
