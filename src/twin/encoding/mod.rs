//! Sections and patches as bytes: rows, and fields of commands.
//!
//! ```text
//! section = 01 version at-ms stamp-version nodes
//! patch   = 02 changes
//! nodes   = { key older newer value }          key = length bytes, in ascending order
//! changes = { key value }
//! value   = 00 | 01                            false, true
//!         | 02 integer                         zigzag
//!         | 03 double                          eight bytes, little-endian
//!         | 04 length bytes                    text
//!         | 05 length { value }                array
//!         | 06 length ( nodes | changes )      object; in an array: { key value }
//!         | 07                                 null, in changes alone
//! ```
//!
//! Numbers are variable-length integers as in Protocol Buffers. A node's stamp is written as how much older it is than
//! that of the object around it, in milliseconds and in versions, which is two zero bytes for most. Objects and arrays
//! have their length before them, so a look-up steps over what it does not want ([`find`]).
//!
//! Protocol Buffers are not used, because a message that holds itself makes the checks of [`crate::base::wire`] recurse
//! as deep as the bytes say, and because a tree of messages takes several times as many bytes and allocations.
//!
//! Invariant: a value has one encoding, so equal sections are equal bytes.
//! Invariant: decoding never panics, recurses no deeper than a document is, and allocates in proportion to the bytes.

mod find;
mod format;
mod read;
mod write;

use bytes::Bytes;

use super::render::Annotations;
use super::section::Section;
use super::tree::{Members, Stamp};
use crate::base::time::Millis;
pub use find::Found;
pub use format::Damaged;
use read::Reader;

const SECTION: u8 = 1;
const PATCH: u8 = 2;

/// A section as it is stored. No bytes are a section that was never written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedSection(pub Bytes);

impl EncodedSection {
    /// The bytes of a section.
    pub fn of(section: &Section) -> EncodedSection {
        let mut out = vec![SECTION];
        write::number(&mut out, section.version);
        write::number(&mut out, section.stamp.at.0);
        write::number(&mut out, section.stamp.version);
        write::nodes(&mut out, section.stamp, &section.members);
        EncodedSection(out.into())
    }

    /// The section.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(&self) -> Result<Section, Damaged> {
        let Some((version, stamp, mut reader)) = self.open()? else {
            return Ok(Section::default());
        };
        let nodes = reader.nodes(stamp, 0)?;
        Ok(Section::restored(version, stamp, nodes))
    }

    /// Its version and when it was written last.
    ///
    /// # Errors
    /// The bytes are no section.
    pub fn head(&self) -> Result<(u64, Stamp), Damaged> {
        let (version, stamp, _) = self.open()?.unwrap_or_else(Self::nothing);
        Ok((version, stamp))
    }

    /// What a path below the section leads to, what it shows of its writes included; `None` where nothing is.
    ///
    /// # Errors
    /// The bytes are no section.
    pub(in crate::twin) fn find<S: AsRef<str>>(
        &self,
        path: &[S],
        annotations: Annotations,
    ) -> Result<Option<Found<'_>>, Damaged> {
        let opened = self.open()?;
        find::find(opened.unwrap_or_else(Self::nothing), path, annotations)
    }

    fn nothing<'a>() -> (u64, Stamp, Reader<'a>) {
        (1, Stamp::default(), Reader(&[]))
    }

    /// Whether it is an empty object.
    ///
    /// # Errors
    /// The bytes are no section.
    pub fn has_no_members(&self) -> Result<bool, Damaged> {
        Ok(self.open()?.is_none_or(|(_, _, reader)| reader.is_empty()))
    }

    /// Version, stamp, and what follows; `None` for a section that was never written.
    fn open(&self) -> Result<Option<(u64, Stamp, Reader<'_>)>, Damaged> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader(&self.0);
        if reader.byte()? != SECTION {
            return Err(Damaged);
        }
        let version = reader.number()?;
        let at = Millis(reader.number()?);
        let stamp = Stamp {
            at,
            version: reader.number()?,
        };
        Ok(Some((version, stamp, reader)))
    }
}

/// The bytes of a patch.
pub fn encode_patch(patch: &Members) -> Bytes {
    let mut out = vec![PATCH];
    write::changes(&mut out, patch);
    out.into()
}

/// The patch that bytes are.
///
/// # Errors
/// They are none.
pub fn decode_patch(bytes: &[u8]) -> Result<Members, Damaged> {
    let mut reader = Reader(bytes);
    match reader.byte()? {
        PATCH => reader.changes(0),
        _ => Err(Damaged),
    }
}
