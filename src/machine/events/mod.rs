//! Events of the life of MQTT clients, as apply records them: in the order of the log, with the numbers of connections,
//! in an outbox that every replica has.
//!
//! - [`numbers`]: the number of each connection, counted per authentication name and client id.
//! - [`outbox`]: what is kept of events, and for how long.
//! - [`clients`]: changes of clients that wait to become one event.
//! - [`subscriptions`]: who is to get events, and how far it has come.
//! - [`letters`]: parked events and dead letters of an event subscription.
//!
//! Nothing here publishes: what is to be published over MQTT is handed back to the caller, as with wills.
//!
//! Invariant: nothing is recorded, and nothing is written, until there is an event subscription, `events.mqtt`, or
//! `events.keep_s` above 0.
//! Invariant: events are built from the command, rows and log time alone, so all replicas hold the same outbox.

pub(super) mod clients;
mod letters;
mod named;
mod numbers;
mod outbox;
mod portion;
mod subscriptions;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::batch::Batch;
use super::effect::{EventDrop, Output};
use super::schema;
use super::tables::Backing;
use crate::base::proto::{command, state};
use crate::events::kind::asks_for_hub;
use crate::events::{DisconnectionReason, HubOperation, Kind, render, settings, topic};

pub(super) use named::Named;

/// Row operations that recording an event takes, what is published of it not counted.
pub(super) const EVENT_COST: usize = 8;

/// What apply needs of the rows for every event; the rest is read where it is used.
#[derive(Default)]
pub(super) struct Events {
    settings: state::EventSettings,
    /// The rows. There are few.
    subscriptions: BTreeMap<String, state::EventSubscription>,
    places: numbers::Places,
    /// The batch under way has changed what those who deliver events look at.
    has_changed: bool,
}

/// What has happened in the hub.
pub(super) struct HubEvent<'a> {
    pub operation: HubOperation,
    pub device: &'a str,
    /// Empty when it is about the device.
    pub module: &'a str,
    /// The body, JSON.
    pub data: Bytes,
}

impl Events {
    /// Reads the rows again.
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = Events::default();
        let settings = backing.row::<schema::EventSettings>(());
        self.settings = settings.unwrap_or_default();
        backing.rows::<schema::EventSubscription>(&schema::Range::all(), |name, row| {
            self.subscriptions.insert(name.to_owned(), row.decode());
            true
        });
    }

    /// Whether events are recorded.
    pub fn is_recording(&self) -> bool {
        self.settings.mqtt || self.keeps()
    }

    /// Whether events go into the outbox.
    fn keeps(&self) -> bool {
        self.settings.keep_s > 0 || self.live().next().is_some()
    }

    /// Event subscriptions that have not ended.
    fn live(&self) -> impl Iterator<Item = (&String, &state::EventSubscription)> {
        let all = self.subscriptions.iter();
        all.filter(|(_, row)| row.options.is_some())
    }

    /// The rows of event subscriptions.
    pub fn subscriptions(&self) -> impl Iterator<Item = &state::EventSubscription> {
        self.subscriptions.values()
    }

    /// The leader says how it is configured.
    pub fn set(&mut self, batch: &mut Batch<'_, '_>, command: command::SetEvents) {
        let settings = settings::of_command(command);
        if settings == self.settings {
            return;
        }
        batch.tables.put::<schema::EventSettings>((), &settings);
        self.settings = settings;
        self.has_changed = true;
        // What is kept for a shorter time now, or does not fit any more, goes.
        outbox::trim_at(batch, batch.now);
        numbers::look_again(batch);
        self.look_at_letters(batch);
    }

    /// A session gets a connection. The number of the connection; 0 while nothing is recorded.
    pub fn number(&self, batch: &mut Batch<'_, '_>, of: &Named<'_>) -> u64 {
        match self.is_recording() {
            true => numbers::connected(batch, &self.settings, of),
            false => 0,
        }
    }

    /// A session has got a connection with a number.
    #[must_use]
    pub fn connected(
        &mut self,
        batch: &mut Batch<'_, '_>,
        of: &Named<'_>,
        sequence: u64,
    ) -> Option<command::PublishedMessage> {
        let event = of_session(Kind::Connected, of, sequence);
        self.record(batch, event)
    }

    /// The connection of a session has ended. One without a number began while nothing was recorded, so nobody hears of
    /// its end.
    #[must_use]
    pub fn disconnected(
        &mut self,
        batch: &mut Batch<'_, '_>,
        of: &Named<'_>,
        sequence: u64,
        reason: DisconnectionReason,
    ) -> Option<command::PublishedMessage> {
        if sequence == 0 {
            return None;
        }
        numbers::ended(&mut self.places, batch, &self.settings, of.pair());
        let mut event = of_session(Kind::Disconnected, of, sequence);
        event.reason = reason as u32;
        self.record(batch, event)
    }

    /// A session has ended, and its connection before it, whose client id the server had made.
    pub fn assigned_session_ended(&mut self, batch: &mut Batch<'_, '_>, of: &Named<'_>) {
        numbers::release(&mut self.places, batch, &self.settings, of.pair());
    }

    /// Something in the hub has changed. It is told to those alone who ask for it: event subscriptions that name such a
    /// type, readers of the outbox, subscribers over MQTT.
    #[must_use]
    pub fn hub_event(
        &mut self,
        batch: &mut Batch<'_, '_>,
        event: HubEvent<'_>,
    ) -> Option<command::PublishedMessage> {
        if !self.wants_hub_events() {
            return None;
        }
        let event = state::Event {
            kind: Kind::Hub as u32,
            name: event.device.to_owned(),
            session: event.module.to_owned(),
            operation: event.operation as u32,
            data: event.data,
            hub: self.settings.hub.clone(),
            ..Default::default()
        };
        self.record(batch, event)
    }

    /// Whether anybody asks for events of the hub.
    pub fn wants_hub_events(&self) -> bool {
        let asks = |row: &state::EventSubscription| row.options.as_ref().is_some_and(asks_for_hub);
        let is_open = self.settings.mqtt || self.settings.keep_s > 0;
        is_open || self.live().any(|(_, row)| asks(row))
    }

    /// Whether events have more than half of the bytes that the outbox may have.
    pub fn is_crowded(&self, batch: &Batch<'_, '_>) -> bool {
        let most = self.settings.outbox_max_bytes;
        most != 0 && batch.meta.outbox().bytes > most / 2
    }

    /// Appends an event; the message to be published, if events are published.
    #[must_use]
    fn record(
        &mut self,
        batch: &mut Batch<'_, '_>,
        mut event: state::Event,
    ) -> Option<command::PublishedMessage> {
        if !self.is_recording() {
            return None;
        }
        event.time_ms = batch.now.0;
        let number = batch.meta.new_event();
        if self.keeps() {
            outbox::append(batch, &self.settings, number, &event);
        } else if batch.meta.outbox().events == 0 {
            batch.meta.set_first_event(number + 1);
        }
        self.has_changed = true;
        if let Some(kind) = Kind::of(&event)
            && batch.counts_here()
        {
            let reason = DisconnectionReason::of_number(event.reason);
            batch.outputs.push(Output::EventRecorded { kind, reason });
        }
        if !self.settings.mqtt {
            return None;
        }
        let Some(topic) = topic::topic(&event) else {
            batch.count_events_dropped(EventDrop::TopicTooLong, 1);
            return None;
        };
        Some(command::PublishedMessage {
            topic,
            qos: 1,
            retain: false,
            payload: render::cloud_event(&self.settings, number, &event).into(),
            properties: Bytes::from_static(topic::PROPERTIES),
            expiry_interval_s: None,
        })
    }

    /// A timer says that events may go.
    pub fn trim(&mut self, batch: &mut Batch<'_, '_>) {
        let passed = self.live().map(|(_, row)| row.through).min();
        outbox::trim(batch, &self.settings, passed.unwrap_or(u64::MAX));
    }

    /// A timer says that numbers of sessions may go.
    pub fn end_numbers(&mut self, batch: &mut Batch<'_, '_>) {
        numbers::end_due(&mut self.places, batch, &self.settings);
    }

    /// The batch is over: those who deliver events are told if there is something new for them.
    pub fn finish_batch(&mut self, batch: &mut Batch<'_, '_>) {
        if std::mem::take(&mut self.has_changed) {
            batch.outputs.push(Output::EventsChanged);
        }
    }
}

fn of_session(kind: Kind, of: &Named<'_>, sequence: u64) -> state::Event {
    state::Event {
        kind: kind as u32,
        name: of.name.to_owned(),
        session: of.client_id.to_owned(),
        sequence,
        ..Default::default()
    }
}
