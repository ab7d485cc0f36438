//! All bytes of MQTT: 3.1, 3.1.1 and 5.0, every packet, both directions. Nothing outside this module knows them.
//!
//! It is sans-io: bytes in, borrowed packets out; packets in, bytes out. It keeps no state between packets, so what only
//! a session can judge (an alias in use, a receive maximum, an expiry changed from zero) is not judged here.
//!
//! From the read buffer to a packet: [`frame::next`] cuts one packet off and applies the size limit;
//! [`decode_connect`] reads the first one and finds the version; [`decode`] reads every other one. What they return
//! borrows the read buffer: copy out what is to be kept.
//!
//! Towards the client: [`encode`] writes the packets of a server into an output buffer; [`PublishTemplate`] holds a
//! message that goes to many subscribers. The client's role is in [`client`]; it shares all field readers and writers.

mod ack;
pub mod check;
pub mod client;
mod connack;
mod connect;
mod decode;
mod disconnect;
pub mod encode;
mod error;
pub mod frame;
mod property;
mod publish;
mod read;
mod reason;
mod suback;
mod subscribe;
mod template;
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
pub use encode::PeerLimits;
pub use error::{DecodeError, EncodeError};
pub use frame::{Frame, Header};
pub use property::{PayloadFormat, Property, PropertyId, UserProperties, UserPropertyIter};
pub use publish::{
    Publish, PublishProperties, PublishPropertiesBuf, decode_publish, refused_publish,
};
pub use reason::ReasonCode;
pub use suback::{SubAck, UnsubAck};
pub use subscribe::{FilterRequest, Filters, Subscribe};
pub use template::{PublishHeader, PublishTemplate, TopicAlias, encode_publish};
pub use types::{
    MAX_FIELD_LENGTH, MAX_PACKET_SIZE, MAX_REMAINING_LENGTH, PacketId, PacketType, QoS,
    RetainHandling, SubscriptionOptions, Version,
};
pub use unsubscribe::{Unsubscribe, UnsubscribeFilters};
