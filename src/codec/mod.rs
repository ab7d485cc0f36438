//! All bytes of MQTT: 3.1, 3.1.1 and 5.0, every packet, both directions. Nothing outside this room knows them.
//!
//! Invariant: it is sans-io and keeps no state between packets. What only a session can judge (an alias in use, a
//! receive maximum, an expiry raised from zero) is not judged here.
//!
//! Reading: [`frame::next`] cuts one packet off a buffer and applies the size limit, [`decode_connect`] reads the first
//! one and finds the version, [`decode`] reads every other one. What they return borrows the buffer; copy out what is
//! to be kept.
//!
//! Writing: [`encode`] writes the packets of a server, [`encode_publish`] a PUBLISH for one subscriber. The client's
//! role is in [`client`]; it shares all readers and writers of fields.

mod ack;
pub mod check;
pub mod client;
mod connack;
mod connect;
mod decode;
mod disconnect;
pub mod encode;
mod error;
mod extras;
pub mod frame;
mod property;
mod publish;
mod publish_encode;
mod read;
mod reason;
mod suback;
mod subscribe;
#[cfg(test)]
mod tests;
mod types;
mod unsubscribe;
mod write;

pub use ack::Ack;
pub use check::{FilterError, TopicFilter};
pub use connack::{ConnAck, ConnAckProperties};
pub use connect::{Connect, Will, decode_connect, sniff_version};
pub use decode::{Packet, decode};
pub use disconnect::{Auth, Disconnect};
pub use error::{DecodeError, EncodeError};
pub use extras::PeerLimits;
pub use frame::{Frame, Header};
pub use property::{PayloadFormat, Property, PropertyId, UserProperties, UserPropertyIter};
pub use publish::{
    Publish, PublishProperties, PublishPropertiesBuf, decode_publish, refused_publish,
};
pub use publish_encode::{PublishHeader, TopicAlias, encode_publish, encode_publish_beginning};
pub use reason::ReasonCode;
pub use suback::{SubAck, UnsubAck};
pub use subscribe::{FilterRequest, Filters, Subscribe};
pub use types::{
    MAX_FIELD_LENGTH, MAX_PACKET_SIZE, MAX_REMAINING_LENGTH, PacketId, PacketType, QoS,
    RetainHandling, SubscriptionOptions, Version,
};
pub use unsubscribe::{Unsubscribe, UnsubscribeFilters};
