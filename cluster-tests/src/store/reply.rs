//! Answers, and what becomes of requests.

use super::hlc::Hlc;
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
    /// Reads a PUBLISH to the response topic.
    pub(super) fn read(publish: Publish) -> Self {
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
