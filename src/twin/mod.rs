//! Documents of the hub: what a device twin and a module twin hold, and what a write does to them.
//!
//! A twin has three sections: tags, desired properties and reported properties. A section is an annotated tree
//! ([`Section`]): each node knows when it was written last, and in which version of its section. A request is read as
//! a tree of changes ([`Members`] of [`Patch`]), which is judged by every limit that needs no state ([`request`]). Then
//! [`Section::merged`] or [`Section::replaced`] makes the next section of it, and judges its size.
//!
//! Invariant: nothing here has a clock, randomness, disk or network. Input is refused, and never panics.
//! Invariant: an ancestor is never older than its descendants.
//!
//! | file | |
//! |---|---|
//! | `tree` | values, nodes, patches |
//! | `limits` | what a document may hold, with its reasons |
//! | `request` | bodies of requests: JSON in, trees of changes out |
//! | `section` | merge, replace, size |
//! | `diff` | what became of a section, as a patch |
//! | `encoding` | sections and patches as bytes, in rows and in commands; look-ups in them |
//! | `render` | sections, metadata and patches as JSON |
//! | `view` | whole twins as the back end and as the device see them; look-ups in them |
//! | `event` | what events say of twins |
//! | `etag` | etags of twins |

mod diff;
pub mod encoding;
pub mod etag;
mod event;
pub mod limits;
mod render;
pub mod request;
mod section;
#[cfg(test)]
mod tests;
mod tree;
mod view;

pub use diff::{difference, folded, notification};
pub use encoding::{Damaged, EncodedSection, Found};
pub use event::TwinChange;
pub use section::{Measure, Section, TooLarge};
pub use tree::Members;
#[cfg(test)]
pub use tree::{Content, Nodes, Patch, Stamp, Value};
pub use view::{Twin, device_view};
