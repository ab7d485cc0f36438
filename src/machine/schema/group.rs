//! `0x19 | shared filter` → `state.Group`: a share name with its filter, as it was subscribed to.

use super::table::{Table, key, rest};
use crate::base::proto::state;

/// The table.
pub enum Group {}

impl Table for Group {
    const ORDINAL: u8 = 0x19;
    type Key<'a> = &'a str;
    type Row = state::Group;

    fn encode(filter: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[filter.as_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        std::str::from_utf8(rest::<Self>(key)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let filter = "$share/g/ä/#";
        assert_eq!(Group::decode(&Group::encode(filter)), Some(filter));
    }
}
