//! What events say of twins.

use super::encoding::Damaged;
use super::render::{self, Annotations};
use super::section::Section;
use super::tree::{Content, Members, Nodes, Patch, Stamp};
use super::view::Twin;
use crate::base::json::ObjectWriter;
use crate::base::utc::Utc;

/// What one request has changed of a twin.
#[derive(Debug, Default)]
pub struct TwinChange {
    /// The `version` of the twin after it.
    pub version: u64,
    /// What was to become of its tags.
    pub tags: Option<Members>,
    /// The same of its desired properties, and what they are after it.
    pub desired: Option<(Members, Section)>,
    /// The same of its reported properties.
    pub reported: Option<(Members, Section)>,
}

impl TwinChange {
    /// The body of the event: what the request has changed, deleted members as `null`, and when. One that would have
    /// more than `most` bytes says only which write it was. With it, how many bytes were rendered: as many at least.
    pub fn render(&self, most: usize) -> (String, usize) {
        let whole = self.render_whole();
        let rendered = whole.len();
        if rendered <= most {
            return (whole, rendered);
        }
        let short = format!("{{\"version\":{},\"truncated\":true}}", self.version);
        let rendered = rendered.max(short.len());
        (short, rendered)
    }

    fn render_whole(&self) -> String {
        let mut out = String::new();
        let mut object = ObjectWriter::new(&mut out);
        object.plain("version", self.version);
        if let Some(tags) = &self.tags {
            let mut members = ObjectWriter::new(object.key("tags"));
            render::changes(&mut members, tags);
            members.end();
        }
        if self.desired.is_some() || self.reported.is_some() {
            let mut properties = ObjectWriter::new(object.key("properties"));
            for (name, change, annotations) in [
                ("desired", &self.desired, Annotations::Versions),
                ("reported", &self.reported, Annotations::Times),
            ] {
                if let Some((patch, after)) = change {
                    section(properties.key(name), patch, after, annotations);
                }
            }
            properties.end();
        }
        object.end();
        out
    }
}

/// The changed members of a section, with the metadata of those and its version.
fn section(out: &mut String, patch: &Members, after: &Section, annotations: Annotations) {
    let mut object = ObjectWriter::new(out);
    render::changes(&mut object, patch);
    touched(
        object.key("$metadata"),
        after.stamp,
        patch,
        &after.members,
        annotations,
    );
    object.plain("$version", after.version);
    object.end();
}

/// The metadata of what a patch names.
fn touched(
    out: &mut String,
    stamp: Stamp,
    patch: &Members,
    after: &Nodes,
    annotations: Annotations,
) {
    let mut object = ObjectWriter::new(out);
    object.quoted("$lastUpdated", Utc(stamp.at));
    if annotations == Annotations::Versions {
        object.plain("$lastUpdatedVersion", stamp.version);
    }
    for (key, change) in patch {
        let Some(node) = after.get(key) else {
            continue;
        };
        let out = object.key(key);
        match (change, &node.content) {
            (Patch::Object(patch), Content::Object(below)) => {
                touched(out, node.stamp, patch, below, annotations);
            }
            _ => render::metadata(out, node.stamp, None, annotations),
        }
    }
    object.end();
}

impl Twin {
    /// The body of an event about the whole twin. One that would have more than `most` bytes leaves the sections out,
    /// and says so.
    ///
    /// # Errors
    /// The bytes of a section are damaged.
    pub fn render_event(&self, most: usize) -> Result<String, Damaged> {
        // JSON is longer than what is stored: what can't fit is not even read.
        if self.stored_bytes() <= most {
            let whole = self.render_with(true)?;
            if whole.len() <= most {
                return Ok(whole);
            }
        }
        self.render_with(false)
    }

    /// Bytes of its sections as they are stored.
    pub fn stored_bytes(&self) -> usize {
        self.tags.0.len() + self.desired.0.len() + self.reported.0.len()
    }

    fn render_with(&self, sections: bool) -> Result<String, Damaged> {
        let mut out = String::with_capacity(512);
        let mut object = ObjectWriter::new(&mut out);
        object.text("deviceId", self.id.device_id());
        if let Some(module) = self.id.module_id() {
            object.text("moduleId", module);
        }
        object.text("etag", &self.etag());
        object.plain("version", self.head.version);
        match sections {
            true => {
                let tags = self.tags.decode()?;
                render::annotated(object.key("tags"), &tags, Annotations::None);
                self.write_properties(object.key("properties"))?;
            }
            false => object.plain("truncated", true),
        }
        object.end();
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Millis;
    use crate::twin::Value;

    #[test]
    fn a_change_says_what_was_touched_and_when() {
        let leaf = |value: i64| Patch::Leaf(Value::Integer(value));
        let former = Section::default();
        let first = Members::from([
            ("kept".to_owned(), leaf(1)),
            ("gone".to_owned(), leaf(2)),
            (
                "deep".to_owned(),
                Patch::Object(Members::from([
                    ("x".to_owned(), leaf(3)),
                    ("y".to_owned(), leaf(4)),
                ])),
            ),
        ]);
        let former = former.merged(first, Millis(1_000), 1_000).expect("it fits");
        let patch = Members::from([
            ("gone".to_owned(), Patch::Delete),
            (
                "deep".to_owned(),
                Patch::Object(Members::from([("x".to_owned(), leaf(5))])),
            ),
        ]);
        let after = former
            .merged(patch.clone(), Millis(2_000), 1_000)
            .expect("it fits");
        let change = TwinChange {
            version: 7,
            tags: Some(Members::from([("site".to_owned(), Patch::Delete)])),
            desired: Some((patch, after)),
            reported: None,
        };
        assert_eq!(
            change.render(usize::MAX).0,
            concat!(
                r#"{"version":7,"tags":{"site":null},"properties":{"desired":{"deep":{"x":5},"gone":null,"#,
                r#""$metadata":{"$lastUpdated":"1970-01-01T00:00:02.000Z","$lastUpdatedVersion":3,"#,
                r#""deep":{"$lastUpdated":"1970-01-01T00:00:02.000Z","$lastUpdatedVersion":3,"#,
                r#""x":{"$lastUpdated":"1970-01-01T00:00:02.000Z","$lastUpdatedVersion":3}}},"$version":3}}}"#,
            )
        );
    }
}
