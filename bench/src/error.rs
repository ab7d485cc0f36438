//! What can go wrong with one connection.

use std::io;

use quorumq::codec::{DecodeError, EncodeError, ReasonCode};

/// What went wrong with a connection.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The socket failed.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// The server refused.
    #[error("refused: {}", .0.name())]
    Refused(ReasonCode),
    /// The server sent something unexpected.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// What was to be sent fits no packet.
    #[error("cannot be sent: {0}")]
    Encode(#[from] EncodeError),
}

impl From<DecodeError> for BenchError {
    fn from(error: DecodeError) -> BenchError {
        BenchError::Protocol(error.text().to_owned())
    }
}
