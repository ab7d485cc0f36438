//! Why a connection ends, and what its client is told.

use crate::codec::{DecodeError, ReasonCode};
use crate::events::DisconnectionReason;
use crate::machine::effect::EndReason;
use crate::mailbox::End;
use crate::telemetry::labels::DisconnectReason;
use crate::transport::StreamEnd;

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// For the metrics and the log.
    pub(super) cause: DisconnectReason,
    /// The reason code of the DISCONNECT for an MQTT 5 client; `None` when the socket is closed without one.
    pub(super) reason: Option<ReasonCode>,
    /// Half a sentence for the log and for the client's reason string.
    pub(super) text: &'static str,
    /// The will is dropped: the client sent DISCONNECT 0x00 `[MQTT-3.14.4-3]`, or it is not the client's to publish any
    /// more, because it was revoked or banned, or because the rules forbid it.
    pub(super) discard_will: bool,
    /// What its event says.
    pub(super) event: DisconnectionReason,
}

/// What the event of a connection says that has ended for a cause, unless the end [knows better](Ended::because). Some
/// causes end connections only before their session is open: nobody hears of those.
const fn event_of(cause: DisconnectReason) -> DisconnectionReason {
    use DisconnectReason as Cause;
    use DisconnectionReason as Reason;
    match cause {
        Cause::Client => Reason::ClientInitiatedDisconnect,
        Cause::Network | Cause::KeepAlive => Reason::ConnectionLost,
        Cause::TakenOver => Reason::SessionTakenOver,
        Cause::Malformed
        | Cause::Protocol
        | Cause::PacketTooLarge
        | Cause::ReceiveMaximum
        | Cause::ConnectTimeout
        | Cause::Transport => Reason::ClientError,
        Cause::NotAuthenticated => Reason::ClientAuthenticationError,
        Cause::NotAuthorized => Reason::ClientAuthorizationError,
        Cause::ConnectionMemory | Cause::NodeMemory | Cause::TooMany => Reason::QuotaExceeded,
        Cause::SlowConsumer => Reason::SessionOverflow,
        Cause::Shutdown | Cause::Administrative => Reason::ServerInitiatedDisconnect,
        Cause::NoLeader | Cause::Refused => Reason::ServerError,
    }
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
            event: event_of(cause),
        }
    }

    /// The connection ends without a DISCONNECT: the client or the network ended it, or a CONNACK says why.
    pub(super) const fn close(cause: DisconnectReason, text: &'static str) -> Ended {
        Ended {
            cause,
            reason: None,
            text,
            discard_will: false,
            event: event_of(cause),
        }
    }

    /// The same end; its event says something else than its cause alone would.
    pub(super) const fn because(self, event: DisconnectionReason) -> Ended {
        Ended { event, ..self }
    }

    /// The client's side of the stream has ended, without a DISCONNECT: the will is published, however it ended.
    pub(super) const fn of_stream(end: StreamEnd) -> Ended {
        match end {
            StreamEnd::Lost => Ended::network(),
            StreamEnd::Closed => {
                let text = "the client closed its WebSocket without a DISCONNECT";
                Ended::close(DisconnectReason::Client, text)
            }
            StreamEnd::Violated => {
                let text = "the client broke the rules of WebSocket";
                Ended::close(DisconnectReason::Protocol, text)
            }
        }
    }

    /// More is stored or would be stored than there may be, and this client can't be told otherwise.
    pub(super) const fn quota_exceeded(text: &'static str) -> Ended {
        let reason = ReasonCode::QuotaExceeded;
        Ended::disconnect(DisconnectReason::Refused, reason, text)
            .because(DisconnectionReason::QuotaExceeded)
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

    /// The connection's own task has failed. Nobody is there to tell the client.
    pub(super) const fn fault() -> Ended {
        let text = "a fault of this node";
        Ended::close(DisconnectReason::Refused, text).because(DisconnectionReason::ServerError)
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

    /// An operator has banned the address that the client has.
    const fn address_banned() -> Ended {
        let text = "an operator has banned the client's address";
        Ended::disconnect(
            DisconnectReason::Administrative,
            ReasonCode::NotAuthorized,
            text,
        )
        .because(DisconnectionReason::IpForbidden)
        .without_will()
    }

    /// An end of a connection that leaves no will.
    #[must_use]
    pub(super) const fn without_will(self) -> Ended {
        Ended {
            discard_will: true,
            ..self
        }
    }

    /// What the client has proved who it is with is not what it was.
    const fn changed() -> Ended {
        Ended::disconnect(
            DisconnectReason::NotAuthenticated,
            ReasonCode::NotAuthorized,
            "what the client has proved who it is with has changed or is gone",
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
            End::Machine(EndReason::IdentityRevoked) => Ended::disconnect(
                Cause::NotAuthenticated,
                ReasonCode::NotAuthorized,
                "the identity of the client has changed or is gone",
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
                "the client reads more slowly than messages for it come",
            ),
            End::AnswerTooLarge => Ended::disconnect(
                Cause::PacketTooLarge,
                ReasonCode::PacketTooLarge,
                "the answer to a request is larger than the client accepts",
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
            End::Revoked => Ended::changed().without_will(),
            End::Changed => Ended::changed(),
            // DISCONNECT has no 0x8A `[MQTT-3.14.2-1]`.
            End::Banned => Ended::disconnect(
                Cause::Administrative,
                ReasonCode::AdministrativeAction,
                "an operator has banned the client",
            )
            .without_will(),
            End::AddressBanned => Ended::address_banned(),
        }
    }
}

#[cfg(test)]
#[path = "end_tests.rs"]
mod tests;
