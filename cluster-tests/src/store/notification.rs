//! Notifications: what a client is sent of keys that it watches.

use super::hlc::Hlc;
use crate::wire::Publish;
use std::time::Instant;

/// A change of a watched key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    pub key: Vec<u8>,
    /// `None`: deleted or expired.
    pub value: Option<Vec<u8>>,
    pub version: Hlc,
    pub received: Instant,
}

impl Notification {
    /// Reads a PUBLISH to a client; the error says what is wrong with it.
    pub(super) fn read(client_id: &str, publish: &Publish) -> Result<Self, String> {
        let prefix = format!(
            "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/{}/command/notify/",
            hex(client_id.as_bytes())
        );
        let key = publish
            .topic
            .strip_prefix(&prefix)
            .and_then(unhex)
            .ok_or_else(|| format!("a PUBLISH to {:?} was not asked for", publish.topic))?;
        let value = parse_notification(&publish.payload).ok_or_else(|| {
            format!(
                "notification {:?}",
                String::from_utf8_lossy(&publish.payload)
            )
        })?;
        let versions = publish.properties.user_values("__ts");
        let version = match versions.as_slice() {
            [text] => Hlc::parse(text).ok_or_else(|| format!("__ts {text:?}"))?,
            other => return Err(format!("a notification has one __ts, this one {other:?}")),
        };
        Ok(Self {
            key,
            value,
            version,
            received: Instant::now(),
        })
    }
}

fn parse_notification(payload: &[u8]) -> Option<Option<Vec<u8>>> {
    if payload == b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n" {
        return Some(None);
    }
    let rest = payload.strip_prefix(b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$")?;
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let length: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let value = rest.get(end + 2..end + 2 + length)?;
    (rest.get(end..end + 2)? == b"\r\n" && rest.get(end + 2 + length..)? == b"\r\n")
        .then(|| Some(value.to_vec()))
}

/// Upper-case hexadecimal only.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'A'..=b'F' => Some(c - b'A' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

/// Upper-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
