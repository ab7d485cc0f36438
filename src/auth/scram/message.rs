//! The messages of RFC 5802 §7, as text. Reading never panics; whatever does not fit the grammar is `None`.

use super::{Algorithm, Key, base64, from_base64};

/// `client-first-message`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFirst<'a> {
    /// Channel binding flag and authorization identity, with the comma that ends them.
    pub(super) gs2_header: &'a str,
    /// The authorization identity; empty when none is named.
    pub(super) authorization: String,
    /// What both sides sign.
    pub(super) bare: &'a str,
    pub(super) user: String,
    pub(super) nonce: &'a str,
}

/// `client-final-message`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFinal<'a> {
    /// What both sides sign.
    pub(super) without_proof: &'a str,
    pub(super) channel_binding: Vec<u8>,
    pub(super) nonce: &'a str,
    pub(super) proof: Key,
}

/// `server-first-message`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerFirst<'a> {
    pub(super) nonce: &'a str,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
}

/// `saslname`: no comma, and `=` only as `=2C` and `=3D`.
fn unescape(text: &str) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    let mut parts = text.split('=');
    name.push_str(parts.next()?);
    for part in parts {
        let (c, rest) = match part.get(..2)? {
            "2C" => (',', &part[2..]),
            "3D" => ('=', &part[2..]),
            _ => return None,
        };
        name.push(c);
        name.push_str(rest);
    }
    (!name.is_empty() && !name.contains('\0')).then_some(name)
}

/// The inverse of [`unescape`].
pub(super) fn escape(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// Printable ASCII without a comma.
fn is_nonce(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| (0x21..=0x7E).contains(&b) && b != b',')
}

/// Extensions that are not known may be ignored (RFC 5802 §5.1), if they are attributes at all.
fn are_extensions<'a>(mut attributes: impl Iterator<Item = &'a str>) -> bool {
    attributes.all(|attribute| {
        let bytes = attribute.as_bytes();
        bytes.len() > 2 && bytes[0].is_ascii_alphabetic() && bytes[0] != b'm' && bytes[1] == b'='
    })
}

impl<'a> ClientFirst<'a> {
    /// `p=…` asks for channel binding, `m=…` for an extension that must be understood: neither is.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.splitn(3, ',');
        let (flag, authorization, bare) = (parts.next()?, parts.next()?, parts.next()?);
        if !matches!(flag, "n" | "y") {
            return None;
        }
        let authorization = match authorization {
            "" => String::new(),
            named => unescape(named.strip_prefix("a=")?)?,
        };
        let mut attributes = bare.split(',');
        let user = unescape(attributes.next()?.strip_prefix("n=")?)?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        (is_nonce(nonce) && are_extensions(attributes)).then_some(ClientFirst {
            gs2_header: &text[..text.len() - bare.len()],
            authorization,
            bare,
            user,
            nonce,
        })
    }
}

impl<'a> ClientFinal<'a> {
    pub(super) fn parse(algorithm: Algorithm, text: &'a str) -> Option<Self> {
        let (without_proof, proof) = text.rsplit_once(",p=")?;
        let mut attributes = without_proof.split(',');
        let channel_binding = from_base64(attributes.next()?.strip_prefix("c=")?)?;
        let nonce = attributes.next()?.strip_prefix("r=")?;
        (is_nonce(nonce) && are_extensions(attributes)).then_some(ClientFinal {
            without_proof,
            channel_binding,
            nonce,
            proof: algorithm.key_from_base64(proof)?,
        })
    }
}

impl<'a> ServerFirst<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let mut attributes = text.split(',');
        let nonce = attributes.next()?.strip_prefix("r=")?;
        let salt = from_base64(attributes.next()?.strip_prefix("s=")?)?;
        let iterations = attributes.next()?.strip_prefix("i=")?.parse().ok()?;
        (is_nonce(nonce) && are_extensions(attributes)).then_some(ServerFirst {
            nonce,
            salt,
            iterations,
        })
    }

    pub(super) fn text(&self) -> String {
        let salt = base64(&self.salt);
        format!("r={},s={salt},i={}", self.nonce, self.iterations)
    }
}

/// `AuthMessage`: what both sides sign.
pub(super) fn signed(client_first_bare: &str, server_first: &str, without_proof: &str) -> String {
    format!("{client_first_bare},{server_first},{without_proof}")
}
