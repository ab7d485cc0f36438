//! A packet that came, in the notation of a conversation: for reports, and for expectations that are written anew.

use super::pattern::Names;
use crate::wire::{self, Packet, Properties, Value};

/// A packet as a conversation would expect it. Packet ids that the broker chose get a name.
pub fn packet(level: u8, header: u8, body: &[u8], word: &str, names: &mut Names) -> String {
    let decoded = match wire::decode_packet(level, header, body) {
        Ok(decoded) => decoded,
        Err(_) => return format!("{header:02X} [ {} ]", hex(body)),
    };
    let body = match decoded {
        Packet::Connack(connack) if connack.code == 0 => {
            let present = if connack.session_present {
                "present"
            } else {
                "new"
            };
            return format!("connack {present}");
        }
        Packet::Connack(connack) => {
            let code = format!("00 {:02X}", connack.code);
            with_properties(code, level, &connack.properties, word)
        }
        Packet::Publish(publish) => {
            let mut shown = text(&publish.topic, word);
            if publish.qos > 0 {
                shown = format!("{shown} {}", named(publish.packet_id, names));
            }
            shown = with_properties(shown, level, &publish.properties, word);
            format!("{shown} {}", payload(&publish.payload, word))
        }
        Packet::Puback(ack) | Packet::Pubrec(ack) | Packet::Pubrel(ack) | Packet::Pubcomp(ack) => {
            // Only in a PUBREL the id is one that the broker chose.
            let shown = match header {
                wire::PUBREL => named(ack.packet_id, names),
                _ => format!("{:04X}", ack.packet_id),
            };
            match body.len() {
                2 => shown,
                3 => format!("{shown} {:02X}", ack.code),
                _ => with_properties(
                    format!("{shown} {:02X}", ack.code),
                    level,
                    &ack.properties,
                    word,
                ),
            }
        }
        Packet::Suback(ack) | Packet::Unsuback(ack) => {
            let shown = format!("{:04X}", ack.packet_id);
            let codes: Vec<String> = ack.codes.iter().map(|code| format!("{code:02X}")).collect();
            let shown = with_properties(shown, level, &ack.properties, word);
            format!("{shown} {}", codes.join(" "))
        }
        Packet::Pingresp => String::new(),
        Packet::Disconnect(disconnect) => return format!("E0 {:02X}", disconnect.code),
        Packet::Auth(auth) => {
            with_properties(format!("{:02X}", auth.code), level, &auth.properties, word)
        }
    };
    format!("{header:02X} [ {} ]", body.trim_end()).replace("  ", " ")
}

fn with_properties(shown: String, level: u8, list: &Properties, word: &str) -> String {
    if level != wire::V5 {
        shown
    } else if list.0.is_empty() {
        format!("{shown} 00")
    } else {
        let list: Vec<String> = list.0.iter().map(|one| property(one, word)).collect();
        format!("{shown} ( {} )", list.join(" "))
    }
}

fn property((id, value): &(u8, Value), word: &str) -> String {
    let value = match value {
        Value::Byte(n) => format!("{n:02X}"),
        Value::TwoBytes(n) => format!("{n:04X}"),
        Value::FourBytes(n) => format!("{n:08X}"),
        Value::Varint(n) => hex(&wire::varint(*n)),
        Value::Text(value) => text(value, word),
        Value::Binary(bytes) => hex(&wire::field(bytes)),
        Value::Pair(name, value) => format!("{} {}", text(name, word), text(value, word)),
    };
    format!("{id:02X} {value}")
}

/// The name of an id; a new one gets the next free number for its name.
fn named(id: u16, names: &mut Names) -> String {
    let bytes = id.to_be_bytes();
    if let Some((name, _)) = names.iter().find(|(_, value)| value[..] == bytes) {
        return format!("${name}");
    }
    let mut free = (1..).map(|number: u32| number.to_string());
    let name = free
        .find(|name| !names.contains_key(name))
        .expect("there is always a next number");
    names.insert(name.clone(), bytes.to_vec());
    format!("${name}")
}

fn text(text: &str, word: &str) -> String {
    if quotable(text.as_bytes()) {
        format!("s\"{}\"", text.replace(word, "@"))
    } else {
        hex(&wire::field(text.as_bytes()))
    }
}

fn payload(bytes: &[u8], word: &str) -> String {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => String::new(),
        Ok(text) if quotable(bytes) => format!("\"{}\"", text.replace(word, "@")),
        Ok(text) if is_json(bytes) => format!("'{}'", text.replace(word, "@")),
        _ if bytes.len() > 8 && bytes.iter().all(|byte| *byte == bytes[0]) => {
            format!("{:02X}*{}", bytes[0], bytes.len())
        }
        _ => hex(bytes),
    }
}

fn quotable(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'@'))
}

/// Whether it can stand between single quotes.
fn is_json(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'\'' | b'@'))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
