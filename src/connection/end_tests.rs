//! Each way a connection can end: what its client is told, what its event says, whether its will is published.

use super::*;
use crate::codec::{Disconnect, PeerLimits, Version, encode};
use crate::telemetry::cells::Label as _;
use DisconnectionReason as Event;

/// What the server ends connections for.
const ENDS: [End; 14] = [
    End::Machine(EndReason::TakenOver),
    End::Machine(EndReason::Administrative),
    End::Machine(EndReason::QueueFull),
    End::Machine(EndReason::IdentityRevoked),
    End::Unavailable,
    End::ShuttingDown,
    End::OutboxFull,
    End::AnswerTooLarge,
    End::ConnectionMemory,
    End::NodeMemory,
    End::Revoked,
    End::Changed,
    End::Banned,
    End::AddressBanned,
];

/// What is expected of the server's ends: the event, and what an MQTT 5 client is told. A new one does not compile
/// without.
fn expected(end: End) -> (Event, u8) {
    match end {
        End::Machine(EndReason::TakenOver) => (Event::SessionTakenOver, 0x8e),
        End::Machine(EndReason::Administrative) => (Event::ServerInitiatedDisconnect, 0x98),
        End::Machine(EndReason::QueueFull) => (Event::SessionOverflow, 0x97),
        End::Unavailable => (Event::ServerError, 0x9c),
        End::ShuttingDown => (Event::ServerInitiatedDisconnect, 0x8b),
        End::OutboxFull => (Event::SessionOverflow, 0x97),
        End::AnswerTooLarge => (Event::ClientError, 0x95),
        End::ConnectionMemory | End::NodeMemory => (Event::QuotaExceeded, 0x97),
        End::Machine(EndReason::IdentityRevoked) | End::Revoked | End::Changed => {
            (Event::ClientAuthenticationError, 0x87)
        }
        End::Banned => (Event::ServerInitiatedDisconnect, 0x98),
        End::AddressBanned => (Event::IpForbidden, 0x87),
    }
}

#[test]
fn every_end_of_the_server_has_its_event_and_tells_the_client() {
    for end in ENDS {
        let ended = Ended::from(end);
        let told = ended.reason.expect("the client is told");
        assert_eq!((ended.event, told as u8), expected(end), "{end:?}");
        // Who may not connect any more does not speak through its will either.
        let barred = matches!(end, End::Revoked | End::Banned | End::AddressBanned);
        assert_eq!(ended.discard_will, barred, "{end:?}");
    }
}

/// [MQTT-3.14.2-1]: the codec refuses a reason code that DISCONNECT does not have.
#[test]
fn every_end_has_a_disconnect() {
    for end in ENDS {
        let reason = Ended::from(end).reason.expect("the client is told");
        let packet = Disconnect::new(reason);
        let written = encode::disconnect(&mut Vec::new(), Version::V5, &packet, PeerLimits::NONE);
        assert!(written.is_ok(), "{end:?}: {written:?}");
    }
}

/// The labels of the metrics and the reasons of the events are two views of the same ends.
#[test]
fn every_cause_has_its_event() {
    for cause in DisconnectReason::ALL {
        let expected = match cause.as_str() {
            "client" => Event::ClientInitiatedDisconnect,
            "network" | "keep_alive" => Event::ConnectionLost,
            "malformed" | "protocol" | "packet_too_large" | "receive_maximum" => Event::ClientError,
            "taken_over" => Event::SessionTakenOver,
            "slow_consumer" => Event::SessionOverflow,
            "no_leader" => Event::ServerError,
            "shutdown" | "administrative" => Event::ServerInitiatedDisconnect,
            "not_authenticated" => Event::ClientAuthenticationError,
            "not_authorized" => Event::ClientAuthorizationError,
            "connection_memory" | "node_memory" => Event::QuotaExceeded,
            // What the leader refuses of this node's making.
            "refused" => Event::ServerError,
            // Before the session is open: there is no event.
            "connect_timeout" | "transport" => Event::ClientError,
            "too_many" => Event::QuotaExceeded,
            other => panic!("{other} has no event"),
        };
        assert_eq!(Ended::close(*cause, "").event, expected, "{cause:?}");
    }
}

#[test]
fn what_the_client_does_has_its_event() {
    for (ended, event, told) in [
        (Ended::network(), Event::ConnectionLost, None),
        (
            Ended::of_stream(StreamEnd::Lost),
            Event::ConnectionLost,
            None,
        ),
        (
            Ended::of_stream(StreamEnd::Closed),
            Event::ClientInitiatedDisconnect,
            None,
        ),
        (
            Ended::of_stream(StreamEnd::Violated),
            Event::ClientError,
            None,
        ),
        (Ended::protocol(""), Event::ClientError, Some(0x82)),
        (Ended::receive_maximum(), Event::ClientError, Some(0x93)),
        (
            Ended::from(DecodeError::ResponseTopicInvalid),
            Event::ClientError,
            Some(0x82),
        ),
        (Ended::fault(), Event::ServerError, None),
        (Ended::undecodable(), Event::ServerError, Some(0x83)),
        (
            Ended::not_authorized(""),
            Event::ClientAuthorizationError,
            Some(0x87),
        ),
        (
            Ended::not_authenticated(ReasonCode::NotAuthorized, ""),
            Event::ClientAuthenticationError,
            Some(0x87),
        ),
        (Ended::quota_exceeded(""), Event::QuotaExceeded, Some(0x97)),
    ] {
        let found = (ended.event, ended.reason.map(|reason| reason as u8));
        assert_eq!(found, (event, told), "{ended:?}");
        assert!(!ended.discard_will, "the will is published");
    }
}

#[test]
fn who_is_revoked_or_banned_leaves_no_will() {
    for end in [End::Revoked, End::Banned, End::AddressBanned] {
        assert!(Ended::from(end).discard_will, "{end:?}");
    }
    for end in [End::OutboxFull, End::ShuttingDown, End::Unavailable] {
        assert!(!Ended::from(end).discard_will, "{end:?}");
    }
}
