//! MQTT over WebSocket (RFC 6455, MQTT 5.0 §6).
//!
//! The framing is our own, and small: a library would want a stream of its own with a buffer of its own for each
//! connection, and would collect each message before it gives it out. Here frames are unmasked where they were read,
//! and their bytes go on at once: MQTT packets need not fit frames `[MQTT-6.0.0-2]`. So whatever length a frame
//! announces, nothing is kept of it but its header.
//!
//! Invariant: a connection keeps a header, a control frame, and the answers to control frames, each bounded.

mod frames;
mod upgrade;

pub(crate) use frames::{Frames, Role};
pub(crate) use upgrade::{Policy, UpgradeError, answer, request};

/// Where devices and modules of a hub find it.
pub(crate) const HUB_PATH: &str = "/$iothub/websocket";

/// The subprotocol that both sides must name `[MQTT-6.0.0-3]` `[MQTT-6.0.0-4]`.
pub(crate) const SUBPROTOCOL: &str = "mqtt";
