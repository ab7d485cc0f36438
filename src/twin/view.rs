//! Whole twins: as back ends see them, as devices see them, and one path of them.

use super::encoding::{Damaged, EncodedSection, Found};
use super::etag;
use super::render::{self, Annotations};
use super::section::Section;
use super::tree::{Content, Nodes};
use crate::base::json::ObjectWriter;
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::base::utc::Utc;
use crate::registry::document::{
    Presence, authentication_type, status, write_capabilities, write_thumbprints,
};
use crate::registry::{self, IdentityId};

/// The rows of a twin and of its identity, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Twin {
    /// Whose it is.
    pub id: IdentityId,
    /// The identity.
    pub identity: state::Identity,
    /// The identity of the device that a module is of.
    pub device: Option<state::Identity>,
    /// What counts its writes.
    pub head: state::TwinHead,
    /// The tags.
    pub tags: EncodedSection,
    /// The desired properties.
    pub desired: EncodedSection,
    /// The reported properties.
    pub reported: EncodedSection,
    /// What is known of its connections.
    pub activity: state::Activity,
    /// A connection owns the identity's session.
    pub is_connected: bool,
}

impl Twin {
    /// The etag, for `If-Match` and the header `ETag`.
    pub fn etag(&self) -> String {
        etag::format(self.head.etag)
    }

    /// What is known of its connections.
    ///
    /// # Errors
    /// The bytes of the reported properties are damaged.
    pub fn presence(&self) -> Result<Presence, Damaged> {
        let changed = Millis(self.activity.connection_ms);
        let (_, reported) = self.reported.head()?;
        Ok(Presence {
            is_connected: self.is_connected,
            changed,
            active: changed.max(reported.at),
        })
    }

    /// The identity whose status the twin shows: a module has none of its own.
    fn with_status(&self) -> &state::Identity {
        self.device.as_ref().unwrap_or(&self.identity)
    }

    /// The whole twin, as back ends see it.
    ///
    /// # Errors
    /// The bytes of a section are damaged.
    pub fn render(&self) -> Result<String, Damaged> {
        let mut out = String::with_capacity(1024);
        self.write(&mut out)?;
        Ok(out)
    }

    /// Appends the whole twin, as back ends see it.
    ///
    /// # Errors
    /// The bytes of a section are damaged; part of it may be there then.
    pub fn write(&self, out: &mut String) -> Result<(), Damaged> {
        let (presence, with_status) = (self.presence()?, self.with_status());
        let mut object = ObjectWriter::new(out);
        object.text("deviceId", self.id.device_id());
        if let Some(module) = self.id.module_id() {
            object.text("moduleId", module);
        }
        object.text("etag", &self.etag());
        object.text("deviceEtag", &registry::etag::format(self.identity.etag));
        object.text("status", status(with_status));
        if let Some(reason) = &with_status.status_reason {
            object.text("statusReason", reason);
        }
        let updated = Millis(with_status.status_updated_ms);
        object.quoted("statusUpdateTime", Utc(updated));
        object.text("connectionState", presence.name());
        object.quoted("lastActivityTime", Utc(presence.active));
        object.plain("cloudToDeviceMessageCount", 0);
        object.text("authenticationType", authentication_type(&self.identity));
        write_thumbprints(object.key("x509Thumbprint"), &self.identity);
        object.text("modelId", &self.activity.model_id);
        object.plain("version", self.head.version);
        if !self.id.is_module() {
            write_capabilities(object.key("capabilities"), &self.identity);
        }
        let tags = self.tags.decode()?;
        if !tags.members.is_empty() {
            render::annotated(object.key("tags"), &tags, Annotations::None);
        }
        self.write_properties(object.key("properties"))?;
        object.end();
        Ok(())
    }

    pub(super) fn write_properties(&self, out: &mut String) -> Result<(), Damaged> {
        let mut object = ObjectWriter::new(out);
        let desired = self.desired.decode()?;
        render::annotated(object.key("desired"), &desired, Annotations::Versions);
        let reported = self.reported.decode()?;
        render::annotated(object.key("reported"), &reported, Annotations::Times);
        object.end();
        Ok(())
    }

    /// What a path leads to; `None` where the back end's view has nothing. An object or array can be written with
    /// [`Twin::write_at`].
    ///
    /// # Errors
    /// The bytes of a section are damaged.
    pub fn find<S: AsRef<str>>(&self, path: &[S]) -> Result<Option<Found<'_>>, Damaged> {
        let Some((root, rest)) = path.split_first() else {
            return Ok(Some(Found::Composite));
        };
        let scalar = match root.as_ref() {
            "tags" => return self.find_tag(rest),
            "properties" => return self.find_property(rest),
            "x509Thumbprint" => return Ok(self.find_thumbprint(rest)),
            "capabilities" => return Ok(self.find_capability(rest)),
            root => self.find_scalar(root)?,
        };
        Ok(scalar.filter(|_| rest.is_empty()))
    }

    fn find_scalar(&self, root: &str) -> Result<Option<Found<'_>>, Damaged> {
        let time = |at: Millis| Found::Text(Utc(at).to_string().into());
        let with_status = self.with_status();
        Ok(Some(match root {
            "deviceId" => Found::Text(self.id.device_id().into()),
            "moduleId" => return Ok(self.id.module_id().map(|id| Found::Text(id.into()))),
            "etag" => Found::Text(self.etag().into()),
            "deviceEtag" => Found::Text(registry::etag::format(self.identity.etag).into()),
            "status" => Found::Text(status(with_status).into()),
            "statusReason" => {
                let reason = with_status.status_reason.as_deref();
                return Ok(reason.map(|reason| Found::Text(reason.into())));
            }
            "statusUpdateTime" => time(Millis(with_status.status_updated_ms)),
            "connectionState" => Found::Text(self.presence()?.name().into()),
            "lastActivityTime" => time(self.presence()?.active),
            "cloudToDeviceMessageCount" => Found::Integer(0),
            "authenticationType" => Found::Text(authentication_type(&self.identity).into()),
            "modelId" => Found::Text((&*self.activity.model_id).into()),
            "version" => Found::counter(self.head.version),
            _ => return Ok(None),
        }))
    }

    fn find_tag<S: AsRef<str>>(&self, path: &[S]) -> Result<Option<Found<'_>>, Damaged> {
        let is_root = path.is_empty();
        let found = self.tags.find(path, Annotations::None)?;
        let is_there = !is_root || !self.tags.has_no_members()?;
        Ok(found.filter(|_| is_there))
    }

    fn find_property<S: AsRef<str>>(&self, path: &[S]) -> Result<Option<Found<'_>>, Damaged> {
        let Some((section, rest)) = path.split_first() else {
            return Ok(Some(Found::Composite));
        };
        match section.as_ref() {
            "desired" => self.desired.find(rest, Annotations::Versions),
            "reported" => self.reported.find(rest, Annotations::Times),
            _ => Ok(None),
        }
    }

    fn find_thumbprint<S: AsRef<str>>(&self, path: &[S]) -> Option<Found<'_>> {
        let Some((name, rest)) = path.split_first() else {
            return Some(Found::Composite);
        };
        let thumbprint = match name.as_ref() {
            "primaryThumbprint" => &self.identity.primary_thumbprint,
            "secondaryThumbprint" => &self.identity.secondary_thumbprint,
            _ => return None,
        };
        rest.is_empty()
            .then(|| Found::optional(thumbprint.as_deref()))
    }

    fn find_capability<S: AsRef<str>>(&self, path: &[S]) -> Option<Found<'_>> {
        if self.id.is_module() {
            return None;
        }
        match path {
            [] => Some(Found::Composite),
            [name] if name.as_ref() == "iotEdge" => Some(Found::Bool(self.identity.iot_edge)),
            _ => None,
        }
    }

    /// Appends the object or array that a path leads to ([`Found::Composite`]); nothing, where it leads to no such.
    ///
    /// # Errors
    /// The bytes of a section are damaged.
    pub fn write_at<S: AsRef<str>>(&self, path: &[S], out: &mut String) -> Result<(), Damaged> {
        let path: Vec<&str> = path.iter().map(AsRef::as_ref).collect();
        match path.as_slice() {
            [] => self.write(out)?,
            ["x509Thumbprint"] => write_thumbprints(out, &self.identity),
            ["capabilities"] => write_capabilities(out, &self.identity),
            ["properties"] => self.write_properties(out)?,
            ["tags", rest @ ..] => write_below(&self.tags, rest, Annotations::None, out)?,
            ["properties", "desired", rest @ ..] => {
                write_below(&self.desired, rest, Annotations::Versions, out)?;
            }
            ["properties", "reported", rest @ ..] => {
                write_below(&self.reported, rest, Annotations::Times, out)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Appends what a path below a section leads to.
fn write_below(
    section: &EncodedSection,
    path: &[&str],
    annotations: Annotations,
    out: &mut String,
) -> Result<(), Damaged> {
    let section = section.decode()?;
    match path {
        [] => render::annotated(out, &section, annotations),
        ["$metadata", rest @ ..] if annotations != Annotations::None => {
            write_metadata(&section, rest, annotations, out);
        }
        [first, rest @ ..] => {
            if let Some(content) = node(&section.members, first, rest).map(|node| &node.content) {
                render::content(out, content);
            }
        }
    }
    Ok(())
}

fn write_metadata(section: &Section, path: &[&str], annotations: Annotations, out: &mut String) {
    let [first, rest @ ..] = path else {
        let members = Some(&section.members);
        return render::metadata(out, section.stamp, members, annotations);
    };
    if let Some(node) = node(&section.members, first, rest) {
        let below = match &node.content {
            Content::Leaf(_) => None,
            Content::Object(below) => Some(below),
        };
        render::metadata(out, node.stamp, below, annotations);
    }
}

fn node<'a>(members: &'a Nodes, first: &str, rest: &[&str]) -> Option<&'a super::tree::Node> {
    let mut node = members.get(first)?;
    for key in rest {
        let Content::Object(below) = &node.content else {
            return None;
        };
        node = below.get(*key)?;
    }
    Some(node)
}

/// What a device or a module gets of its own twin: both property sections with their versions.
///
/// # Errors
/// The bytes of a section are damaged.
pub fn device_view(desired: &EncodedSection, reported: &EncodedSection) -> Result<String, Damaged> {
    let mut out = String::with_capacity(256);
    let mut object = ObjectWriter::new(&mut out);
    render::section(object.key("desired"), &desired.decode()?);
    render::section(object.key("reported"), &reported.decode()?);
    object.end();
    Ok(out)
}
