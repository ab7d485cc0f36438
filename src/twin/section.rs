//! One section of a twin: merge, replace, size.

use super::limits;
use super::tree::{Content, Members, Node, Nodes, Patch, Stamp, Value};
use crate::base::time::Millis;

/// A section: tags, desired properties or reported properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
    /// Rises by one with every accepted write.
    pub version: u64,
    /// When it was written last.
    pub stamp: Stamp,
    /// Its members.
    pub members: Nodes,
    amount: Amount,
}

impl Default for Section {
    /// A section as a new twin has it.
    fn default() -> Self {
        Section {
            version: 1,
            stamp: Stamp::default(),
            members: Nodes::new(),
            amount: Amount::default(),
        }
    }
}

/// What of a section is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The sum over all members of key and value: characters of a text, 8 for a number, 4 for a boolean, the sum of
    /// what is inside for objects and arrays.
    Size,
    /// Members, at every depth.
    Values,
    /// Elements of arrays, at every depth.
    Elements,
    /// Bytes of keys and texts.
    TextBytes,
}

impl Measure {
    /// Half a sentence for the writer.
    fn words(self) -> &'static str {
        match self {
            Measure::Size => "a size of",
            Measure::Values => "this many members:",
            Measure::Elements => "this many elements of arrays:",
            Measure::TextBytes => "this many bytes of keys and texts:",
        }
    }

    /// What a section may have of it that may have this size.
    pub fn most(self, size: u64) -> u64 {
        match self {
            Measure::Size => size,
            Measure::Values => limits::SECTION_VALUES,
            Measure::Elements => limits::SECTION_ELEMENTS,
            Measure::TextBytes => limits::SECTION_TEXT_BYTES,
        }
    }
}

/// How much there is in a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    size: u64,
    values: u64,
    elements: u64,
    text_bytes: u64,
}

impl Amount {
    fn of(self, measure: Measure) -> u64 {
        match measure {
            Measure::Size => self.size,
            Measure::Values => self.values,
            Measure::Elements => self.elements,
            Measure::TextBytes => self.text_bytes,
        }
    }

    fn add_text(&mut self, text: &str) {
        let counts = text.chars().filter(|character| limits::counts(*character));
        self.size += counts.count() as u64;
        self.text_bytes += text.len() as u64;
    }

    fn add_nodes(&mut self, nodes: &Nodes) {
        for (key, node) in nodes {
            self.add_text(key);
            self.values += 1;
            match &node.content {
                Content::Leaf(value) => self.add_value(value),
                Content::Object(below) => self.add_nodes(below),
            }
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Bool(_) => self.size += 4,
            Value::Integer(_) | Value::Double(_) => self.size += 8,
            Value::Text(text) => self.add_text(text),
            Value::Array(elements) => {
                self.elements += elements.len() as u64;
                elements.iter().for_each(|element| self.add_value(element));
            }
            Value::Object(members) => {
                self.values += members.len() as u64;
                for (key, value) in members {
                    self.add_text(key);
                    self.add_value(value);
                }
            }
        }
    }
}

/// A write would make a section larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the section would have {} {size}, and may have {most}", .measure.words())]
pub struct TooLarge {
    /// What of it.
    pub measure: Measure,
    /// How much there would be.
    pub size: u64,
    /// How much there may be.
    pub most: u64,
}

impl Section {
    /// A section that was written before.
    pub(super) fn restored(version: u64, stamp: Stamp, members: Nodes) -> Section {
        let mut amount = Amount::default();
        amount.add_nodes(&members);
        Section {
            version,
            stamp,
            members,
            amount,
        }
    }

    /// As [`Measure::Size`].
    #[cfg(test)]
    pub fn size(&self) -> u64 {
        self.amount.size
    }

    /// The section after a patch (RFC 7386) at a log time. Every node that the patch names is stamped, and the section
    /// itself.
    ///
    /// # Errors
    /// It would have more of something than it may have (`most`: the size), and more than it has: what is too large may
    /// be made smaller step by step.
    pub fn merged(mut self, patch: Members, at: Millis, most: u64) -> Result<Section, TooLarge> {
        let stamp = self.next_stamp(at);
        let mut members = std::mem::take(&mut self.members);
        merge(&mut members, patch, stamp);
        self.next(stamp, members, most)
    }

    /// The section after it was replaced at a log time.
    ///
    /// # Errors
    /// As for [`Section::merged`].
    pub fn replaced(&self, by: Members, at: Millis, most: u64) -> Result<Section, TooLarge> {
        let stamp = self.next_stamp(at);
        self.next(stamp, new_nodes(by, stamp), most)
    }

    fn next_stamp(&self, at: Millis) -> Stamp {
        let version = self.version + 1;
        // Log time never goes back; a section is not to depend on it.
        let at = at.max(self.stamp.at);
        Stamp { at, version }
    }

    fn next(&self, stamp: Stamp, members: Nodes, most: u64) -> Result<Section, TooLarge> {
        let next = Section::restored(stamp.version, stamp, members);
        for measure in [
            Measure::Size,
            Measure::Values,
            Measure::Elements,
            Measure::TextBytes,
        ] {
            let (size, former) = (next.amount.of(measure), self.amount.of(measure));
            let most = measure.most(most);
            if size > most && size > former {
                return Err(TooLarge {
                    measure,
                    size,
                    most,
                });
            }
        }
        Ok(next)
    }
}

fn merge(members: &mut Nodes, patch: Members, stamp: Stamp) {
    for (key, change) in patch {
        let changes = match change {
            Patch::Delete => {
                members.remove(&key);
                continue;
            }
            Patch::Leaf(value) => {
                let content = Content::Leaf(value);
                members.insert(key, Node { stamp, content });
                continue;
            }
            Patch::Object(changes) => changes,
        };
        if let Some(node) = members.get_mut(&key)
            && let Content::Object(below) = &mut node.content
        {
            node.stamp = stamp;
            merge(below, changes, stamp);
        } else {
            let content = Content::Object(new_nodes(changes, stamp));
            members.insert(key, Node { stamp, content });
        }
    }
}

/// What a patch makes of nothing.
pub(super) fn new_nodes(patch: Members, stamp: Stamp) -> Nodes {
    let node = |(key, change)| {
        let content = match change {
            Patch::Delete => return None,
            Patch::Leaf(value) => Content::Leaf(value),
            Patch::Object(changes) => Content::Object(new_nodes(changes, stamp)),
        };
        Some((key, Node { stamp, content }))
    };
    patch.into_iter().filter_map(node).collect()
}
