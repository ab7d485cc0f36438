//! Why a command has no reply.

/// A command was not taken: too much is waiting to be proposed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many commands are waiting to be proposed")]
pub struct Overloaded;

/// Why the reply to a command that was proposed is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It was not proposed.
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    /// The node's incarnation ended before: nobody knows whether the command was applied.
    #[error("this node has no contact with the cluster's majority")]
    Lost,
}
