//! `0x05 | kind u8 | name` → `state.DirectoryEntry`: what operators keep in the cluster.

use super::table::{Range, Table, key, rest};
use crate::base::directory::Kind;
use crate::base::proto::state;

/// The table.
pub enum DirectoryEntry {}

impl Table for DirectoryEntry {
    const ORDINAL: u8 = 0x05;
    type Key<'a> = (Kind, &'a str);
    type Row = state::DirectoryEntry;

    fn encode((kind, name): Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&[kind as u8], name.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        of_subject(rest::<Self>(key)?)
    }
}

impl DirectoryEntry {
    /// The entries of a kind.
    pub fn of_kind(kind: Kind) -> Range<Self> {
        Range::new(
            key::<Self>(&[&[kind as u8]]),
            key::<Self>(&[&[kind as u8 + 1]]),
        )
    }
}

/// What names an entry in a timer: its key without the table's ordinal.
pub fn subject(kind: Kind, name: &str) -> Vec<u8> {
    [&[kind as u8], name.as_bytes()].concat()
}

/// The inverse of [`subject`].
pub fn of_subject(subject: &[u8]) -> Option<(Kind, &str)> {
    let (kind, name) = subject.split_first()?;
    Some((
        Kind::of_number(u32::from(*kind))?,
        std::str::from_utf8(name).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::table::has;
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        for kind in Kind::ALL {
            let key = DirectoryEntry::encode((kind, "kä/#"));
            assert_eq!(DirectoryEntry::decode(&key), Some((kind, "kä/#")));
        }
        assert_eq!(DirectoryEntry::decode(&[5]), None);
        assert_eq!(DirectoryEntry::decode(&[5, 0, b'a']), None);
        assert_eq!(DirectoryEntry::decode(&[5, 1, 0xff]), None);
    }

    #[test]
    fn the_entries_of_a_kind_are_together() {
        let range = DirectoryEntry::of_kind(Kind::Ban);
        assert!(has(&range, &DirectoryEntry::encode((Kind::Ban, ""))));
        assert!(has(
            &range,
            &DirectoryEntry::encode((Kind::Ban, "\u{10ffff}"))
        ));
        assert!(!has(&range, &DirectoryEntry::encode((Kind::User, "z"))));
        assert!(!has(&range, &DirectoryEntry::encode((Kind::Rules, ""))));
    }
}
