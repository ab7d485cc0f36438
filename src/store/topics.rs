//! The state store's topics.

use crate::topic;

/// Where requests are published (docs/spec/state-store.md, Requests).
pub const INVOKE: &str = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke";

/// What the broker's own topics start with: no client publishes there, also not by having something answered.
pub const SYS_PREFIX: &str = "$SYS/";

/// What the topics of notifications start with (docs/spec/state-store.md, Notifications). No response topic may.
pub const NOTIFY_PREFIX: &str = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8";

/// Why a response topic is refused. The client gets PUBACK 0x90, then DISCONNECT 0x90 (docs/spec/state-store.md,
/// Requests).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseTopicError {
    /// It is no topic name: empty, too long, or with a wildcard or NUL.
    #[error("the response topic is not a topic name")]
    NotAName,
    /// It is the topic requests are published to: answers would be requests.
    #[error("the response topic is the topic of requests")]
    Invoke,
    /// It lies where the store's notifications are, or among the topics that the broker alone publishes.
    #[error("the response topic is reserved for notifications or for the broker")]
    Reserved,
}

/// Checks a request's response topic.
///
/// # Errors
/// The reason for which it can't be answered there.
pub fn check_response_topic(response_topic: &str) -> Result<(), ResponseTopicError> {
    if topic::check_name(response_topic).is_err() {
        Err(ResponseTopicError::NotAName)
    } else if response_topic == INVOKE {
        Err(ResponseTopicError::Invoke)
    } else if response_topic.starts_with(NOTIFY_PREFIX) || topic::is_own(response_topic) {
        Err(ResponseTopicError::Reserved)
    } else {
        Ok(())
    }
}

/// Whether this is where the client libraries of Azure IoT Operations expect the answers to a client's requests
/// (docs/spec/state-store.md, Requests). Each library has a form of its own, and one of them writes the identifier in
/// hexadecimal. No form may have it in both ways, or `clients/6331/…` would be the topic of `c1` and of `6331`. A
/// client whose identifier has more than one level, or a wildcard, has no such topic: it could be another client's.
pub fn is_response_topic_of(client_id: &str, topic: &str) -> bool {
    if client_id.is_empty() || client_id.contains(['/', '+', '#']) {
        return false;
    }
    let Some((first, rest)) = topic
        .strip_prefix("clients/")
        .and_then(|rest| rest.split_once('/'))
    else {
        return false;
    };
    let (is_service, request) = match rest.strip_prefix("services/") {
        Some(request) => (true, request),
        None => (false, rest),
    };
    let (is_response, request) = match request.strip_suffix("/response") {
        Some(request) => (true, request),
        None => (false, request),
    };
    let is_own = match (is_service, is_response) {
        (false, true) => first == hex(client_id.as_bytes()),
        (true, true) | (false, false) => first == client_id,
        (true, false) => false,
    };
    is_own && request == INVOKE
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string can't fail.
        let _ = write!(hex, "{byte:02X}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_to_the_client_itself() {
        for topic in [
            "clients/c1/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
            "clients/6331/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
            "clients/c1/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
        ] {
            assert!(is_response_topic_of("c1", topic), "{topic}");
            assert!(!is_response_topic_of("c2", topic), "{topic}");
            let wide = topic.replace("c1", "+").replace("6331", "+");
            assert!(!is_response_topic_of("+", &wide), "{wide}");
            assert!(
                !is_response_topic_of("c1", &format!("{topic}/#")),
                "{topic}"
            );
        }
        assert!(!is_response_topic_of("c1", INVOKE));
    }

    #[test]
    fn no_topic_is_that_of_two_clients() {
        let forms = ["", "services/"].into_iter().flat_map(|service| {
            ["", "/response"].map(|response| format!("{service}{INVOKE}{response}"))
        });
        let mut topics = 0;
        for form in forms {
            for first in ["c1", "6331", "36333331", "c1/6331"] {
                let topic = format!("clients/{first}/{form}");
                let clients = ["c1", "6331", "36333331"];
                let of = clients.map(|client| is_response_topic_of(client, &topic));
                let count = of.into_iter().filter(|is_its_own| *is_its_own).count();
                assert!(count <= 1, "{topic}: {of:?}");
                topics += count;
            }
        }
        assert_eq!(topics, 3 + 3 + 2, "one in each form that a library has");
    }

    #[test]
    fn response_topics_of_the_client_libraries_are_accepted() {
        for topic in [
            "clients/c1/services/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
            "clients/6331/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke/response",
            "clients/c1/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
            "clients/c1/services/statestore/_any_/command/invoke/response",
        ] {
            assert_eq!(check_response_topic(topic), Ok(()), "{topic}");
        }
    }

    #[test]
    fn response_topic_equal_to_invoke_is_refused() {
        assert_eq!(
            check_response_topic(INVOKE),
            Err(ResponseTopicError::Invoke)
        );
    }

    #[test]
    fn response_topic_below_the_notifications_is_refused() {
        for topic in [
            NOTIFY_PREFIX,
            &format!("{NOTIFY_PREFIX}/6331/x"),
            "$SYS/broker/clients/connected",
        ] {
            assert_eq!(
                check_response_topic(topic),
                Err(ResponseTopicError::Reserved)
            );
        }
    }

    #[test]
    fn response_topic_with_a_wildcard_is_refused() {
        for topic in ["", "clients/+/x", "clients/#", "a\0b"] {
            assert_eq!(
                check_response_topic(topic),
                Err(ResponseTopicError::NotAName),
                "{topic:?}"
            );
        }
    }
}
