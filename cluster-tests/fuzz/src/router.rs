//! What a forwarded message is decoded to.

#[path = "../../../src/router/message.rs"]
mod message;

pub use message::{Message, Recipients};
