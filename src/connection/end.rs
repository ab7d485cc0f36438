//! Why a connection ends, and what its client is told.

use crate::codec::{DecodeError, ReasonCode};
use crate::machine::effect::EndReason;
use crate::mailbox::End;
use crate::telemetry::labels::DisconnectReason;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// For the metrics and the log.
    pub cause: DisconnectReason,
    /// What is sent to an MQTT 5 client before the socket is closed; `None` when nothing is.
    pub tell: Option<ReasonCode>,
    /// Half a sentence for the log and for the client's reason string.
    pub text: &'static str,
    /// The client sent DISCONNECT 0x00: its will is dropped `[MQTT-3.14.4-3]`.
    pub discard_will: bool,
}

impl Ended {
    /// The server ends it and tells the client why.
    pub const fn told(cause: DisconnectReason, reason: ReasonCode, text: &'static str) -> Ended {
        Ended {
            cause,
            tell: Some(reason),
            text,
            discard_will: false,
        }
    }

    /// The client or the network ended it.
    pub const fn silent(cause: DisconnectReason, text: &'static str) -> Ended {
        Ended {
            cause,
            tell: None,
            text,
            discard_will: false,
        }
    }

    /// A protocol error of the client.
    pub const fn protocol(text: &'static str) -> Ended {
        Ended::told(DisconnectReason::Protocol, ReasonCode::ProtocolError, text)
    }
}

impl From<DecodeError> for Ended {
    fn from(error: DecodeError) -> Ended {
        let cause = match error.reason() {
            ReasonCode::PacketTooLarge => DisconnectReason::PacketTooLarge,
            ReasonCode::MalformedPacket => DisconnectReason::Malformed,
            _ => DisconnectReason::Protocol,
        };
        Ended::told(cause, error.reason(), error.text())
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Ended {
        use DisconnectReason as Cause;
        match end {
            End::Machine(EndReason::TakenOver) => Ended::told(
                Cause::TakenOver,
                ReasonCode::SessionTakenOver,
                "another connection took the session over",
            ),
            End::Machine(EndReason::Administrative) => Ended::told(
                Cause::Administrative,
                ReasonCode::AdministrativeAction,
                "an operator ended the session",
            ),
            End::Machine(EndReason::QueueFull) => Ended::told(
                Cause::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the session's queue was full, and its policy is to end the session",
            ),
            // DISCONNECT has no 0x88 `[MQTT-3.14.2-1]`: that is for the CONNACKs that follow.
            End::Unavailable => Ended::told(
                Cause::NoLeader,
                ReasonCode::UseAnotherServer,
                "this node has lost touch with the cluster's majority",
            ),
            End::ShuttingDown => Ended::told(
                Cause::Shutdown,
                ReasonCode::ServerShuttingDown,
                "this node is shutting down",
            ),
            End::OutboxFull => Ended::told(
                Cause::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the client reads more slowly than its subscriptions' messages come",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Disconnect, PeerLimits, Version, encode};

    /// [MQTT-3.14.2-1]: what DISCONNECT can't say would not be said at all.
    #[test]
    fn every_end_can_be_told() {
        for end in [
            End::Machine(EndReason::TakenOver),
            End::Machine(EndReason::Administrative),
            End::Machine(EndReason::QueueFull),
            End::Unavailable,
            End::ShuttingDown,
            End::OutboxFull,
        ] {
            let reason = Ended::from(end).tell.expect("the client is told");
            let packet = Disconnect::new(reason);
            let written =
                encode::disconnect(&mut Vec::new(), Version::V5, &packet, PeerLimits::NONE);
            assert!(written.is_ok(), "{end:?}: {written:?}");
        }
    }
}
