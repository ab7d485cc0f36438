//! Packets as the broker sends them, checked strictly: what is not as the standard says is an error that says where.

use super::property::{Properties, V5, Value, id};

/// CONNACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connack {
    pub session_present: bool,
    pub code: u8,
    pub properties: Properties,
}

/// A PUBLISH of the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub duplicate: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: String,
    /// 0 for QoS 0.
    pub packet_id: u16,
    pub properties: Properties,
    pub payload: Vec<u8>,
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    pub packet_id: u16,
    pub code: u8,
    pub properties: Properties,
}

/// SUBACK, UNSUBACK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suback {
    pub packet_id: u16,
    pub codes: Vec<u8>,
    pub properties: Properties,
}

/// DISCONNECT, AUTH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnect {
    pub code: u8,
    pub properties: Properties,
}

/// What a broker may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    Connack(Connack),
    Publish(Publish),
    Puback(Ack),
    Pubrec(Ack),
    Pubrel(Ack),
    Pubcomp(Ack),
    Suback(Suback),
    Unsuback(Suback),
    Pingresp,
    Disconnect(Disconnect),
    Auth(Disconnect),
}

type Result<T> = std::result::Result<T, String>;

/// Cuts the first whole frame off `bytes`: its first byte and its body.
pub fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<(u8, Vec<u8>)>> {
    let mut length = 0usize;
    for position in 1..=4 {
        let Some(byte) = bytes.get(position) else {
            return Ok(None);
        };
        length |= usize::from(byte & 0x7F) << (7 * (position - 1));
        if byte & 0x80 != 0 {
            continue;
        }
        if position > 1 && *byte == 0 {
            return Err("remaining length is not minimal [MQTT-1.5.5-1]".into());
        }
        let start = position + 1;
        if bytes.len() < start + length {
            return Ok(None);
        }
        let header = bytes[0];
        let body = bytes[start..start + length].to_vec();
        bytes.drain(..start + length);
        return Ok(Some((header, body)));
    }
    Err("remaining length has more than four bytes".into())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(n)
            .ok_or_else(|| format!("{n} bytes wanted, {} left", self.0.len()))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn varint(&mut self) -> Result<u32> {
        let mut value = 0;
        for position in 0..4 {
            let byte = self.byte()?;
            value |= u32::from(byte & 0x7F) << (7 * position);
            if byte & 0x80 == 0 {
                if position > 0 && byte == 0 {
                    return Err("variable byte integer is not minimal [MQTT-1.5.5-1]".into());
                }
                return Ok(value);
            }
        }
        Err("variable byte integer has more than four bytes".into())
    }

    fn binary(&mut self) -> Result<Vec<u8>> {
        let length = self.u16()?;
        Ok(self.take(usize::from(length))?.to_vec())
    }

    fn text(&mut self) -> Result<String> {
        let text =
            String::from_utf8(self.binary()?).map_err(|_| "string is not UTF-8".to_owned())?;
        if text.contains('\0') {
            return Err("string holds U+0000 [MQTT-1.5.4-2]".into());
        }
        Ok(text)
    }

    fn properties(&mut self) -> Result<Properties> {
        let length = self.varint()?;
        let mut inner = Reader(self.take(length as usize)?);
        let mut found = Properties::new();
        while !inner.0.is_empty() {
            let id = u8::try_from(inner.varint()?).map_err(|_| "unknown property".to_owned())?;
            let value = inner.value(id)?;
            let repeatable = id == id::USER_PROPERTY || id == id::SUBSCRIPTION_IDENTIFIER;
            if found.has(id) && !repeatable {
                return Err(format!("property {id:#04x} twice"));
            }
            found.0.push((id, value));
        }
        Ok(found)
    }

    fn value(&mut self, id: u8) -> Result<Value> {
        Ok(match id {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2A => Value::Byte(self.byte()?),
            0x13 | 0x21 | 0x22 | 0x23 => Value::TwoBytes(self.u16()?),
            0x02 | 0x11 | 0x18 | 0x27 => Value::FourBytes(self.u32()?),
            0x0B => Value::Varint(self.varint()?),
            0x03 | 0x08 | 0x12 | 0x15 | 0x1A | 0x1C | 0x1F => Value::Text(self.text()?),
            0x09 | 0x16 => Value::Binary(self.binary()?),
            0x26 => Value::Pair(self.text()?, self.text()?),
            other => return Err(format!("unknown property {other:#04x}")),
        })
    }

    fn end(&self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{} bytes after the end of the packet",
                self.0.len()
            ))
        }
    }
}

/// Cuts a property list, without its length, into its properties.
pub fn split_properties(list: &[u8]) -> Result<Vec<&[u8]>> {
    let mut reader = Reader(list);
    let mut found = Vec::new();
    while !reader.0.is_empty() {
        let before = reader.0;
        let id = reader.byte()?;
        reader.value(id)?;
        found.push(&before[..before.len() - reader.0.len()]);
    }
    Ok(found)
}

/// Which properties each packet may have (MQTT 5, table 2-4).
fn allowed(kind: u8) -> &'static [u8] {
    match kind {
        2 => &[
            0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27,
            0x28, 0x29, 0x2A,
        ],
        3 => &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26],
        // A server's DISCONNECT has no session expiry interval [MQTT-3.14.2-2].
        14 => &[0x1C, 0x1F, 0x26],
        15 => &[0x15, 0x16, 0x1F, 0x26],
        _ => &[0x1F, 0x26],
    }
}

/// Reads a frame of a connection of that protocol level.
pub fn decode_packet(level: u8, header: u8, body: &[u8]) -> Result<Packet> {
    let kind = header >> 4;
    let mut reader = Reader(body);
    let wanted_flags = match kind {
        3 => header & 0x0F,
        6 => 0x02,
        _ => 0,
    };
    if header & 0x0F != wanted_flags {
        return Err(format!(
            "reserved bits in first byte {header:#04x} [MQTT-2.1.3-1]"
        ));
    }
    let packet = match kind {
        2 => connack(level, &mut reader)?,
        3 => publish(level, header, &mut reader)?,
        4 => Packet::Puback(ack(level, &mut reader)?),
        5 => Packet::Pubrec(ack(level, &mut reader)?),
        6 => Packet::Pubrel(ack(level, &mut reader)?),
        7 => Packet::Pubcomp(ack(level, &mut reader)?),
        9 => Packet::Suback(suback(level, true, &mut reader)?),
        11 => Packet::Unsuback(suback(level, level == V5, &mut reader)?),
        13 => Packet::Pingresp,
        14 if level == V5 => Packet::Disconnect(reason(&mut reader)?),
        15 if level == V5 => Packet::Auth(reason(&mut reader)?),
        _ => return Err(format!("a server does not send {header:#04x}")),
    };
    reader.end()?;
    check_properties(kind, &packet)?;
    check_codes(level, kind, &packet)?;
    Ok(packet)
}

/// The codes a server may send in each packet of MQTT 5: tables 3-1, 3-4 to 3-10 and 3-11.
fn listed(kind: u8) -> &'static [u8] {
    match kind {
        2 => &[
            0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90,
            0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
        ],
        4 | 5 => &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
        6 | 7 => &[0x00, 0x92],
        9 => &[
            0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2,
        ],
        11 => &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
        14 => &[
            0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94,
            0x95, 0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
        ],
        _ => &[0x00, 0x18],
    }
}

fn check_codes(level: u8, kind: u8, packet: &Packet) -> Result<()> {
    let codes = match packet {
        Packet::Connack(p) => vec![p.code],
        Packet::Puback(p) | Packet::Pubrec(p) | Packet::Pubrel(p) | Packet::Pubcomp(p) => {
            vec![p.code]
        }
        Packet::Suback(p) | Packet::Unsuback(p) => p.codes.clone(),
        Packet::Disconnect(p) | Packet::Auth(p) => vec![p.code],
        Packet::Publish(_) | Packet::Pingresp => return Ok(()),
    };
    let known = match (level, kind) {
        (V5, _) => listed(kind),
        (_, 2) => &[0, 1, 2, 3, 4, 5],
        (_, 9) => &[0x00, 0x01, 0x02, 0x80],
        _ => &[0],
    };
    match codes.iter().find(|code| !known.contains(code)) {
        Some(code) => Err(format!("packet type {kind} has no code {code:#04x}")),
        None => Ok(()),
    }
}

fn check_properties(kind: u8, packet: &Packet) -> Result<()> {
    let list = match packet {
        Packet::Connack(p) => &p.properties,
        Packet::Publish(p) => &p.properties,
        Packet::Puback(p) | Packet::Pubrec(p) | Packet::Pubrel(p) | Packet::Pubcomp(p) => {
            &p.properties
        }
        Packet::Suback(p) | Packet::Unsuback(p) => &p.properties,
        Packet::Disconnect(p) | Packet::Auth(p) => &p.properties,
        Packet::Pingresp => return Ok(()),
    };
    match list.0.iter().find(|(id, _)| !allowed(kind).contains(id)) {
        Some((id, _)) => Err(format!(
            "property {id:#04x} does not belong in packet type {kind}"
        )),
        None => Ok(()),
    }
}

fn connack(level: u8, reader: &mut Reader) -> Result<Packet> {
    let flags = reader.byte()?;
    if flags > 1 {
        return Err(format!("CONNACK flags {flags:#04x} [MQTT-3.2.2-1]"));
    }
    let code = reader.byte()?;
    if code != 0 && flags != 0 {
        return Err("session present on a refusal [MQTT-3.2.2-6]".into());
    }
    let properties = if level == V5 {
        reader.properties()?
    } else {
        Properties::new()
    };
    Ok(Packet::Connack(Connack {
        session_present: flags == 1,
        code,
        properties,
    }))
}

fn publish(level: u8, header: u8, reader: &mut Reader) -> Result<Packet> {
    let qos = (header >> 1) & 3;
    let duplicate = header & 8 != 0;
    if qos == 3 {
        return Err("QoS 3 [MQTT-3.3.1-4]".into());
    }
    if duplicate && qos == 0 {
        return Err("DUP on QoS 0 [MQTT-3.3.1-2]".into());
    }
    let topic = reader.text()?;
    if topic.contains(['+', '#']) {
        return Err(format!("wildcard in topic name {topic:?} [MQTT-3.3.2-2]"));
    }
    let packet_id = if qos > 0 { reader.u16()? } else { 0 };
    if qos > 0 && packet_id == 0 {
        return Err("packet id 0 [MQTT-2.2.1-4]".into());
    }
    let properties = if level == V5 {
        reader.properties()?
    } else {
        Properties::new()
    };
    let payload = reader.take(reader.0.len())?.to_vec();
    Ok(Packet::Publish(Publish {
        duplicate,
        qos,
        retain: header & 1 != 0,
        topic,
        packet_id,
        properties,
        payload,
    }))
}

fn ack(level: u8, reader: &mut Reader) -> Result<Ack> {
    let packet_id = reader.u16()?;
    let mut found = Ack {
        packet_id,
        code: 0,
        properties: Properties::new(),
    };
    if level == V5 && !reader.0.is_empty() {
        found.code = reader.byte()?;
        if !reader.0.is_empty() {
            found.properties = reader.properties()?;
        }
    }
    Ok(found)
}

fn suback(level: u8, codes: bool, reader: &mut Reader) -> Result<Suback> {
    let packet_id = reader.u16()?;
    let properties = if level == V5 {
        reader.properties()?
    } else {
        Properties::new()
    };
    let codes = if codes {
        reader.take(reader.0.len())?.to_vec()
    } else {
        Vec::new()
    };
    Ok(Suback {
        packet_id,
        codes,
        properties,
    })
}

fn reason(reader: &mut Reader) -> Result<Disconnect> {
    let mut found = Disconnect {
        code: 0,
        properties: Properties::new(),
    };
    if !reader.0.is_empty() {
        found.code = reader.byte()?;
        if !reader.0.is_empty() {
            found.properties = reader.properties()?;
        }
    }
    Ok(found)
}
