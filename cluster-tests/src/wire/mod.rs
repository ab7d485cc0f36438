//! MQTT's bytes, both ways, written for the tests alone and as close to the standard's tables as possible.
//!
//! Must not share anything with the broker's codec. Encoders put on the wire what they are told to, right or wrong;
//! decoders are strict and panic-free, because what they read is what is being judged.

mod decode;
mod encode;
mod property;

pub use decode::{
    Ack, Connack, Disconnect, Packet, Publish, Suback, decode_packet, split_properties, take_frame,
};
pub use encode::*;
pub use property::{Properties, V5, V31, V311, Value, id};
