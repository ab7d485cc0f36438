//! The MQTT front end: sockets and packets on one side, commands, reads and routes on the other.
//!
//! Only [`codec`] knows the bytes of the protocol. A connection is one task; what it decides is in [`connection`],
//! apart from the socket.

pub mod broker;
pub mod codec;
pub mod connection;
pub mod listener;
pub mod sys;
