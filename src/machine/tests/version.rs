//! What may be proposed and stored does not change unnoticed.

use sha2::{Digest as _, Sha256};

use crate::base::time::Millis;
use crate::machine::VERSION;
use crate::machine::schema::{self, Table as _};

/// The version of the machine, and a hash of the commands, rows, tables and timers that it has. A new field is enough
/// to make replicas differ, so whoever records a hash anew raises the version, once in every release.
const RECORDED: (u32, &str) = (13, "ca70c99d09260740");

/// Commands and rows, without comments.
const FORMATS: [&str; 2] = [
    include_str!("../../../proto/command.proto"),
    include_str!("../../../proto/state.proto"),
];

#[test]
fn a_change_of_what_is_proposed_or_stored_has_a_version_of_its_own() {
    let mut hasher = Sha256::new();
    for line in FORMATS.into_iter().flat_map(str::lines) {
        let line = line.split_once("//").map_or(line, |(before, _)| before);
        for word in line.split_whitespace() {
            hasher.update(word);
            hasher.update(" ");
        }
    }
    hasher.update(schema::ORDINALS);
    for number in 0..=u8::MAX {
        let at = Millis(0).0.to_be_bytes();
        let key = [&[schema::Timer::ORDINAL][..], &at, &[number]].concat();
        if let Some((_, kind, _)) = schema::Timer::decode(&key) {
            hasher.update(format!("{number} {kind:?} "));
        }
    }
    let found: String = hasher.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        (VERSION, &*found),
        RECORDED,
        "commands, rows, tables or timers are not those of the version that was recorded: raise machine::VERSION"
    );
}
