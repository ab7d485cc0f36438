//! Packets by name, for the lines of a conversation that only set the scene: `connect v5 clean @b SessionExpiry=120`.
//!
//! Invariant: a line stands for one sequence of bytes. What a rule is about is written as bytes, and not here.

use super::hub::{HUB_HOST, HUB_TOKEN};
use crate::wire::{self, Connect, Properties, Value, id};

/// The bytes of a named packet; `None` where the line begins with no name of one. `word` stands for `@`.
pub fn packet(line: &str, word: &str) -> Result<Option<Vec<u8>>, String> {
    let line = line.trim();
    let name = line.split(' ').next().unwrap_or_default();
    if !["connect", "connack", "subscribe", "suback", "disconnect"].contains(&name) {
        return Ok(None);
    }
    let words = split(&line.replace('@', word))?;
    let words: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let bytes = match (name, words.as_slice()) {
        ("connect", [version, rest @ ..]) => connect(level(version)?, rest)?,
        ("connack", [version, present]) => connack(level(version)?, present)?,
        ("subscribe", [version, id, rest @ ..]) => subscribe(level(version)?, id, rest)?,
        ("suback", [version, id, rest @ ..]) => suback(level(version)?, id, rest)?,
        ("disconnect", []) => wire::disconnect(wire::V311, 0, &Properties::new()),
        ("disconnect", ["v5", rest @ ..]) => disconnect(rest)?,
        _ => return Err(format!("not how a {name} is written: {line:?}")),
    };
    Ok(Some(bytes))
}

/// Words between spaces; what is in quotes belongs together, and the quotes go.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    for letter in line.chars() {
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            ' ' if !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    match is_quoted {
        true => Err("no closing quote".into()),
        false => Ok(words),
    }
}

fn level(version: &str) -> Result<u8, String> {
    match version {
        "v31" => Ok(wire::V31),
        "v311" => Ok(wire::V311),
        "v5" => Ok(wire::V5),
        other => Err(format!("no version: {other:?}")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("no number: {text:?}"))
}

/// `name=value` of a property.
fn property(text: &str) -> Result<(u8, Value), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("no property: {text:?}"))?;
    Ok(match name {
        "SessionExpiry" => (id::SESSION_EXPIRY, Value::FourBytes(number(value)?)),
        "ReceiveMaximum" => (id::RECEIVE_MAXIMUM, Value::TwoBytes(number(value)?)),
        "MaximumPacketSize" => (id::MAXIMUM_PACKET_SIZE, Value::FourBytes(number(value)?)),
        "TopicAliasMaximum" => (id::TOPIC_ALIAS_MAXIMUM, Value::TwoBytes(number(value)?)),
        "SubscriptionIdentifier" => (id::SUBSCRIPTION_IDENTIFIER, Value::Varint(number(value)?)),
        "AuthenticationMethod" => (id::AUTHENTICATION_METHOD, Value::Text(value.into())),
        "AuthenticationData" => (id::AUTHENTICATION_DATA, Value::Binary(value.into())),
        other => return Err(format!("no property: {other:?}")),
    })
}

fn connect(level: u8, words: &[&str]) -> Result<Vec<u8>, String> {
    let (is_clean, words) = match words {
        ["clean", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let [client_id, options @ ..] = words else {
        return Err("a connect has a client id".into());
    };
    let mut connect = Connect {
        clean: is_clean,
        ..Connect::at(client_id, level)
    };
    for option in options {
        if *option == "hub" {
            let user = format!("{HUB_HOST}/{client_id}/?api-version=2021-04-12");
            connect.user_name = Some(user);
            connect.password = Some(HUB_TOKEN.into());
        } else if let Some(seconds) = option.strip_prefix("keep-alive=") {
            connect.keep_alive_s = number(seconds)?;
        } else if level == wire::V5 {
            connect.properties.0.push(property(option)?);
        } else {
            return Err(format!("only MQTT 5 has properties: {option:?}"));
        }
    }
    Ok(connect.bytes())
}

fn connack(level: u8, present: &str) -> Result<Vec<u8>, String> {
    let present = match present {
        "new" => 0,
        "present" => 1,
        other => return Err(format!("neither new nor present: {other:?}")),
    };
    match level {
        // A broker says much in the properties of its CONNACK: there is no usual one.
        wire::V5 => Err("a connack has no version when it is one of MQTT 5".into()),
        _ => Ok(wire::packet(0x20, &[present, 0])),
    }
}

fn packet_id(text: &str) -> Result<u16, String> {
    let text = text.strip_prefix("id=").ok_or("a packet id is missing")?;
    number(text)
}

fn quality(text: &str) -> Result<u8, String> {
    match text {
        "qos=0" => Ok(0),
        "qos=1" => Ok(1),
        "qos=2" => Ok(2),
        other => Err(format!("no quality of service: {other:?}")),
    }
}

fn subscribe(level: u8, id: &str, words: &[&str]) -> Result<Vec<u8>, String> {
    let mut list = Properties::new();
    let mut filters: Vec<(&str, u8)> = Vec::new();
    for word in words {
        let bits = match *word {
            "no-local" => 0x04,
            "retain-as-published" => 0x08,
            "retain-handling=0" => 0,
            "retain-handling=1" => 0x10,
            "retain-handling=2" => 0x20,
            other if other.starts_with("qos=") => quality(other)?,
            other if filters.is_empty() && other.contains('=') => {
                list.0.push(property(other)?);
                continue;
            }
            filter => {
                filters.push((filter, 0));
                continue;
            }
        };
        let (_, options) = filters.last_mut().ok_or("options follow a filter")?;
        *options |= bits;
    }
    if level != wire::V5 && !list.0.is_empty() {
        return Err("only MQTT 5 has properties".into());
    }
    if filters.is_empty() {
        return Err("a subscribe has a filter".into());
    }
    Ok(wire::subscribe(level, packet_id(id)?, &list, &filters))
}

fn suback(level: u8, id: &str, words: &[&str]) -> Result<Vec<u8>, String> {
    let mut body = packet_id(id)?.to_be_bytes().to_vec();
    if level == wire::V5 {
        body.push(0);
    }
    for word in words {
        body.push(quality(word)?);
    }
    Ok(wire::packet(0x90, &body))
}

fn disconnect(words: &[&str]) -> Result<Vec<u8>, String> {
    let mut list = Properties::new();
    for word in words {
        list.0.push(property(word)?);
    }
    match list.0.is_empty() {
        true => Err("`disconnect` alone is the one without properties".into()),
        false => Ok(wire::disconnect(wire::V5, 0, &list)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::{self, Names};
    use super::*;

    fn bytes(line: &str) -> Vec<u8> {
        let patterns = pattern::parse(line, "w").expect("it is well formed");
        pattern::bytes(&patterns, &Names::new()).expect("it leaves nothing open")
    }

    #[test]
    fn a_name_stands_for_its_bytes() {
        let pairs = [
            (
                "connect v5 clean @b",
                r#"10 [ s"MQTT" 05 02 0000 00 s"@b" ]"#,
            ),
            ("connect v311 clean @", r#"10 [ s"MQTT" 04 02 0000 s"@" ]"#),
            ("connect v31 @", r#"10 [ s"MQIsdp" 03 00 0000 s"@" ]"#),
            (
                r#"connect v311 clean "" keep-alive=2"#,
                r#"10 [ s"MQTT" 04 02 0002 s"" ]"#,
            ),
            (
                "connect v5 @ SessionExpiry=120 ReceiveMaximum=1 keep-alive=60",
                r#"10 [ s"MQTT" 05 00 003C ( 11 00000078 21 0001 ) s"@" ]"#,
            ),
            (
                r#"connect v5 clean @ AuthenticationMethod="A B" AuthenticationData="n,,n=x""#,
                r#"10 [ s"MQTT" 05 02 0000 ( 15 s"A B" 16 s"n,,n=x" ) s"@" ]"#,
            ),
            (
                "connect v5 clean @ MaximumPacketSize=28 TopicAliasMaximum=1",
                r#"10 [ s"MQTT" 05 02 0000 ( 27 0000001C 22 0001 ) s"@" ]"#,
            ),
            ("connack v311 new", "20 [ 00 00 ]"),
            ("connack v31 present", "20 [ 01 00 ]"),
            ("subscribe v5 id=1 @/t qos=1", r#"82 [ 0001 00 s"@/t" 01 ]"#),
            (
                "subscribe v311 id=256 $share/g/@/# qos=0 @/+ qos=2",
                r#"82 [ 0100 s"$share/g/@/#" 00 s"@/+" 02 ]"#,
            ),
            (
                "subscribe v5 id=2 SubscriptionIdentifier=200 @/t qos=1 no-local retain-as-published retain-handling=2",
                r#"82 [ 0002 ( 0B C801 ) s"@/t" 2D ]"#,
            ),
            ("suback v5 id=1 qos=0 qos=2", "90 [ 0001 00 00 02 ]"),
            ("suback v311 id=1 qos=1", "90 [ 0001 01 ]"),
            ("disconnect", "E0 00"),
            ("disconnect v5 SessionExpiry=0", "E0 [ 00 ( 11 00000000 ) ]"),
        ];
        for (name, written) in pairs {
            assert_eq!(packet(name, "w"), Ok(Some(bytes(written))), "{name}");
        }
    }

    #[test]
    fn what_is_no_name_is_bytes_and_what_is_half_a_name_is_wrong() {
        assert_eq!(packet("10 [ 00 ]", "w"), Ok(None));
        for wrong in [
            "connect",
            "connect v6 @",
            "connect v5 clean",
            "connect v311 @ SessionExpiry=1",
            "connect v5 @ Session=1",
            r#"connect v5 "@"#,
            "connack v5 new",
            "subscribe v5 @/t qos=1",
            "subscribe v5 id=1",
            "subscribe v5 id=1 qos=1",
            "suback v5 id=1 qos=128",
            "disconnect v5",
        ] {
            assert!(packet(wrong, "w").is_err(), "{wrong}");
        }
    }
}
