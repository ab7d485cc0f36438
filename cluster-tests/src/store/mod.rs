//! A state store client: requests as PUBLISHes to the invoke topic, answers on a response topic, notifications.
//!
//! Invariant: a request whose answer did not come is [`CallOutcome::Unknown`], never failed: it may have been executed.

mod client;
mod hlc;
mod notification;
mod request;

pub use client::{INVOKE, StoreClient};
pub use hlc::Hlc;
pub use notification::{Notification, hex};
pub use request::{Request, blob, resp};

use crate::wire::Publish;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub payload: Vec<u8>,
    /// `__ts`.
    pub version: Option<Hlc>,
    pub publish: Publish,
}

impl Reply {
    fn read(publish: Publish) -> Self {
        let version = publish
            .properties
            .user_values("__ts")
            .first()
            .and_then(|text| Hlc::parse(text));
        Self {
            payload: publish.payload.clone(),
            version,
            publish,
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    Answered(Reply),
    /// A PUBACK with a failing code: not executed.
    Refused(u8),
    /// No connection: not executed.
    NotSent,
    /// No answer: executed or not.
    Unknown,
}
