//! What sessions of TLS know of who is at the other end.

#![allow(dead_code)]

#[path = "../../../src/transport/peer.rs"]
pub mod peer;
