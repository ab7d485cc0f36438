//! What calls know of the other end of their connection.

#[path = "../../../src/peers/info.rs"]
mod info;

pub use info::PeerInfo;
