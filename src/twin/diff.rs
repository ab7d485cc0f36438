//! What became of a section, as a patch that makes the one after of the one before: what the back end's notification
//! says of a replaced section, and of several writes at once.

use super::encoding::{Damaged, EncodedSection};
use super::render;
use super::tree::{Content, Members, Nodes, Patch};

/// The whole section after, and a deletion of every key, at every depth, that it has no more.
pub fn difference(before: &Nodes, after: &Nodes) -> Members {
    let mut changes = Members::new();
    for key in before.keys() {
        if !after.contains_key(key) {
            changes.insert(key.clone(), Patch::Delete);
        }
    }
    let nothing = Nodes::new();
    for (key, node) in after {
        let change = match &node.content {
            Content::Leaf(value) => Patch::Leaf(value.clone()),
            Content::Object(below) => {
                let former = before.get(key).map(|former| &former.content);
                let former = match former {
                    Some(Content::Object(former)) => former,
                    _ => &nothing,
                };
                Patch::Object(difference(former, below))
            }
        };
        changes.insert(key.clone(), change);
    }
    changes
}

/// The body of the notification of one write: its patch, or [`difference`], and the version after it.
pub fn notification(patch: &Members, version: u64) -> String {
    render::patch(patch, version)
}

/// The body of one notification in place of several: what became of the desired properties from before the first to
/// after the last.
///
/// # Errors
/// The bytes are no sections.
pub fn folded(before: &EncodedSection, after: &EncodedSection) -> Result<String, Damaged> {
    let (before, after) = (before.decode()?, after.decode()?);
    let changes = difference(&before.members, &after.members);
    Ok(render::patch(&changes, after.version))
}
