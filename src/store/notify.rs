//! KEYNOTIFY notifications: their topic and payload (docs/spec/state-store.md, Notifications).

use super::resp3::{push_array, push_blob};
use super::topics::NOTIFY_PREFIX;
use crate::topic::MAX_TOPIC_BYTES;

/// The longest client id and key, in bytes together, whose notification topic still fits in an MQTT string.
pub const MAX_CLIENT_AND_KEY_BYTES: usize = (MAX_TOPIC_BYTES - FIXED_BYTES) / 2;

const COMMAND: &str = "/command/notify/";
const FIXED_BYTES: usize = NOTIFY_PREFIX.len() + 1 + COMMAND.len();

/// The topic on which `client` is told about `key`, both in upper-case hexadecimal. `None` when it would not fit
/// in an MQTT string, so that watching such a key must be refused.
pub fn topic(client: &str, key: &[u8]) -> Option<String> {
    if client.len().checked_add(key.len())? > MAX_CLIENT_AND_KEY_BYTES {
        return None;
    }
    let mut topic = String::with_capacity(FIXED_BYTES + 2 * (client.len() + key.len()));
    topic.push_str(NOTIFY_PREFIX);
    topic.push('/');
    push_hex(&mut topic, client.as_bytes());
    topic.push_str(COMMAND);
    push_hex(&mut topic, key);
    Some(topic)
}

/// Appends the payload that tells of a SET; its `__ts` is the new version.
pub fn write_set(value: &[u8], out: &mut Vec<u8>) {
    push_array(out, 4);
    for word in [&b"NOTIFY"[..], b"SET", b"VALUE", value] {
        push_blob(out, word);
    }
}

/// Appends the payload that tells of a DEL, a VDEL or an expiry; its `__ts` is the tombstone's version.
pub fn write_delete(out: &mut Vec<u8>) {
    push_array(out, 2);
    push_blob(out, b"NOTIFY");
    push_blob(out, b"DELETE");
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_of_the_page_example() {
        assert_eq!(
            topic("client-id1", b"SOMEKEY").as_deref(),
            Some(
                "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/636C69656E742D696431/command/notify/534F4D454B4559"
            )
        );
    }

    #[test]
    fn hex_is_upper_case_and_keys_are_any_bytes() {
        let topic = topic("\u{fe}", b"\x00\xab/+#").unwrap();
        assert!(
            topic.ends_with("/C3BE/command/notify/00AB2F2B23"),
            "{topic}"
        );
    }

    #[test]
    fn a_topic_that_does_not_fit_is_refused() {
        let longest = vec![b'k'; MAX_CLIENT_AND_KEY_BYTES - 1];
        let fits = topic("c", &longest).unwrap();
        assert!(fits.len() <= MAX_TOPIC_BYTES && fits.len() + 2 > MAX_TOPIC_BYTES);
        assert_eq!(topic("cc", &longest), None);
    }

    #[test]
    fn payload_of_a_set() {
        let mut out = Vec::new();
        write_set(b"abc", &mut out);
        assert_eq!(
            out,
            b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$3\r\nabc\r\n"
        );
    }

    #[test]
    fn payload_of_a_delete() {
        let mut out = Vec::new();
        write_delete(&mut out);
        assert_eq!(out, b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n");
    }
}
