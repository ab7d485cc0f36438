//! Why a client is refused, as it is told and as the log is.

use std::borrow::Cow;

use crate::codec::ReasonCode;

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// A code that both CONNACK and DISCONNECT may carry.
    pub reason: ReasonCode,
    /// Half a sentence for the client that gives nothing away.
    pub text: &'static str,
    /// Half a sentence for the log, without secrets.
    pub detail: Cow<'static, str>,
}

impl Denial {
    /// The client has not proved who it is.
    pub fn new(detail: impl Into<Cow<'static, str>>) -> Denial {
        Denial {
            reason: ReasonCode::NotAuthorized,
            text: "the client is not authenticated",
            detail: detail.into(),
        }
    }

    /// The client and the log are told the same.
    pub const fn plain(reason: ReasonCode, text: &'static str) -> Denial {
        Denial {
            reason,
            text,
            detail: Cow::Borrowed(text),
        }
    }

    /// Nothing is known of the client, because this node has too much to do: it may come again.
    pub const fn busy(detail: &'static str) -> Denial {
        Denial {
            reason: ReasonCode::ServerBusy,
            text: "too many clients log in at once",
            detail: Cow::Borrowed(detail),
        }
    }
}
