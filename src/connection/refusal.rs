//! A CONNECT that is refused.

use super::broker::NodeState;
use super::end::Ended;
use crate::auth::Denial;
use crate::codec::{
    ConnAck, ConnAckProperties, DecodeError, PeerLimits, ReasonCode, Version, encode, frame,
    sniff_version,
};
use crate::telemetry::labels::DisconnectReason;

/// Why a node without a quorum turns clients away.
pub(super) const NO_QUORUM: &str = "this node has no contact with the cluster's majority";

/// Why a node that stops turns clients away.
pub(super) const STOPPING: &str = "the server shuts down";

/// Why a node takes no clients.
pub(super) fn unavailable(state: &NodeState) -> &'static str {
    match state.is_draining() {
        true => STOPPING,
        false => NO_QUORUM,
    }
}

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
        denial: &Denial,
    ) -> Refusal {
        let Denial { reason, text, .. } = *denial;
        Refusal {
            ended: Ended::close(DisconnectReason::NotAuthenticated, text),
            ..Refusal::connack(limits, Some(version), reason, text)
        }
    }

    /// Refuses a client because this node has no room for it: 0x97, or return code 3 before MQTT 5, which has no code
    /// for a quota. While the node stops that is 0x88: another one has room.
    pub(super) fn no_room(
        version: Option<Version>,
        cause: DisconnectReason,
        text: &'static str,
    ) -> Refusal {
        let reason = match version {
            Some(Version::V5) if cause != DisconnectReason::Shutdown => ReasonCode::QuotaExceeded,
            _ => ReasonCode::ServerUnavailable,
        };
        Refusal {
            ended: Ended::close(cause, text),
            ..Refusal::connack(PeerLimits::NONE, version, reason, text)
        }
    }

    /// Refuses a CONNECT that is larger than it may be, of which `bytes` have arrived.
    pub(super) fn too_large(bytes: &[u8], error: DecodeError) -> Refusal {
        let refusal = match version_of(bytes) {
            Some(version) => Refusal::connack(
                PeerLimits::NONE,
                Some(version),
                error.reason(),
                error.text(),
            ),
            None => Refusal::silent(error.into()),
        };
        Refusal {
            ended: Ended {
                reason: None,
                ..error.into()
            },
            ..refusal
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

/// The version of a CONNECT of which at least the beginning has arrived.
pub(super) fn version_of(bytes: &[u8]) -> Option<Version> {
    let header = frame::header(bytes, u32::MAX).ok()??;
    let found = frame::Frame {
        first: header.first,
        body: bytes.get(header.length..)?,
        length: header.total(),
    };
    sniff_version(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_has_a_code_in_every_version() {
        let refuse = |version, cause| Refusal::no_room(Some(version), cause, "full").packet;
        for (cause, code) in [
            (DisconnectReason::TooMany, 0x97),
            (DisconnectReason::Shutdown, 0x88),
        ] {
            assert_eq!(refuse(Version::V5, cause)[..4], [0x20, 10, 0, code]);
            assert_eq!(refuse(Version::V311, cause), [0x20, 2, 0, 3]);
        }
    }

    #[test]
    fn the_version_is_read_from_the_first_bytes() {
        let connect = b"\x10\xff\xff\x7f\0\x04MQTT\x05\x02";
        assert_eq!(version_of(connect), Some(Version::V5));
        assert_eq!(version_of(&connect[..10]), None);
        assert_eq!(version_of(b""), None);
    }
}
