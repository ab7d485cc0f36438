//! Identity documents: what a back end sends, and what it is answered.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::etag;
use super::fingerprint::Authentication;
use super::id::{IdentityId, InvalidId};
use crate::base::json::{self, Json, Malformed, ObjectWriter};
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::base::utc::Utc;

/// Characters of a status reason.
const REASON_CHARACTERS: usize = 128;

/// Characters of the text that says who manages a module.
const MANAGED_BY_CHARACTERS: usize = 128;

/// Bytes of a key.
const KEY_BYTES: std::ops::RangeInclusive<usize> = 16..=64;

/// Hexadecimal digits of a thumbprint: SHA-1 or SHA-256.
const THUMBPRINT_DIGITS: [usize; 2] = [40, 64];

/// Why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is not JSON.
    #[error("the body is malformed: {0}")]
    NotJson(#[from] Malformed),
    /// It is JSON, and breaks a rule.
    #[error("{0}")]
    Invalid(#[from] Invalid),
}

/// The rule that a document breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The document is no object.
    #[error("the body is not an object")]
    NotAnObject,
    /// A member has a value of another type, or none of those it may have.
    #[error("{0} has a value that it may not have")]
    Member(&'static str),
    /// An id breaks a rule.
    #[error("{0}")]
    Id(#[from] InvalidId),
    /// The document is of another identity than the path names.
    #[error("the ids in the body are not those in the path")]
    OtherId,
    /// A text is too long.
    #[error("{0} is longer than it may be")]
    TooLong(&'static str),
    /// A key is not base64, or has another length.
    #[error("a key is not base64 of {} to {} bytes", KEY_BYTES.start(), KEY_BYTES.end())]
    Key,
    /// There is one key and not the other.
    #[error("there is one key without the other")]
    OneKey,
    /// A thumbprint is not hexadecimal, or has another length.
    #[error("a thumbprint is not 40 or 64 hexadecimal digits")]
    Thumbprint,
    /// Thumbprints are how it proves itself, and there is none.
    #[error("there is no thumbprint")]
    NoThumbprint,
}

/// Reads what a back end says of an identity. Members that are not known are passed over.
///
/// # Errors
/// What is wrong with it.
pub fn parse(id: &IdentityId, body: &[u8]) -> Result<command::IdentityFields, Refused> {
    let Json::Object(body) = json::parse(body)? else {
        return Err(Invalid::NotAnObject.into());
    };
    Ok(fields(id, &body)?)
}

type Object = BTreeMap<String, Json>;

fn fields(id: &IdentityId, body: &Object) -> Result<command::IdentityFields, Invalid> {
    let device = text(body, "deviceId")?;
    let module = text(body, "moduleId")?;
    if device.is_some_and(|device| device != id.device_id())
        || module.is_some_and(|module| Some(module) != id.module_id())
        || device.is_none()
        || (id.is_module() && module.is_none())
    {
        return Err(Invalid::OtherId);
    }
    let mut fields = command::IdentityFields::default();
    authentication(id, body, &mut fields)?;
    if id.is_module() {
        let managed_by = text(body, "managedBy")?;
        fields.managed_by = bounded(managed_by, "managedBy", MANAGED_BY_CHARACTERS)?;
        return Ok(fields);
    }
    fields.disabled = match text(body, "status")? {
        None | Some("enabled") => false,
        Some("disabled") => true,
        Some(_) => return Err(Invalid::Member("status")),
    };
    let reason = text(body, "statusReason")?;
    fields.status_reason = bounded(reason, "statusReason", REASON_CHARACTERS)?;
    if let Some(capabilities) = object(body, "capabilities")? {
        fields.iot_edge = match capabilities.get("iotEdge") {
            None | Some(Json::Null) => false,
            Some(Json::Bool(is_edge)) => *is_edge,
            Some(_) => return Err(Invalid::Member("capabilities.iotEdge")),
        };
    }
    Ok(fields)
}

fn authentication(
    id: &IdentityId,
    body: &Object,
    fields: &mut command::IdentityFields,
) -> Result<(), Invalid> {
    let nothing = Object::new();
    let given = object(body, "authentication")?.unwrap_or(&nothing);
    let way = match text(given, "type")? {
        None | Some("sas") => Authentication::Sas,
        Some("selfSigned") => Authentication::SelfSigned,
        Some("certificateAuthority") => Authentication::CertificateAuthority,
        Some("none") if id.is_module() => Authentication::Sas,
        Some(_) => return Err(Invalid::Member("authentication.type")),
    };
    fields.authentication = way as u32;
    // Both are judged whatever the type says, and kept where it uses them.
    let keys = object(given, "symmetricKey")?.unwrap_or(&nothing);
    let keys = match (key(keys, "primaryKey")?, key(keys, "secondaryKey")?) {
        (None, None) => None,
        (Some(primary), Some(secondary)) => Some((primary, secondary)),
        _ => return Err(Invalid::OneKey),
    };
    let thumbprints = object(given, "x509Thumbprint")?.unwrap_or(&nothing);
    let primary = thumbprint(thumbprints, "primaryThumbprint")?;
    let secondary = thumbprint(thumbprints, "secondaryThumbprint")?;
    match way {
        Authentication::Sas => {
            (fields.primary_key, fields.secondary_key) = keys.unwrap_or_default();
        }
        Authentication::SelfSigned if primary.is_none() && secondary.is_none() => {
            return Err(Invalid::NoThumbprint);
        }
        Authentication::SelfSigned => {
            fields.primary_thumbprint = primary;
            fields.secondary_thumbprint = secondary;
        }
        Authentication::CertificateAuthority => {}
    }
    Ok(())
}

/// Whether keys are to be made for an identity.
pub fn needs_keys(fields: &command::IdentityFields) -> bool {
    fields.authentication == Authentication::Sas as u32 && fields.primary_key.is_empty()
}

/// A member that is a text; `null` is as if it were not there.
fn text<'a>(object: &'a Object, name: &'static str) -> Result<Option<&'a str>, Invalid> {
    match object.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Text(text)) => Ok(Some(text)),
        Some(_) => Err(Invalid::Member(name)),
    }
}

/// A member that is an object; `null` is as if it were not there.
fn object<'a>(object: &'a Object, name: &'static str) -> Result<Option<&'a Object>, Invalid> {
    match object.get(name) {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Object(object)) => Ok(Some(object)),
        Some(_) => Err(Invalid::Member(name)),
    }
}

fn bounded(text: Option<&str>, name: &'static str, most: usize) -> Result<Option<String>, Invalid> {
    match text {
        Some(text) if text.chars().count() > most => Err(Invalid::TooLong(name)),
        text => Ok(text.map(str::to_owned)),
    }
}

/// A key; an empty text is as if it were not there.
fn key(keys: &Object, name: &'static str) -> Result<Option<Bytes>, Invalid> {
    let Some(key) = text(keys, name)?.filter(|key| !key.is_empty()) else {
        return Ok(None);
    };
    let key = STANDARD.decode(key).map_err(|_| Invalid::Key)?;
    match KEY_BYTES.contains(&key.len()) {
        true => Ok(Some(key.into())),
        false => Err(Invalid::Key),
    }
}

/// A thumbprint; an empty text is as if it were not there.
fn thumbprint(thumbprints: &Object, name: &'static str) -> Result<Option<String>, Invalid> {
    let Some(thumbprint) = text(thumbprints, name)?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let is_hex = thumbprint.bytes().all(|byte| byte.is_ascii_hexdigit());
    match is_hex && THUMBPRINT_DIGITS.contains(&thumbprint.len()) {
        true => Ok(Some(thumbprint.to_owned())),
        false => Err(Invalid::Thumbprint),
    }
}

/// What an identity's session and twin say of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// A connection owns its session.
    pub is_connected: bool,
    /// When it connected or disconnected last.
    pub changed: Millis,
    /// When it connected, disconnected or reported last.
    pub active: Millis,
}

impl Presence {
    /// The name of the state.
    pub fn name(&self) -> &'static str {
        match self.is_connected {
            true => "Connected",
            false => "Disconnected",
        }
    }
}

/// The name of a status.
pub fn status(identity: &state::Identity) -> &'static str {
    match identity.disabled {
        true => "disabled",
        false => "enabled",
    }
}

/// The name of the way that an identity proves itself.
pub fn authentication_type(identity: &state::Identity) -> &'static str {
    let way = Authentication::of_number(identity.authentication);
    way.unwrap_or(Authentication::Sas).name()
}

/// An identity, as a back end reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentityDocument {
    /// Whose it is.
    pub id: IdentityId,
    /// Its row.
    pub identity: state::Identity,
    /// What is known of its connections.
    pub presence: Presence,
}

impl IdentityDocument {
    /// The etag, for `If-Match` and the header `ETag`.
    pub fn etag(&self) -> String {
        etag::format(self.identity.etag)
    }

    /// The document.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(1024);
        self.write(&mut out);
        out
    }

    /// Appends the document.
    pub fn write(&self, out: &mut String) {
        let IdentityDocument {
            id,
            identity,
            presence,
        } = self;
        let mut object = ObjectWriter::new(out);
        object.text("deviceId", id.device_id());
        if let Some(module) = id.module_id() {
            object.text("moduleId", module);
            object.optional("managedBy", identity.managed_by.as_deref());
        }
        object.quoted("generationId", identity.generation);
        object.text("etag", &self.etag());
        object.text("connectionState", presence.name());
        object.quoted("connectionStateUpdatedTime", Utc(presence.changed));
        if !id.is_module() {
            object.text("status", status(identity));
            object.optional("statusReason", identity.status_reason.as_deref());
            let updated = Millis(identity.status_updated_ms);
            object.quoted("statusUpdatedTime", Utc(updated));
        }
        object.quoted("lastActivityTime", Utc(presence.active));
        object.plain("cloudToDeviceMessageCount", 0);
        write_authentication(object.key("authentication"), identity);
        if !id.is_module() {
            write_capabilities(object.key("capabilities"), identity);
        }
        object.end();
    }
}

/// Appends the capabilities of a device, as its document and its twin have them.
pub fn write_capabilities(out: &mut String, identity: &state::Identity) {
    let mut object = ObjectWriter::new(out);
    object.plain("iotEdge", identity.iot_edge);
    object.end();
}

fn write_authentication(out: &mut String, identity: &state::Identity) {
    let key = |key: &Bytes| (!key.is_empty()).then(|| STANDARD.encode(key));
    let mut object = ObjectWriter::new(out);
    object.text("type", authentication_type(identity));
    let mut keys = ObjectWriter::new(object.key("symmetricKey"));
    keys.optional("primaryKey", key(&identity.primary_key).as_deref());
    keys.optional("secondaryKey", key(&identity.secondary_key).as_deref());
    keys.end();
    write_thumbprints(object.key("x509Thumbprint"), identity);
    object.end();
}

/// Appends the thumbprints of an identity, as its document and its twin have them.
pub fn write_thumbprints(out: &mut String, identity: &state::Identity) {
    let mut object = ObjectWriter::new(out);
    object.optional("primaryThumbprint", identity.primary_thumbprint.as_deref());
    object.optional(
        "secondaryThumbprint",
        identity.secondary_thumbprint.as_deref(),
    );
    object.end();
}
