//! Delivery to one connection of this node: what differs per subscriber, and the encoding into its mailbox.

use std::sync::Arc;

use super::message::Message;
use crate::base::ids::{LogIndex, SessionId};
use crate::codec::{PacketId, PublishHeader, QoS, encode_publish, frame};
use crate::machine::effect::Granted;
use crate::machine::subscriptions::Subscription;
use crate::mailbox::{Filling, Mailbox, Put, Refused, WakeList};
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

    /// Delivers a message with the QoS that was granted, unless it reaches the session through its queue. Returns
    /// whether it was taken; what is dropped is counted. A mailbox above its high-water mark is added to `throttled`.
    pub(super) fn deliver(
        &self,
        message: &Message<'_>,
        throttled: &mut Throttled,
        wake: &mut WakeList,
    ) -> bool {
        let qos = message.qos.min(self.qos);
        if qos == QoS::AtMostOnce {
            let pushed = self.push_qos_0(message, wake);
            return pushed
                .inspect_err(|refused| self.mailbox.count_refused(*refused))
                .is_ok();
        }
        if self.durable && !message.direct {
            return true;
        }
        match self.push(message, qos, wake) {
            Ok(Some(end)) => throttled.push((self.mailbox.clone(), end)),
            Ok(None) => {}
            Err(_) => return false,
        }
        true
    }

    /// Delivers with QoS 0. The caller counts a refused message.
    pub(super) fn push_qos_0(
        &self,
        message: &Message<'_>,
        wake: &mut WakeList,
    ) -> Result<(), Refused> {
        let header = self.header(message, QoS::AtMostOnce);
        let must_wake = self.mailbox.push_qos_0(message.topic, |out, topic_alias| {
            let header = PublishHeader {
                topic_alias,
                ..header
            };
            encode(out, message, &header)
        })?;
        if must_wake {
            wake.add(&self.mailbox);
        }
        Ok(())
    }

    /// Delivers with QoS 1 or 2. Returns the end of the message when its acknowledgement is to be deferred.
    fn push(
        &self,
        message: &Message<'_>,
        qos: QoS,
        wake: &mut WakeList,
    ) -> Result<Option<u64>, Refused> {
        let header = self.header(message, qos);
        let pushed = self
            .mailbox
            .push_packet(qos, message.expiry, |out| encode(out, message, &header));
        if matches!(pushed, Ok(Put { wake: true, .. }) | Err(Refused::Ended)) {
            wake.add(&self.mailbox);
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
        encode(out, message, &header)
    });
}

/// Puts a message of a session's queue into the mailbox of the connection that owns the session. Returns whether the
/// connection must be woken.
///
/// # Errors
/// When the packet is larger than the client accepts.
pub(super) fn put_granted(mailbox: &Mailbox, granted: &Granted) -> Result<bool, Refused> {
    let qos = granted.qos;
    let header = PublishHeader {
        version: mailbox.version,
        qos,
        dup: granted.dup,
        retain: granted.retain,
        packet_id: (qos != QoS::AtMostOnce).then(|| granted.sequence.packet_id()),
        subscription_ids: &granted.identifiers,
        remaining_expiry: granted.expiry_s,
        topic_alias: None,
        max_packet_size: mailbox.max_packet_size,
    };
    let message = Message::logged(&granted.message, granted.expiry_s);
    mailbox.push_granted(qos, granted.expiry_s, granted.sequence, |out| {
        encode(out, &message, &header)
    })
}

/// Appends the packet. Returns where its packet id is, if it has one.
fn encode(
    out: &mut Vec<u8>,
    message: &Message<'_>,
    header: &PublishHeader<'_>,
) -> Result<Option<usize>, Refused> {
    let at = out.len();
    match encode_publish(
        out,
        message.topic,
        message.properties,
        message.payload,
        header,
    ) {
        Ok(_) if header.qos == QoS::AtMostOnce => Ok(None),
        Ok(_) => {
            let fixed = frame::header(&out[at..], u32::MAX)
                .ok()
                .flatten()
                .expect("the packet was encoded just now");
            Ok(Some(at + fixed.length + 2 + message.topic.len()))
        }
        // Topic and properties were checked when the message was received, so only its size can be wrong.
        Err(_) => Err(Refused::TooLarge),
    }
}
