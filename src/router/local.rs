//! Delivery to one connection of this node: what differs per subscriber, and the encoding into its mailbox.

use std::sync::{Arc, Weak};

use super::message::Message;
use crate::base::ids::{LogIndex, SessionId};
use crate::base::limits;
use crate::codec::{PacketId, PublishHeader, QoS, encode_publish, encode_publish_beginning};
use crate::machine::effect::{ApplicationMessage, Granted};
use crate::machine::subscriptions::Subscription;
use crate::mailbox::{
    Body, Filling, Mailbox, NewPacket, Put, Refused, WakeList, WeakBody, Withheld,
};
use crate::session::delivery::Identifiers;

/// Mailboxes above their high-water mark, with the end of the message in each: the acknowledgement of its publisher is
/// to be deferred, see [`Mailbox::defer_ack`].
pub type Throttled = Vec<(Arc<Mailbox>, u64)>;

/// A connection of this node that a topic name matches. Overlapping subscriptions of one session are merged into one
/// copy with the highest granted QoS and all identifiers `[MQTT-3.3.4-2]` `[MQTT-3.3.4-4]`.
#[derive(Clone, Debug)]
pub(super) struct LocalSubscriber {
    pub(super) session: SessionId,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) qos: QoS,
    /// Messages with QoS 1 and 2 go through the session's queue.
    pub(super) durable: bool,
    pub(super) retain_as_published: bool,
    pub(super) identifiers: Identifiers,
    /// The log entry that made the first of the subscriptions.
    pub(super) since: LogIndex,
}

impl LocalSubscriber {
    pub(super) fn new(session: SessionId, mailbox: &Arc<Mailbox>, qos: QoS) -> LocalSubscriber {
        LocalSubscriber {
            session,
            mailbox: mailbox.clone(),
            qos,
            durable: false,
            retain_as_published: false,
            identifiers: Identifiers::default(),
            since: LogIndex(u64::MAX),
        }
    }

    /// Adds what one more subscription asks for.
    pub(super) fn merge(&mut self, subscription: &Subscription) {
        self.qos = self.qos.max(subscription.qos);
        self.retain_as_published |= subscription.retain_as_published;
        self.since = self.since.min(subscription.since);
        // A packet with more of them is larger than the client accepts, and is not sent `[MQTT-3.1.2-25]`.
        let is_too_large = 2 * self.identifiers.count() > self.mailbox.max_packet_size as usize;
        if subscription.identifier != 0 && !is_too_large {
            self.identifiers.add(subscription.identifier);
        }
    }

    /// What it takes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        size_of::<LocalSubscriber>() + self.identifiers.bytes()
    }

    fn header(&self, message: &Message<'_>, qos: QoS) -> PublishHeader<'_> {
        PublishHeader {
            version: self.mailbox.version,
            qos,
            dup: false,
            // [MQTT-3.3.1-12] [MQTT-3.3.1-13]
            retain: message.retain && self.retain_as_published,
            packet_id: (qos != QoS::AtMostOnce).then_some(PacketId::MAX),
            subscription_ids: self.identifiers.as_slice(),
            remaining_expiry: message.expiry,
            topic_alias: None,
            max_packet_size: self.mailbox.max_packet_size,
        }
    }

    fn packet<'a>(&self, message: &Message<'_>, qos: QoS, body: Option<&'a Body>) -> NewPacket<'a> {
        let is_asked_for = message.direct && message.publisher == Some(self.session);
        NewPacket {
            expiry_s: message.expiry,
            body,
            is_direct: message.direct,
            is_asked_for,
            is_answer: is_asked_for,
            ..NewPacket::of(qos)
        }
    }

    /// The body of a message if it is large: whoever delivers it to several subscribers copies it once.
    pub(super) fn shared_body(&self, message: &Message<'_>) -> Option<Body> {
        let is_large = message.payload.len() >= limits::SHARED_BODY_BYTES;
        is_large.then(|| self.mailbox.copy_body(message.payload))
    }

    /// Delivers a message with the QoS that was granted, unless it reaches the session through its queue. `body` is its
    /// body if that is large. A mailbox above its high-water mark is added to `throttled`.
    ///
    /// # Errors
    /// It was not taken, which is counted.
    pub(super) fn deliver(
        &self,
        message: &Message<'_>,
        body: Option<&Body>,
        throttled: &mut Throttled,
        wake: &mut WakeList,
    ) -> Result<(), Refused> {
        let qos = message.qos.min(self.qos);
        if qos == QoS::AtMostOnce {
            let pushed = self.push_qos_0(message, body, wake);
            return pushed.inspect_err(|refused| self.mailbox.count_refused(*refused));
        }
        if self.durable && !message.direct {
            return Ok(());
        }
        if let Some(end) = self.push(message, body, qos, wake)? {
            throttled.push((self.mailbox.clone(), end));
        }
        Ok(())
    }

    /// Delivers with QoS 0. The caller counts a refused message.
    pub(super) fn push_qos_0(
        &self,
        message: &Message<'_>,
        body: Option<&Body>,
        wake: &mut WakeList,
    ) -> Result<(), Refused> {
        let header = self.header(message, QoS::AtMostOnce);
        let packet = self.packet(message, QoS::AtMostOnce, body);
        let mailbox = &self.mailbox;
        let must_wake = mailbox.push_qos_0(message.topic, packet, |out, topic_alias| {
            let header = PublishHeader {
                topic_alias,
                ..header
            };
            encode(out, message, body, &header)
        })?;
        if must_wake {
            wake.add_receiving(&self.mailbox);
        }
        Ok(())
    }

    /// Delivers with QoS 1 or 2. A direct message that does not fit is dropped. Returns the end of the message when its
    /// acknowledgement is to be deferred.
    pub(super) fn push(
        &self,
        message: &Message<'_>,
        body: Option<&Body>,
        qos: QoS,
        wake: &mut WakeList,
    ) -> Result<Option<u64>, Refused> {
        self.push_packet(self.packet(message, qos, body), message, wake)
    }

    /// The same, of something that a client has asked to be told and that answers no request.
    pub(super) fn push_notification(&self, message: &Message<'_>) -> Result<(), Refused> {
        let packet = NewPacket {
            is_answer: false,
            ..self.packet(message, message.qos, None)
        };
        let pushed = self.push_packet(packet, message, &mut WakeList::default());
        pushed.map(|_| ())
    }

    fn push_packet(
        &self,
        packet: NewPacket<'_>,
        message: &Message<'_>,
        wake: &mut WakeList,
    ) -> Result<Option<u64>, Refused> {
        let (header, body) = (self.header(message, packet.qos), packet.body);
        let pushed = self
            .mailbox
            .push_packet(packet, |out| encode(out, message, body, &header));
        if matches!(pushed, Ok(Put { wake: true, .. }) | Err(Refused::Ended)) {
            wake.add_receiving(&self.mailbox);
        }
        // A direct message has no publisher whose acknowledgement could be deferred.
        Ok(pushed?.throttled.filter(|_| !message.direct))
    }
}

/// Puts a message into a mailbox that its own connection fills.
pub(super) fn put(
    filling: &mut Filling<'_>,
    mailbox: &Mailbox,
    message: &Message<'_>,
    identifier: Option<u32>,
) {
    let header = PublishHeader {
        version: mailbox.version,
        qos: message.qos,
        dup: false,
        retain: message.retain,
        packet_id: (message.qos != QoS::AtMostOnce).then_some(PacketId::MAX),
        subscription_ids: identifier.as_slice(),
        remaining_expiry: message.expiry,
        topic_alias: None,
        max_packet_size: mailbox.max_packet_size,
    };
    filling.push(message.qos, message.expiry, |out| {
        encode(out, message, None, &header)
    });
}

/// The large body of a message of a session's queue, as long as somebody has it.
#[derive(Default)]
pub(super) struct GrantedBody {
    message: Weak<ApplicationMessage>,
    body: WeakBody,
}

impl GrantedBody {
    /// The body of a granted message if it is large. A mailbox that has no room for it will not keep it: then it is
    /// not copied for nothing.
    pub(super) fn of(&mut self, granted: &Granted, mailbox: &Mailbox) -> Option<Body> {
        let message = &granted.message;
        if message.payload.len() < limits::SHARED_BODY_BYTES || mailbox.withholds() {
            return None;
        }
        let is_same = std::ptr::eq(self.message.as_ptr(), Arc::as_ptr(message));
        let known = is_same.then(|| self.body.upgrade()).flatten();
        let body = known.unwrap_or_else(|| mailbox.copy_body(&message.payload));
        self.message = Arc::downgrade(message);
        self.body = body.downgrade();
        Some(body)
    }
}

/// A message from the log.
pub(super) fn logged(published: &ApplicationMessage, expiry_s: Option<u32>) -> Message<'_> {
    Message {
        publisher: published.publisher,
        qos: published.qos,
        retain: published.retain,
        topic: &published.topic,
        properties: &published.properties,
        expiry: expiry_s,
        direct: false,
        payload: &published.payload,
    }
}

/// Puts a message of a session's queue into the mailbox of the connection that owns the session. Returns whether the
/// connection must be woken.
///
/// # Errors
/// When the packet is larger than the client accepts.
pub(super) fn put_granted(
    mailbox: &Mailbox,
    granted: &Granted,
    body: Option<&Body>,
) -> Result<bool, Refused> {
    let message = logged(&granted.message, granted.expiry_s);
    let header = granted_header(mailbox, granted);
    let packet = granted_packet(granted, body);
    let withheld = Withheld {
        sequence: granted.sequence,
        dup: granted.dup,
    };
    mailbox.push_granted(packet, withheld, |out| encode(out, &message, body, &header))
}

/// The same for the first message that is withheld.
///
/// # Errors
/// When the packet is larger than the client accepts.
pub(super) fn put_withheld(mailbox: &Mailbox, granted: &Granted) -> Result<(), Refused> {
    let message = logged(&granted.message, granted.expiry_s);
    let header = granted_header(mailbox, granted);
    let packet = granted_packet(granted, None);
    mailbox.push_withheld(Some(packet), |out| encode(out, &message, None, &header))
}

fn granted_packet<'a>(granted: &Granted, body: Option<&'a Body>) -> NewPacket<'a> {
    NewPacket {
        // Delivery that has begun goes on after the message's time `[MQTT-4.3.3-7]`.
        expiry_s: granted.expiry_s.filter(|_| !granted.dup),
        body,
        ..NewPacket::of(granted.qos)
    }
}

fn granted_header<'a>(mailbox: &Mailbox, granted: &'a Granted) -> PublishHeader<'a> {
    PublishHeader {
        version: mailbox.version,
        qos: granted.qos,
        dup: granted.dup,
        retain: granted.retain,
        packet_id: (granted.qos != QoS::AtMostOnce).then(|| granted.sequence.packet_id()),
        subscription_ids: &granted.identifiers,
        remaining_expiry: granted.expiry_s,
        topic_alias: None,
        max_packet_size: mailbox.max_packet_size,
    }
}

/// Appends the packet, with `body` without its payload.
fn encode(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    body: Option<&Body>,
    header: &PublishHeader<'_>,
) -> Result<(), Refused> {
    let (topic, properties) = (message.topic, message.properties);
    let encoded = match body {
        None => encode_publish(out, topic, properties, message.payload, header),
        Some(body) => encode_publish_beginning(out, topic, properties, body.len(), header),
    };
    // Topic and properties were checked when the message was received, so only its size can be wrong.
    encoded.map(drop).map_err(|_| Refused::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::ConnectionId;
    use crate::codec::Version;
    use crate::mailbox::back_pressure::OutboxLimits;
    use crate::session::Sequence;

    #[test]
    fn a_body_that_is_withheld_is_not_copied() {
        let outbox = OutboxLimits::of(2 * limits::SHARED_BODY_BYTES);
        let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, outbox.clone());
        let message = Arc::new(ApplicationMessage {
            topic: "t".into(),
            qos: QoS::AtLeastOnce,
            retain: false,
            payload: vec![0; 2 * limits::SHARED_BODY_BYTES].into(),
            properties: bytes::Bytes::new(),
            expires_at: None,
            publisher: None,
        });
        let mut bodies = GrantedBody::default();
        let mut put = |number| {
            let granted = Granted {
                connection: ConnectionId(1),
                sequence: Sequence(number),
                qos: QoS::AtLeastOnce,
                dup: false,
                retain: false,
                expiry_s: None,
                identifiers: smallvec::SmallVec::new(),
                is_shared: false,
                message: message.clone(),
            };
            let body = bodies.of(&granted, &mailbox);
            let pushed = put_granted(&mailbox, &granted, body.as_ref());
            pushed.expect("no packet is too large");
            body.is_some()
        };
        assert_eq!([put(1), put(2), put(3)], [true, false, false]);
        let withheld = mailbox.withheld(9).into_iter().map(|one| one.sequence.0);
        assert_eq!(withheld.collect::<Vec<_>>(), [2, 3]);
    }

    /// Whoever asks the store for answers on a topic that others subscribe to does not end their connections.
    #[test]
    fn direct_messages_end_nobodys_connection() {
        let limits = OutboxLimits {
            connection_bytes: 800,
            ..Arc::into_inner(OutboxLimits::of(100)).expect("just made")
        };
        let limits = Arc::new(limits);
        let metrics = limits.metrics.clone();
        let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
        let subscriber = LocalSubscriber::new(SessionId(1), &mailbox, QoS::AtLeastOnce);
        let message = |direct, publisher| Message {
            publisher: Some(SessionId(publisher)),
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            properties: &[],
            expiry: None,
            direct,
            payload: &[0; 50],
        };
        let deliver = |direct, publisher| {
            let (throttled, wake) = (&mut Throttled::new(), &mut WakeList::default());
            subscriber.deliver(&message(direct, publisher), None, throttled, wake)
        };
        let taken = (0..100).filter(|_| deliver(true, 2).is_ok()).count();
        assert_eq!(taken, 2, "up to the limit");
        assert_eq!(
            metrics.messages_dropped.of(OUTBOX_FULL).get(),
            100 - taken as u64
        );
        let has_room = deliver(false, 2).is_ok();
        assert!(has_room, "for what its publishers have under way");
        let asked_for = (0..100).filter(|_| deliver(true, 1).is_ok()).count();
        assert!((5..15).contains(&asked_for), "{asked_for}");
        assert_eq!(
            deliver(true, 1),
            Err(Refused::Full),
            "the requester is told"
        );
        assert!(!mailbox.is_ending());
        assert!(deliver(false, 2).is_err() && mailbox.is_ending());
    }

    const OUTBOX_FULL: crate::telemetry::labels::DropReason =
        crate::telemetry::labels::DropReason::OutboxFull;
}
