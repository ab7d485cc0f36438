//! The MQTT front end. Only [`codec`] knows the bytes of the protocol.

pub mod codec;
