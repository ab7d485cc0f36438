//! Why a client is refused, as it is told and as the log is.

use std::borrow::Cow;

use super::Method;
use crate::codec::ReasonCode;

/// What a client that is refused may have tried to guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// Nothing: it may come again.
    Nothing,
    /// A credential that stands for itself, like a token. Whatever name the client gives says nothing about it.
    Credential,
    /// The password that belongs to the name which it gives.
    Password,
}

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// A code that both CONNACK and DISCONNECT may carry.
    pub reason: ReasonCode,
    /// Half a sentence for the client that gives nothing away.
    pub text: &'static str,
    /// Half a sentence for the log, without secrets.
    pub detail: Cow<'static, str>,
    /// What is counted of it. It does not depend on `reason`: a node that may be behind refuses nobody for good, and
    /// counts all the same.
    pub guess: Guess,
}

impl Denial {
    /// The client has not proved who it is.
    pub fn new(detail: impl Into<Cow<'static, str>>) -> Denial {
        Denial {
            reason: ReasonCode::NotAuthorized,
            text: "the client is not authenticated",
            detail: detail.into(),
            guess: Guess::Credential,
        }
    }

    /// The client and the log are told the same.
    pub const fn plain(reason: ReasonCode, text: &'static str) -> Denial {
        Denial {
            reason,
            text,
            detail: Cow::Borrowed(text),
            guess: match reason {
                ReasonCode::NotAuthorized => Guess::Credential,
                _ => Guess::Nothing,
            },
        }
    }

    /// Nothing is known of the client, because what would tell it can't be asked now: it may come again, and has not
    /// tried to guess anything.
    pub fn unavailable(detail: impl Into<Cow<'static, str>>) -> Denial {
        Denial {
            reason: ReasonCode::ServerBusy,
            text: "who the client is can't be told at the moment",
            detail: detail.into(),
            guess: Guess::Nothing,
        }
    }

    /// Nothing is known of the client, because this node has too much to do: it may come again.
    pub const fn busy(detail: &'static str) -> Denial {
        Denial {
            reason: ReasonCode::ServerBusy,
            text: "too many clients log in at once",
            detail: Cow::Borrowed(detail),
            guess: Guess::Nothing,
        }
    }

    /// Whether the client is told that it need not come again as it is.
    pub fn is_final(&self) -> bool {
        let codes = [ReasonCode::NotAuthorized, ReasonCode::BadUserNameOrPassword];
        codes.contains(&self.reason)
    }

    /// As a method refuses a client.
    pub(super) fn of(self, method: Method) -> Denial {
        match self.guess {
            Guess::Credential if method.asks_for_password() => Denial {
                guess: Guess::Password,
                ..self
            },
            _ => self,
        }
    }
}
