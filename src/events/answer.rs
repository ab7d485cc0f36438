//! What follows from the end of a request: from a status, or from why there is none.
//!
//! Invariant: every status has a consequence. One that is not named here counts as a fault of the event, so it is
//! parked, and never lost.

use super::schedule::LONGEST_RETRY_AFTER_MS;

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An answer with this status; what it asks for with `Retry-After`, milliseconds.
    Status(u16, Option<u64>),
    /// There was no answer in time, although the request was sent.
    TimedOut,
    /// The host's name has no address.
    Unresolved,
    /// There was no connection, in time or at all, or TLS failed: nothing of the request was sent.
    Unreached,
    /// The connection broke before the whole answer was there.
    Broken,
    /// The request was not made: its addresses are refused, a secret is missing, a file can't be used.
    Unable,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// All events of the request are delivered.
    Delivered,
    /// The events are at fault and will be for ever: a batch is cut to single events, a single one is a dead letter.
    Refused,
    /// An event may be at fault: a batch is cut to its first event, a single one is parked.
    Suspect,
    /// The endpoint is down, or set up wrongly: it is asked again later, at the earliest after so many milliseconds if
    /// it has said so.
    Down(Option<u64>),
    /// The endpoint has got the request and has not answered: it is down, or an event of the request is more than it
    /// can take. A batch is cut to its first event. A single one is at fault if others are answered; so others get
    /// their turn. The endpoint is asked again later in any case.
    Unanswered,
    /// The endpoint is gone for good.
    Gone,
}

macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $of:literal])+ $variant:ident = $number:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[doc = $of])+ $variant = $number,)+
        }

        impl $name {
            /// As it stands in a dead letter.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => stringify!($variant),)+
                }
            }

            /// As it stands in a row.
            pub fn number(self) -> u32 {
                self as u32
            }

            /// All of them, in the order of their numbers.
            pub const ALL: [$name; [$($number,)+].len()] = [$($name::$variant,)+];

            /// The inverse of `number`.
            pub fn from_number(number: u32) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.number() == number)
            }
        }
    };
}

words! {
    /// How the last attempt has ended. The words are those of Event Grid, the numbers are on disk.
    Outcome {
        /// 2xx.
        Delivered = 1,
        /// The endpoint does not understand the events.
        BadRequest = 2,
        /// The endpoint asks for a proof of who sends.
        Unauthorized = 3,
        /// The endpoint refuses who sends.
        Forbidden = 4,
        /// There is no such endpoint.
        NotFound = 5,
        /// The request is too large.
        PayloadTooLarge = 6,
        /// The endpoint has too much to do, or is not there behind its gateway.
        Busy = 7,
        /// There was no answer in time.
        TimedOut = 8,
        /// There was no connection, or it broke.
        SocketError = 9,
        /// The host's name has no address.
        ResolutionError = 10,
        /// Everything else.
        Aborted = 11,
    }
}

words! {
    /// Why an event is a dead letter. The words are those of Event Grid, the last one is ours; the numbers are on disk.
    DeathReason {
        /// All attempts have failed.
        MaxDeliveryAttemptsExceeded = 1,
        /// It is too old.
        TimeToLiveExceeded = 2,
        /// The endpoint has said that it will never take it.
        NotRetried = 3,
    }
}

impl End {
    /// What follows.
    pub fn consequence(self) -> Consequence {
        let End::Status(status, retry_after) = self else {
            return match self {
                End::TimedOut | End::Broken => Consequence::Unanswered,
                _ => Consequence::Down(None),
            };
        };
        match status {
            200..=204 => Consequence::Delivered,
            400 | 413 | 415 => Consequence::Refused,
            429 | 503 => Consequence::Down(retry_after.map(|ms| ms.min(LONGEST_RETRY_AFTER_MS))),
            300..=399 | 401 | 403 | 404 | 405 | 407 | 408 | 502 | 504 => Consequence::Down(None),
            410 => Consequence::Gone,
            _ => Consequence::Suspect,
        }
    }

    /// Whether the endpoint itself has answered, whatever it said. A gateway before it answers in its place while it is
    /// not there or has too much to do, and that says nothing of what the endpoint would have said.
    pub fn is_from_endpoint(self) -> bool {
        match self {
            End::Status(status, _) => !matches!(status, 408 | 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// What is told of it.
    pub fn outcome(self) -> Outcome {
        match self {
            End::Status(200..=204, _) => Outcome::Delivered,
            End::Status(400 | 415, _) => Outcome::BadRequest,
            End::Status(401 | 407, _) => Outcome::Unauthorized,
            End::Status(403, _) => Outcome::Forbidden,
            End::Status(404 | 405 | 410, _) => Outcome::NotFound,
            End::Status(413, _) => Outcome::PayloadTooLarge,
            End::Status(429 | 502 | 503, _) => Outcome::Busy,
            End::Status(408 | 504, _) | End::TimedOut => Outcome::TimedOut,
            End::Unreached | End::Broken => Outcome::SocketError,
            End::Unresolved => Outcome::ResolutionError,
            End::Status(..) | End::Unable => Outcome::Aborted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_consequence() {
        let cases: [(&[u16], Consequence); 6] = [
            (&[200, 201, 202, 203, 204], Consequence::Delivered),
            (&[400, 413, 415], Consequence::Refused),
            (
                &[401, 403, 404, 405, 407, 301, 302, 307, 308],
                Consequence::Down(None),
            ),
            (&[408, 429, 502, 503, 504], Consequence::Down(None)),
            (&[410], Consequence::Gone),
            (
                &[500, 501, 205, 206, 402, 409, 418, 422, 505, 599, 100, 999],
                Consequence::Suspect,
            ),
        ];
        for (statuses, consequence) in cases {
            for status in statuses {
                let end = End::Status(*status, None);
                assert_eq!(end.consequence(), consequence, "{status}");
            }
        }
        for end in [End::Unreached, End::Unresolved, End::Unable] {
            assert_eq!(end.consequence(), Consequence::Down(None), "{end:?}");
        }
        for end in [End::TimedOut, End::Broken] {
            assert_eq!(end.consequence(), Consequence::Unanswered, "{end:?}");
        }
    }

    #[test]
    fn who_is_busy_or_not_there_has_not_answered_itself() {
        for status in [408, 429, 502, 503, 504] {
            assert!(!End::Status(status, None).is_from_endpoint(), "{status}");
        }
        for status in [200, 204, 301, 400, 401, 403, 404, 405, 410, 500, 501] {
            assert!(End::Status(status, None).is_from_endpoint(), "{status}");
        }
        for end in [End::TimedOut, End::Broken, End::Unreached, End::Unable] {
            assert!(!end.is_from_endpoint(), "{end:?}");
        }
    }

    #[test]
    fn words_are_found_by_their_numbers() {
        for number in 0..20 {
            let outcome = Outcome::from_number(number);
            assert!(outcome.is_none_or(|outcome| outcome.number() == number));
            let reason = DeathReason::from_number(number);
            assert!(reason.is_none_or(|reason| reason.number() == number));
        }
        assert_eq!(Outcome::from_number(11), Some(Outcome::Aborted));
        assert_eq!(DeathReason::NotRetried.as_str(), "NotRetried");
    }

    #[test]
    fn only_who_is_busy_may_ask_for_a_pause_and_for_an_hour_at_most() {
        for (status, asked, granted) in [
            (429, 5_000, Some(5_000)),
            (503, 5_000, Some(5_000)),
            (503, u64::MAX, Some(LONGEST_RETRY_AFTER_MS)),
            (408, 5_000, None),
            (301, 5_000, None),
        ] {
            assert_eq!(
                End::Status(status, Some(asked)).consequence(),
                Consequence::Down(granted),
                "{status}"
            );
        }
    }
}
