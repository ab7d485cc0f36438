//! Packets as a client sends them.

use super::property::{Properties, V5, V31, Value, id};
use std::sync::OnceLock;

/// A string or binary field: two bytes of length, then the bytes.
pub fn field(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a field of a test fits 65,535 bytes");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// A variable byte integer.
pub fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (value % 128) as u8;
        value /= 128;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// Any packet: its first byte, its length, its body.
pub fn packet(header: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("a packet of a test is small");
    [&[header][..], &varint(length), body].concat()
}

/// A property list with its length in front.
pub fn properties(list: &Properties) -> Vec<u8> {
    let mut body = Vec::new();
    for (id, value) in &list.0 {
        body.push(*id);
        match value {
            Value::Byte(n) => body.push(*n),
            Value::TwoBytes(n) => body.extend(n.to_be_bytes()),
            Value::FourBytes(n) => body.extend(n.to_be_bytes()),
            Value::Varint(n) => body.extend(varint(*n)),
            Value::Text(text) => body.extend(field(text.as_bytes())),
            Value::Binary(bytes) => body.extend(field(bytes)),
            Value::Pair(name, value) => {
                body.extend(field(name.as_bytes()));
                body.extend(field(value.as_bytes()));
            }
        }
    }
    let length = u32::try_from(body.len()).expect("properties of a test are small");
    [varint(length), body].concat()
}

/// A will.
#[derive(Debug, Clone, Default)]
pub struct Will {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub properties: Properties,
}

/// Name and password of every CONNECT that says nothing else.
static LOG_IN: OnceLock<(String, Vec<u8>)> = OnceLock::new();

/// From now on clients of this process say that they are this user where nothing else is said.
pub fn log_in_as(name: &str, password: &str) {
    let set = LOG_IN.set((name.to_owned(), password.into()));
    assert!(set.is_ok(), "once in a process");
}

/// A CONNECT.
#[derive(Debug, Clone)]
pub struct Connect {
    pub level: u8,
    pub client_id: String,
    /// Clean Start, or Clean Session before MQTT 5.
    pub clean: bool,
    pub keep_alive_s: u16,
    pub properties: Properties,
    pub will: Option<Will>,
    pub user_name: Option<String>,
    pub password: Option<Vec<u8>>,
}

impl Connect {
    /// MQTT 5, clean start, no keep-alive.
    pub fn v5(client_id: &str) -> Self {
        Self {
            level: V5,
            client_id: client_id.to_owned(),
            clean: true,
            keep_alive_s: 0,
            properties: Properties::new(),
            will: None,
            user_name: LOG_IN.get().map(|(name, _)| name.clone()),
            password: LOG_IN.get().map(|(_, password)| password.clone()),
        }
    }

    /// The same at another protocol level.
    pub fn at(client_id: &str, level: u8) -> Self {
        Self {
            level,
            ..Self::v5(client_id)
        }
    }

    pub fn with(mut self, id: u8, value: Value) -> Self {
        self.properties = self.properties.with(id, value);
        self
    }

    /// Clean start 0 and a session expiry interval in seconds.
    pub fn durable(mut self, expiry_s: u32) -> Self {
        self.clean = false;
        if self.level == V5 {
            self = self.with(id::SESSION_EXPIRY, Value::FourBytes(expiry_s));
        }
        self
    }

    pub fn keep_alive(mut self, seconds: u16) -> Self {
        self.keep_alive_s = seconds;
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut flags = 0;
        if self.clean {
            flags |= 0x02;
        }
        if let Some(will) = &self.will {
            flags |= 0x04 | (will.qos << 3) | (u8::from(will.retain) << 5);
        }
        if self.password.is_some() {
            flags |= 0x40;
        }
        if self.user_name.is_some() {
            flags |= 0x80;
        }
        let name: &[u8] = if self.level == V31 {
            b"MQIsdp"
        } else {
            b"MQTT"
        };
        let mut body = field(name);
        body.extend([self.level, flags]);
        body.extend(self.keep_alive_s.to_be_bytes());
        if self.level == V5 {
            body.extend(properties(&self.properties));
        }
        body.extend(field(self.client_id.as_bytes()));
        if let Some(will) = &self.will {
            if self.level == V5 {
                body.extend(properties(&will.properties));
            }
            body.extend(field(will.topic.as_bytes()));
            body.extend(field(&will.payload));
        }
        if let Some(name) = &self.user_name {
            body.extend(field(name.as_bytes()));
        }
        if let Some(password) = &self.password {
            body.extend(field(password));
        }
        packet(0x10, &body)
    }
}

/// A PUBLISH to send.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub duplicate: bool,
    pub packet_id: u16,
    pub properties: Properties,
}

impl Message {
    /// QoS 0 with packet id 0, which is then not sent.
    pub fn new(topic: &str, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.to_owned(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            retain: false,
            duplicate: false,
            packet_id: 0,
            properties: Properties::new(),
        }
    }

    pub fn qos(mut self, qos: u8, packet_id: u16) -> Self {
        self.qos = qos;
        self.packet_id = packet_id;
        self
    }

    pub fn with(mut self, id: u8, value: Value) -> Self {
        self.properties = self.properties.with(id, value);
        self
    }

    pub fn user(mut self, name: &str, value: &str) -> Self {
        self.properties = self.properties.user(name, value);
        self
    }

    pub fn bytes(&self, level: u8) -> Vec<u8> {
        let header =
            0x30 | (u8::from(self.duplicate) << 3) | (self.qos << 1) | u8::from(self.retain);
        let mut body = field(self.topic.as_bytes());
        if self.qos > 0 {
            body.extend(self.packet_id.to_be_bytes());
        }
        if level == V5 {
            body.extend(properties(&self.properties));
        }
        body.extend(&self.payload);
        packet(header, &body)
    }
}

/// SUBSCRIBE of filters with their options byte.
pub fn subscribe(level: u8, packet_id: u16, list: &Properties, filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    if level == V5 {
        body.extend(properties(list));
    }
    for (filter, options) in filters {
        body.extend(field(filter.as_bytes()));
        body.push(*options);
    }
    packet(0x82, &body)
}

/// UNSUBSCRIBE.
pub fn unsubscribe(level: u8, packet_id: u16, filters: &[&str]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    if level == V5 {
        body.push(0);
    }
    for filter in filters {
        body.extend(field(filter.as_bytes()));
    }
    packet(0xA2, &body)
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP (by its first byte) in its shortest form: success.
pub fn acknowledgement(header: u8, packet_id: u16) -> Vec<u8> {
    packet(header, &packet_id.to_be_bytes())
}

pub const PUBACK: u8 = 0x40;
pub const PUBREC: u8 = 0x50;
pub const PUBREL: u8 = 0x62;
pub const PUBCOMP: u8 = 0x70;
pub const PINGREQ: [u8; 2] = [0xC0, 0];

/// DISCONNECT with a reason; before MQTT 5 it has none.
pub fn disconnect(level: u8, reason: u8, list: &Properties) -> Vec<u8> {
    if level != V5 || (reason == 0 && list.0.is_empty()) {
        return packet(0xE0, &[]);
    }
    packet(0xE0, &[&[reason][..], &properties(list)].concat())
}
