//! Why a connection ends, and what its client is told.

use crate::codec::{DecodeError, ReasonCode};
use crate::machine::effect::EndReason;
use crate::mailbox::End;
use crate::telemetry::labels::DisconnectReason;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// For the metrics and the log.
    pub(super) cause: DisconnectReason,
    /// The reason code of the DISCONNECT for an MQTT 5 client; `None` when the socket is closed without one.
    pub(super) reason: Option<ReasonCode>,
    /// Half a sentence for the log and for the client's reason string.
    pub(super) text: &'static str,
    /// The client sent DISCONNECT 0x00: its will is dropped `[MQTT-3.14.4-3]`.
    pub(super) discard_will: bool,
}

impl Ended {
    /// The server ends the connection with a DISCONNECT.
    pub(super) const fn disconnect(
        cause: DisconnectReason,
        reason: ReasonCode,
        text: &'static str,
    ) -> Ended {
        Ended {
            cause,
            reason: Some(reason),
            text,
            discard_will: false,
        }
    }

    /// The connection ends without a DISCONNECT: the client or the network ended it, or a CONNACK says why.
    pub(super) const fn close(cause: DisconnectReason, text: &'static str) -> Ended {
        Ended {
            cause,
            reason: None,
            text,
            discard_will: false,
        }
    }

    /// The connection ends because too much is kept for its client, who gets none of it any more.
    pub(super) const fn is_for_memory(&self) -> bool {
        use DisconnectReason::{ConnectionMemory, NodeMemory, SlowConsumer};
        matches!(self.cause, SlowConsumer | ConnectionMemory | NodeMemory)
    }

    /// The socket is closed.
    pub(super) const fn network() -> Ended {
        let text = "the client or the network closed the connection";
        Ended::close(DisconnectReason::Network, text)
    }

    /// The client breaks the protocol.
    pub(super) const fn protocol(text: &'static str) -> Ended {
        Ended::disconnect(DisconnectReason::Protocol, ReasonCode::ProtocolError, text)
    }

    /// The client has more messages unacknowledged than it may `[MQTT-3.3.4-7]`.
    pub(super) const fn receive_maximum() -> Ended {
        Ended::disconnect(
            DisconnectReason::ReceiveMaximum,
            ReasonCode::ReceiveMaximumExceeded,
            "more messages are unacknowledged than the receive maximum allows",
        )
    }

    /// The leader has refused what this connection has proposed.
    pub(super) const fn undecodable() -> Ended {
        Ended::disconnect(
            DisconnectReason::Refused,
            ReasonCode::ImplementationSpecificError,
            "the cluster's leader can't decode what this node made of the packet; see the broker's log",
        )
    }

    /// The rules do not let the client do what it does, or stay.
    pub(super) const fn not_authorized(text: &'static str) -> Ended {
        Ended::disconnect(
            DisconnectReason::NotAuthorized,
            ReasonCode::NotAuthorized,
            text,
        )
    }

    /// The client is not who it says it is, or does not show it.
    pub(super) const fn not_authenticated(reason: ReasonCode, text: &'static str) -> Ended {
        Ended::disconnect(DisconnectReason::NotAuthenticated, reason, text)
    }
}

impl From<DecodeError> for Ended {
    fn from(error: DecodeError) -> Ended {
        let cause = match error.reason() {
            ReasonCode::PacketTooLarge => DisconnectReason::PacketTooLarge,
            ReasonCode::MalformedPacket => DisconnectReason::Malformed,
            _ => DisconnectReason::Protocol,
        };
        Ended::disconnect(cause, error.reason(), error.text())
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Ended {
        use DisconnectReason as Cause;
        match end {
            End::Machine(EndReason::TakenOver) => Ended::disconnect(
                Cause::TakenOver,
                ReasonCode::SessionTakenOver,
                "another connection took the session over",
            ),
            End::Machine(EndReason::Administrative) => Ended::disconnect(
                Cause::Administrative,
                ReasonCode::AdministrativeAction,
                "an operator ended the session",
            ),
            End::Machine(EndReason::QueueFull) => Ended::disconnect(
                Cause::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the session's queue was full, and its policy is to end the session",
            ),
            // DISCONNECT has no 0x88 `[MQTT-3.14.2-1]`: that is for the CONNACKs that follow.
            End::Unavailable => Ended::disconnect(
                Cause::NoLeader,
                ReasonCode::UseAnotherServer,
                "this node has lost contact with the cluster's majority",
            ),
            End::ShuttingDown => Ended::disconnect(
                Cause::Shutdown,
                ReasonCode::ServerShuttingDown,
                "this node is shutting down",
            ),
            End::OutboxFull => Ended::disconnect(
                Cause::SlowConsumer,
                ReasonCode::QuotaExceeded,
                "the client reads more slowly than its subscriptions' messages come",
            ),
            End::ConnectionMemory => Ended::disconnect(
                Cause::ConnectionMemory,
                ReasonCode::QuotaExceeded,
                "more is kept for the client than one connection may have",
            ),
            End::NodeMemory => Ended::disconnect(
                Cause::NodeMemory,
                ReasonCode::QuotaExceeded,
                "the server is short of memory, and this connection has much of it",
            ),
            End::Revoked => Ended::disconnect(
                Cause::NotAuthenticated,
                ReasonCode::NotAuthorized,
                "what the client has proved who it is with has changed or is gone",
            ),
            // DISCONNECT has no 0x8A `[MQTT-3.14.2-1]`.
            End::Banned => Ended::disconnect(
                Cause::Administrative,
                ReasonCode::AdministrativeAction,
                "an operator has banned the client",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Disconnect, PeerLimits, Version, encode};

    /// [MQTT-3.14.2-1]: the codec refuses a reason code that DISCONNECT does not have.
    #[test]
    fn every_end_has_a_disconnect() {
        for end in [
            End::Machine(EndReason::TakenOver),
            End::Machine(EndReason::Administrative),
            End::Machine(EndReason::QueueFull),
            End::Unavailable,
            End::ShuttingDown,
            End::OutboxFull,
            End::ConnectionMemory,
            End::NodeMemory,
            End::Revoked,
            End::Banned,
        ] {
            let reason = Ended::from(end).reason.expect("the client is told");
            let packet = Disconnect::new(reason);
            let written =
                encode::disconnect(&mut Vec::new(), Version::V5, &packet, PeerLimits::NONE);
            assert!(written.is_ok(), "{end:?}: {written:?}");
        }
    }
}
