//! Where the messages of one publisher with one topic name go.

use std::sync::Arc;

use smallvec::SmallVec;

use super::counted::Counted;
use super::local::{LocalSubscriber, Throttled};
use super::message::Message;
use super::shared::Group;
use crate::base::ids::{LogIndex, NodeId, SessionId};
use crate::base::limits;
use crate::codec::QoS;
use crate::mailbox::back_pressure::BackPressureState;
use crate::mailbox::{Body, Mailbox, Refused, WakeList};
use crate::topic::generations::Validity;

/// Bytes that are copied into a mailbox in the time that a delivery takes anyway.
const COPIED_PER_UNIT: usize = 1024;

/// Subscription identifiers that are encoded in that time.
const IDENTIFIERS_PER_UNIT: usize = 32;

/// Subscriptions, and parts of filters, that a look-up looks at in that time.
const LOOKED_AT_PER_UNIT: usize = 8;

/// What a look-up looks at of which a message that goes through the log counts nothing in its proposal: nearly every
/// topic has less.
const LOOKED_AT_FREE: usize = 64;

/// Members of a group that refuse a message in that time.
const REFUSALS_PER_UNIT: usize = 8;

/// Where the messages of one publisher with one topic name go, for as long as [`super::Router::is_current`] says so.
///
/// What was looked up is shared by all publishers of a node. What No Local changes for one of them stands beside it.
#[derive(Clone, Debug)]
pub struct Route {
    pub(super) found: Arc<Found>,
    pub(super) publisher: Option<SessionId>,
    /// Nobody had looked the topic up before.
    is_new: bool,
}

/// What a look-up has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) validity: Validity,
    /// Connections of this node, one entry per session.
    pub(super) local: Vec<LocalSubscriber>,
    /// What sessions with No Local get of their own messages, in the order of sessions.
    pub(super) own: Vec<Own>,
    pub(super) remote: SmallVec<[NodeId; 4]>,
    /// Shared subscriptions, for messages with QoS 0; the others go through the log. In the order of their filters.
    pub(super) groups: Vec<Group>,
    /// Messages with QoS 1 and 2 go through the log: some match is a durable session or a group.
    pub(super) logged: Logged,
    /// Messages with QoS 0 go through the log: some match keeps them while no client is connected.
    pub(super) logged_qos_0: Logged,
    /// What it takes in memory, about.
    pub(super) bytes: usize,
    /// Matching subscriptions of all nodes' connections that get a message from the log straight: one with QoS 0, and
    /// one with QoS 1 or 2.
    pub(super) straight_qos_0: usize,
    pub(super) straight: usize,
    /// Matching sessions that keep a message that goes through the log, and groups, as far as they count: as the two
    /// above.
    pub(super) queued_qos_0: usize,
    pub(super) queued: usize,
    /// What the look-up looked at: subscriptions, and parts of filters.
    pub(super) looked_at: usize,
    /// The matching ones of these.
    pub(super) matches: usize,
    /// Whether a message that goes through the log has counted it lately.
    pub(super) counted: Counted,
    /// Copies of a message that are made for this and other nodes.
    pub(super) copies: usize,
    /// What a message costs beside them, in units of [`limits::TURN_WORK`].
    pub(super) beside: usize,
}

/// What a session with No Local gets of its own messages: what its other matches ask for, if there are any.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) session: SessionId,
    pub(super) copy: Option<LocalSubscriber>,
}

/// Whose messages go through the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Logged {
    #[default]
    Nobodys,
    /// All but those of this session, which has the only match that asks for it, with No Local.
    AllBut(SessionId),
    All,
}

impl Logged {
    /// A match of `session` asks for it.
    pub(super) fn add(&mut self, session: SessionId, no_local: bool) {
        *self = match *self {
            Logged::Nobodys if no_local => Logged::AllBut(session),
            Logged::AllBut(known) if no_local && known == session => Logged::AllBut(known),
            _ => Logged::All,
        };
    }

    fn concerns(self, publisher: Option<SessionId>) -> bool {
        match self {
            Logged::Nobodys => false,
            Logged::AllBut(session) => publisher != Some(session),
            Logged::All => true,
        }
    }
}

impl Found {
    /// Every copy that a connection of this node may get; those of members of groups left out.
    pub(super) fn every_local(&mut self) -> impl Iterator<Item = &mut LocalSubscriber> {
        let own = self.own.iter_mut().filter_map(|own| own.copy.as_mut());
        self.local.iter_mut().chain(own)
    }

    /// Finds out what a message costs: whatever a subscription adds to that must count here.
    pub(super) fn count_work(&mut self) {
        let identifiers = self.local.iter().map(|one| one.identifiers.count());
        let identifiers: usize = identifiers.sum();
        let names: usize = self.groups.iter().map(|group| group.filter().len()).sum();
        let offers: usize = self.groups.iter().map(Group::offers).sum();
        self.copies = self.local.len() + self.groups.len() + self.remote.len();
        self.beside = identifiers / IDENTIFIERS_PER_UNIT
            + names / COPIED_PER_UNIT
            + offers / REFUSALS_PER_UNIT;
    }
}

impl Route {
    pub(super) fn new(found: Arc<Found>, publisher: Option<SessionId>, is_new: bool) -> Self {
        Route {
            found,
            publisher,
            is_new,
        }
    }

    /// What No Local leaves to the publisher, if it has asked for it.
    fn own(&self) -> Option<&Own> {
        let own = &self.found.own;
        if own.is_empty() {
            return None;
        }
        let publisher = self.publisher?;
        let at = own
            .binary_search_by_key(&publisher, |own| own.session)
            .ok()?;
        Some(&own[at])
    }

    /// Connections of this node that get the message.
    pub(super) fn local(&self) -> impl Iterator<Item = &LocalSubscriber> {
        let own = self.own();
        let instead = own.map(|own| own.session);
        let others = self.found.local.iter();
        others
            .filter(move |subscriber| instead != Some(subscriber.session))
            .chain(own.and_then(|own| own.copy.as_ref()))
    }

    /// Other nodes that get the message.
    pub(super) fn remote(&self) -> &[NodeId] {
        &self.found.remote
    }

    /// Shared subscriptions.
    pub(super) fn groups(&self) -> &[Group] {
        &self.found.groups
    }

    /// Whether nobody is subscribed.
    pub fn is_empty(&self) -> bool {
        self.remote().is_empty() && self.groups().is_empty() && self.local().next().is_none()
    }

    /// Whether other nodes get the message.
    pub fn has_remote(&self) -> bool {
        !self.remote().is_empty()
    }

    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.found.bytes
    }

    /// The worst state of the connections of this node that get messages with QoS 1 or 2 straight. A stalled one
    /// counts as [`BackPressureState::Normal`], because nobody waits for it.
    pub fn back_pressure(&self) -> BackPressureState {
        let mut worst = BackPressureState::Normal;
        for subscriber in self.waited_for() {
            match subscriber.mailbox.state() {
                BackPressureState::Full => return BackPressureState::Full,
                BackPressureState::Throttled => worst = BackPressureState::Throttled,
                BackPressureState::Normal | BackPressureState::Stalled => {}
            }
        }
        worst
    }

    /// Whether connections of this node get messages with QoS 1 or 2 straight.
    pub fn has_waited_for(&self) -> bool {
        self.waited_for().next().is_some()
    }

    /// Connections that get messages with QoS 1 or 2 straight.
    fn waited_for(&self) -> impl Iterator<Item = &LocalSubscriber> {
        let all = self.local();
        all.filter(|subscriber| subscriber.qos != QoS::AtMostOnce && !subscriber.durable)
    }

    /// Whether a message with this QoS must go through the log.
    pub fn is_logged(&self, qos: QoS) -> bool {
        let logged = match qos {
            QoS::AtMostOnce => self.found.logged_qos_0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.found.logged,
        };
        logged.concerns(self.publisher)
    }

    /// The body of a message, if it is large: all subscribers share it.
    fn shared_body(&self, message: &Message<'_>) -> Option<Body> {
        self.local().next()?.shared_body(message)
    }

    /// Writes the packet into the mailbox of every subscriber of this node, and adds those that throttle the publisher
    /// to `throttled`. Returns why it is not in the mailbox of its own publisher, if that has subscribed to it.
    pub(super) fn deliver_local(
        &self,
        message: &Message<'_>,
        throttled: &mut Throttled,
        wake: &mut WakeList,
    ) -> Option<Refused> {
        let body = self.shared_body(message);
        let mut to_publisher = None;
        for subscriber in self.local() {
            let delivered = subscriber.deliver(message, body.as_ref(), throttled, wake);
            if let Err(refused) = delivered
                && message.publisher == Some(subscriber.session)
            {
                to_publisher = Some(refused);
            }
        }
        to_publisher
    }

    /// The same for a message that the log entry `index` has published. Outputs of several entries are performed
    /// together, so some subscriptions may be newer than the message: those get it as a retained message, if at all.
    pub(super) fn deliver_logged(
        &self,
        message: &Message<'_>,
        index: LogIndex,
        throttled: &mut Throttled,
        wake: &mut WakeList,
    ) {
        let body = self.shared_body(message);
        for subscriber in self.local() {
            if subscriber.since < index {
                // What is dropped is counted there.
                let _ = subscriber.deliver(message, body.as_ref(), throttled, wake);
            }
        }
    }

    /// What looking the topic up has cost, in units of [`limits::TURN_WORK`]: nothing, if somebody had done so before.
    pub fn look_up_work(&self) -> usize {
        match self.is_new {
            true => self.found.looked_at / LOOKED_AT_PER_UNIT,
            false => 0,
        }
    }

    /// What a delivery to the subscribers of this node, to groups and to other nodes costs, in units of
    /// [`limits::TURN_WORK`].
    pub fn work(&self, message: &Message<'_>) -> usize {
        let copied =
            message.payload.len().min(limits::SHARED_BODY_BYTES) + message.properties.len();
        self.found.copies * (1 + copied / COPIED_PER_UNIT) + self.found.beside
    }

    /// What a message that goes through the log counts in its proposal, bytes: the nodes look its topic up, deliver it
    /// while they apply, and put it into queues. Those beyond what every message may are bounded by the log entry
    /// itself.
    pub fn logged_weight(&self, qos: QoS) -> usize {
        let (straight, queued) = match qos {
            QoS::AtMostOnce => (self.found.straight_qos_0, self.found.queued_qos_0),
            QoS::AtLeastOnce | QoS::ExactlyOnce => (self.found.straight, self.found.queued),
        };
        // The nodes look the topic up for the first message, and know it then for some time.
        let looked_at = match self.found.counted.is_due(self.found.matches) {
            true => self.found.looked_at.saturating_sub(LOOKED_AT_FREE),
            false => 0,
        };
        straight.max(looked_at) * limits::LOGGED_DELIVERY_BYTES
            + queued.min(limits::QUEUES_AT_LEAST) * limits::LOGGED_QUEUE_BYTES
    }

    /// Has `publisher` offer its next packet again when the connections that get the messages have room.
    pub fn await_room(&self, publisher: &Arc<Mailbox>) {
        let full = self.waited_for().find(|subscriber| {
            let mailbox = &subscriber.mailbox;
            mailbox.state() == BackPressureState::Full
        });
        match full {
            Some(subscriber) => subscriber.mailbox.await_room(publisher),
            None => publisher.offer_again(),
        }
    }
}
