//! What a device or a module is sent: answers to its requests, and notifications. They go to its own connection,
//! whatever it has subscribed to, with QoS 0.

use std::fmt::Write as _;

use crate::base::time::Millis;
use crate::base::utc::Utc;
use crate::codec::{PublishHeader, ReasonCode, encode_publish};
use crate::connection::context::Context;
use crate::connection::end::Ended;
use crate::telemetry::labels::DisconnectReason;

/// Why a request is not carried out. The numbers are the real service's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The payload is not JSON.
    Malformed,
    /// It breaks a rule.
    Invalid,
    /// The reported properties have another version.
    Version,
    /// It is this node's fault.
    Internal,
}

impl Failure {
    /// The status of the answer's topic.
    fn status(self) -> u16 {
        match self {
            Failure::Malformed | Failure::Invalid => 400,
            Failure::Version => 412,
            Failure::Internal => 500,
        }
    }

    fn error_code(self) -> u32 {
        match self {
            Failure::Malformed => 400_006,
            Failure::Invalid => 400_004,
            Failure::Version => 412_001,
            Failure::Internal => 500_001,
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The twin.
    Twin(String),
    /// The reported properties have this version now.
    Patched(u64),
    /// Nothing was done; why.
    Failed(Failure, String),
}

impl Answer {
    /// The topic that it goes to, and its payload.
    pub(super) fn message(self, request_id: &str, now: Millis) -> (String, String) {
        match self {
            Answer::Twin(twin) => (topic(200, request_id), twin),
            Answer::Patched(version) => {
                let mut topic = topic(204, request_id);
                // Writing to a string does not fail.
                let _ = write!(topic, "&$version={version}");
                (topic, String::new())
            }
            Answer::Failed(failure, text) => {
                let tracking_id = uuid::Uuid::new_v4().simple();
                let body = format!(
                    "{{\"errorCode\":{},\"trackingId\":\"{tracking_id}\",\"message\":{},\"timestampUtc\":\"{}\"}}",
                    failure.error_code(),
                    serde_json::Value::from(text),
                    Utc(now)
                );
                (topic(failure.status(), request_id), body)
            }
        }
    }
}

fn topic(status: u16, request_id: &str) -> String {
    format!("$iothub/twin/res/{status}/?$rid={request_id}")
}

/// Sends a message to the client of this connection.
///
/// # Errors
/// It is larger than the client accepts, which therefore would miss it without knowing.
pub(super) fn send(context: &mut Context, topic: &str, payload: &[u8]) -> Result<(), Ended> {
    let options = &context.options;
    let header = PublishHeader {
        max_packet_size: options.limits.max_packet_size,
        ..PublishHeader::plain(options.version)
    };
    let packets = &mut context.output.packets().bytes;
    match encode_publish(packets, topic, &[], payload, &header) {
        Ok(_) => {
            context.count_sent([1, 0, 0]);
            Ok(())
        }
        Err(_) => Err(Ended::disconnect(
            DisconnectReason::PacketTooLarge,
            ReasonCode::PacketTooLarge,
            "an answer of the hub is larger than the client accepts",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_767_607_201_000);

    #[test]
    fn answers_echo_the_request_and_have_the_bodies_of_the_service() {
        let twin = Answer::Twin("{}".into());
        assert_eq!(
            twin.message("a b", NOW),
            ("$iothub/twin/res/200/?$rid=a b".into(), "{}".into())
        );
        let patched = Answer::Patched(7).message("1", NOW);
        assert_eq!(
            patched,
            (
                "$iothub/twin/res/204/?$rid=1&$version=7".into(),
                String::new()
            )
        );
        for (failure, status, code) in [
            (Failure::Malformed, 400, 400_006),
            (Failure::Invalid, 400, 400_004),
            (Failure::Version, 412, 412_001),
            (Failure::Internal, 500, 500_001),
        ] {
            let failed = Answer::Failed(failure, "a \"text\"\n".into());
            let (topic, body) = failed.message("", NOW);
            assert_eq!(topic, format!("$iothub/twin/res/{status}/?$rid="));
            let read: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            let id = read["trackingId"].as_str().expect("text");
            assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
            assert_eq!(
                body,
                format!(
                    "{{\"errorCode\":{code},\"trackingId\":\"{id}\",\"message\":\"a \\\"text\\\"\\n\",\
                     \"timestampUtc\":\"2026-01-05T10:00:01.000Z\"}}"
                )
            );
        }
    }
}
