//! How streams end.

/// How the other end of a stream has ended it, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// The socket or TLS has ended, or nothing has.
    Lost,
    /// A WebSocket close frame has come.
    Closed,
    /// What came were no frames of WebSocket as they are to be.
    Violated,
}
