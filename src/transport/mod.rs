//! What carries MQTT between a client and this node: TCP or a Unix socket, with TLS, WebSocket and a PROXY header on
//! top where a listener says so.
//!
//! [`listening`] opens a listener's socket and accepts; what it accepts is an [`Incoming`] connection, which
//! [`Incoming::establish`] makes a [`Stream`] of bytes of MQTT: it reads the PROXY header and shakes hands. Nothing
//! here knows MQTT.
//!
//! Invariant: plain TCP costs what a bare socket costs: one branch per read and write, no buffer, no copy.

mod incoming;
mod layered;
mod listener;
mod listening;
mod peer;
mod proxy;
mod socket;
mod stream;
mod stream_end;
pub(crate) mod tls;
pub(crate) mod websocket;

#[cfg(test)]
mod tests;

pub(crate) use incoming::{Accepted, EstablishError, Incoming, Located};
pub(crate) use listener::{Listener, tls_of};
pub(crate) use listening::{Listening, listen};
pub(crate) use peer::{Peer, TlsPeer};
#[cfg(test)]
pub(crate) use socket::Socket;
pub(crate) use stream::Stream;
pub(crate) use stream_end::StreamEnd;
