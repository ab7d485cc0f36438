//! The errors a client of the state store sees, in the words its libraries compare with.

/// A refused request. `Display` gives the text after `-ERR `, verbatim (docs/spec/state-store.md, Errors).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum StoreError {
    /// The request's `__ts` is more than a minute ahead of the store's clock.
    #[error(
        "the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
    )]
    TimestampTooFarAhead = 1,
    /// The key is protected and the request has no `__ft`.
    #[error("a fencing token is required for this request")]
    FencingTokenRequired = 2,
    /// The request's `__ft` is more than a minute ahead of the store's clock.
    #[error(
        "the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized"
    )]
    FencingTokenTooFarAhead = 3,
    /// The request's `__ft` is lower than the token that protects the key.
    #[error(
        "the request fencing token is a lower version than the fencing token protecting the resource"
    )]
    FencingTokenLower = 4,
    /// The change would exceed the number of keys or bytes allowed.
    #[error("the quota has been exceeded")]
    QuotaExceeded = 5,
    /// The payload is no request, or an option is unknown, repeated or contradictory.
    #[error("syntax error")]
    Syntax = 6,
    /// The client may not do this to this key.
    #[error("not authorized")]
    NotAuthorized = 7,
    /// The first argument is no verb.
    #[error("unknown command")]
    UnknownCommand = 8,
    /// The verb takes another number of arguments.
    #[error("wrong number of arguments")]
    WrongNumberOfArguments = 9,
    /// A SET without `__ts`.
    #[error("missing timestamp")]
    MissingTimestamp = 10,
    /// `__ts` or `__ft` is no timestamp.
    #[error("malformed timestamp")]
    MalformedTimestamp = 11,
    /// The key is empty.
    #[error("the key length is zero")]
    EmptyKey = 12,
    /// The client accepts no packet as large as the answer.
    #[error("the answer is larger than the client's maximum packet size")]
    AnswerTooLarge = 13,
}

impl StoreError {
    /// Every error, in the order of their numbers.
    pub const ALL: [StoreError; 13] = [
        StoreError::TimestampTooFarAhead,
        StoreError::FencingTokenRequired,
        StoreError::FencingTokenTooFarAhead,
        StoreError::FencingTokenLower,
        StoreError::QuotaExceeded,
        StoreError::Syntax,
        StoreError::NotAuthorized,
        StoreError::UnknownCommand,
        StoreError::WrongNumberOfArguments,
        StoreError::MissingTimestamp,
        StoreError::MalformedTimestamp,
        StoreError::EmptyKey,
        StoreError::AnswerTooLarge,
    ];

    /// The number under which a remembered reply keeps this error; it is for ever.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The error of a number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.number() == number)
    }
}
