//! The client's errors, and what each means for the caller.

use crate::auth::scram::ServerError;
use crate::codec::client::Packet;
use crate::codec::{DecodeError, EncodeError, ReasonCode};

/// Why the client could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// None of the addresses accepted a connection.
    #[error("no server can be reached: {0}")]
    Unreachable(String),
    /// TLS was not agreed on.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection ended in the middle of something.
    #[error("the connection was closed: {0}")]
    Closed(String),
    /// A server said that it cannot serve at present: the cluster has no leader, or the server stops.
    #[error("the server cannot serve at present: {0}")]
    NoLeader(String),
    /// No answer in time.
    #[error("no answer within {0} s")]
    TimedOut(u64),
    /// The server refused it.
    #[error("refused: {} (0x{:02X}){}", reason.name(), *reason as u8, suffix(detail))]
    Refused {
        /// The reason code.
        reason: ReasonCode,
        /// The reason string, when the server sent one.
        detail: Option<String>,
    },
    /// The server sent something that is not MQTT.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// What was to be sent does not fit into a packet.
    #[error("cannot be sent: {0}")]
    Encode(#[from] EncodeError),
    /// The log-in failed on this side.
    #[error("cannot log in: {0}")]
    LogIn(String),
    /// The state store answered with something that is not an answer.
    #[error("the state store answered {0}")]
    Answer(String),
}

impl ClientError {
    /// Whether the request may succeed at another server, or at the same one a little later.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            ClientError::Unreachable(_) | ClientError::Closed(_) | ClientError::NoLeader(_)
        )
    }

    /// The error that an answer to CONNECT stands for when it is not an accepting CONNACK.
    pub(super) fn from_refusal(packet: &Packet<'_>) -> ClientError {
        match packet {
            Packet::ConnAck(ack) => {
                ClientError::from_reason(ack.reason, ack.properties.reason_string)
            }
            _ => ClientError::Protocol("the first packet is not CONNACK".into()),
        }
    }

    /// The error that a refusing reason code stands for.
    pub(super) fn from_reason(reason: ReasonCode, detail: Option<&str>) -> ClientError {
        match reason {
            ReasonCode::ServerUnavailable
            | ReasonCode::ServerBusy
            | ReasonCode::ServerShuttingDown => {
                ClientError::NoLeader(detail.unwrap_or(reason.name()).to_owned())
            }
            _ => ClientError::Refused {
                reason,
                detail: detail.map(str::to_owned),
            },
        }
    }
}

/// A reason string behind a colon.
fn suffix(detail: &Option<String>) -> String {
    let detail = detail.as_ref();
    detail.map(|text| format!(": {text}")).unwrap_or_default()
}

impl From<DecodeError> for ClientError {
    fn from(error: DecodeError) -> ClientError {
        ClientError::Protocol(error.text().to_owned())
    }
}

impl From<ServerError> for ClientError {
    fn from(error: ServerError) -> ClientError {
        ClientError::LogIn(error.to_string())
    }
}
