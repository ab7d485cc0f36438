//! A CONNECT that is refused.

use super::end::Ended;
use crate::codec::{
    ConnAck, ConnAckProperties, DecodeError, PeerLimits, ReasonCode, Version, encode, frame,
    sniff_version,
};
use crate::telemetry::labels::DisconnectReason;

/// Why a node without a quorum turns clients away.
pub(super) const NO_QUORUM: &str = "this node has no contact with the cluster's majority";

/// Why nothing more is stored.
pub(super) const DISK_LOW: &str = "a disk of the cluster is nearly full: nothing more is stored";

/// The last packet for the client, and why its connection ends.
pub(super) struct Refusal {
    /// CONNACK, or nothing.
    pub(super) packet: Vec<u8>,
    pub(super) ended: Ended,
}

impl Refusal {
    /// Refuses without an answer.
    pub(super) fn silent(ended: Ended) -> Refusal {
        Refusal {
            packet: Vec::new(),
            ended: Ended {
                reason: None,
                ..ended
            },
        }
    }

    /// Refuses with a CONNACK. `limits` are the client's, where its CONNECT could be read `[MQTT-3.2.2-19]`.
    pub(super) fn connack(
        limits: PeerLimits,
        version: Option<Version>,
        reason: ReasonCode,
        text: &'static str,
    ) -> Refusal {
        let mut packet = Vec::new();
        // A protocol that is not ours gets the answer of the oldest version that has one `[MQTT-3.1.2-2]`.
        let version = version.unwrap_or(Version::V311);
        let properties = ConnAckProperties {
            reason_string: Some(text),
            ..ConnAckProperties::default()
        };
        let connack = ConnAck {
            properties,
            ..ConnAck::refused(reason)
        };
        // Some reasons have no MQTT 3 return code: the socket is closed without an answer.
        let _ = encode::connack(&mut packet, version, &connack, limits);
        Refusal {
            packet,
            ended: Ended::close(DisconnectReason::Refused, text),
        }
    }

    /// Refuses a client that is not who it says it is, or does not show it.
    pub(super) fn not_authenticated(
        limits: PeerLimits,
        version: Version,
        reason: ReasonCode,
        text: &'static str,
    ) -> Refusal {
        Refusal {
            ended: Ended::close(DisconnectReason::NotAuthenticated, text),
            ..Refusal::connack(limits, Some(version), reason, text)
        }
    }

    /// Refuses a CONNECT that can't be decoded.
    pub(super) fn malformed(found: frame::Frame<'_>, error: DecodeError) -> Refusal {
        if error == DecodeError::FirstPacketNotConnect {
            return Refusal::not_connect();
        }
        let version = sniff_version(found);
        let refusal = Refusal::connack(PeerLimits::NONE, version, error.reason(), error.text());
        Refusal {
            ended: Ended::from(error),
            ..refusal
        }
    }

    /// The first packet is another one `[MQTT-3.1.0-1]`. There is no answer: this may not be MQTT at all.
    pub(super) fn not_connect() -> Refusal {
        let text = DecodeError::FirstPacketNotConnect.text();
        Refusal::silent(Ended::close(DisconnectReason::Protocol, text))
    }
}
