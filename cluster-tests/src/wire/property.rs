//! Protocol levels and properties, which both directions use.

/// Protocol levels as on the wire.
pub const V31: u8 = 3;
pub const V311: u8 = 4;
pub const V5: u8 = 5;

/// Property identifiers (MQTT 5, table 2-4).
pub mod id {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTHENTICATION_METHOD: u8 = 0x15;
    pub const AUTHENTICATION_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFORMATION: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFORMATION: u8 = 0x19;
    pub const RESPONSE_INFORMATION: u8 = 0x1A;
    pub const SERVER_REFERENCE: u8 = 0x1C;
    pub const REASON_STRING: u8 = 0x1F;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const MAXIMUM_QOS: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER_PROPERTY: u8 = 0x26;
    pub const MAXIMUM_PACKET_SIZE: u8 = 0x27;
    pub const WILDCARD_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_IDENTIFIER_AVAILABLE: u8 = 0x29;
    pub const SHARED_AVAILABLE: u8 = 0x2A;
}

/// A property's value, by its data type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Byte(u8),
    TwoBytes(u16),
    FourBytes(u32),
    Varint(u32),
    Text(String),
    Binary(Vec<u8>),
    Pair(String, String),
}

/// Properties in their order on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<(u8, Value)>);

impl Properties {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, id: u8, value: Value) -> Self {
        self.0.push((id, value));
        self
    }

    pub fn user(self, name: &str, value: &str) -> Self {
        self.with(
            id::USER_PROPERTY,
            Value::Pair(name.to_owned(), value.to_owned()),
        )
    }

    pub fn get(&self, id: u8) -> Option<&Value> {
        self.0
            .iter()
            .find(|(found, _)| *found == id)
            .map(|(_, value)| value)
    }

    pub fn has(&self, id: u8) -> bool {
        self.get(id).is_some()
    }

    pub fn number(&self, id: u8) -> Option<u32> {
        match self.get(id)? {
            Value::Byte(n) => Some(u32::from(*n)),
            Value::TwoBytes(n) => Some(u32::from(*n)),
            Value::FourBytes(n) | Value::Varint(n) => Some(*n),
            _ => None,
        }
    }

    pub fn text(&self, id: u8) -> Option<&str> {
        match self.get(id)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn binary(&self, id: u8) -> Option<&[u8]> {
        match self.get(id)? {
            Value::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The values of every user property of that name, in order.
    pub fn user_values(&self, name: &str) -> Vec<&str> {
        self.user_properties()
            .into_iter()
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value)
            .collect()
    }

    pub fn user_properties(&self) -> Vec<(&str, &str)> {
        self.0
            .iter()
            .filter_map(|(_, value)| match value {
                Value::Pair(name, value) => Some((name.as_str(), value.as_str())),
                _ => None,
            })
            .collect()
    }

    /// Every subscription identifier, in order.
    pub fn subscription_identifiers(&self) -> Vec<u32> {
        self.0
            .iter()
            .filter_map(|(found, value)| match value {
                Value::Varint(n) if *found == id::SUBSCRIPTION_IDENTIFIER => Some(*n),
                _ => None,
            })
            .collect()
    }
}
