//! Reads while rows change, and what reads of identities cost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use super::super::rows;
use super::*;
use crate::machine::tables::Tables;
use crate::twin::EncodedSection;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn id(client_id: &str) -> IdentityId {
    IdentityId::of_client_id(client_id).expect("an id")
}

fn state(write: impl FnOnce(&mut Tables<'_>)) -> Rows {
    let empty = Rows::new();
    let mut tables = Tables::new(&empty);
    write(&mut tables);
    let changes = tables.into_changes().into_iter();
    changes
        .filter_map(|(key, change)| Some((key, change.value()?.to_vec())))
        .collect()
}

fn put(tables: &mut Tables<'_>, client_id: &str, etag: u64, disabled: bool) {
    let identity = state::Identity {
        generation: 1,
        etag,
        disabled,
        ..Default::default()
    };
    rows::put_identity(tables, &id(client_id), &identity);
    let head = state::TwinHead {
        version: etag,
        ..Default::default()
    };
    rows::put_head(tables, &id(client_id), head);
}

/// A section of this many bytes, whose content nobody reads.
fn section(bytes: usize) -> EncodedSection {
    let mut section = EncodedSection::of(&Default::default()).0.to_vec();
    section.resize(section.len().max(bytes), 0);
    EncodedSection(section.into())
}

/// A state that becomes another one after some reads.
struct Changing {
    before: Rows,
    after: Rows,
    reads: AtomicUsize,
    /// Reads of the first state.
    change_at: usize,
}

impl Changing {
    fn rows(&self) -> &Rows {
        match self.reads.fetch_add(1, Ordering::Relaxed) < self.change_at {
            true => &self.before,
            false => &self.after,
        }
    }
}

impl Backing for Changing {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        Backing::get(self.rows(), key)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        self.rows().scan(from, to, visit);
    }
}

#[test]
fn a_twin_is_of_one_moment() {
    let enabled = state(|tables| {
        put(tables, "d", 3, false);
        put(tables, "d/m", 4, false);
    });
    let disabled = state(|tables| {
        put(tables, "d", 5, true);
        put(tables, "d/m", 6, false);
        let activity = state::Activity {
            connection_ms: 7,
            ..Default::default()
        };
        rows::put_activity(tables, &id("d/m"), activity);
        let session = state::Session {
            generation: 1,
            owner_node: 1,
            ..Default::default()
        };
        tables.put::<schema::Session>("d/m", &session);
    });
    let states = [enabled, disabled, Rows::new()];
    for before in &states {
        for after in &states {
            let allowed = [before, after].map(|rows| twin(rows, &id("d/m")));
            for change_at in 0..20 {
                let backing = Changing {
                    before: before.clone(),
                    after: after.clone(),
                    reads: AtomicUsize::new(0),
                    change_at,
                };
                let read = at_one_moment(|| twin(&backing, &id("d/m")));
                let read = read.expect("it changes once");
                assert!(allowed.contains(&read), "{change_at}: {read:?}");
            }
        }
    }
}

#[test]
fn what_changes_all_the_time_has_no_moment() {
    let reads = AtomicUsize::new(0);
    let read = at_one_moment(|| reads.fetch_add(1, Ordering::Relaxed));
    assert_eq!((read, reads.into_inner()), (None, MOST_READINGS));
}

#[test]
fn a_module_without_its_device_is_absent() {
    let rows = state(|tables| put(tables, "d/m", 1, false));
    assert_eq!(twin(&rows, &id("d/m")), None);
    scan(&rows, Collection::Modules, None, TwinParts::ALL, |twin| {
        panic!("{} is shown", twin.id)
    });
}

/// Bytes of the rows that were read.
struct Counted(Rows, AtomicUsize);

impl Backing for Counted {
    fn get(&self, key: &[u8]) -> Option<Bytes> {
        let row = Backing::get(&self.0, key);
        let bytes = row.as_ref().map_or(0, |row| row.len());
        self.1.fetch_add(bytes, Ordering::Relaxed);
        row
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        self.0.scan(from, to, &mut |key, row| {
            self.1.fetch_add(row.len(), Ordering::Relaxed);
            visit(key, row)
        });
    }
}

#[test]
fn lists_of_identities_read_no_sections() {
    const SECTION: usize = 500 << 10;
    let rows = state(|tables| {
        put(tables, "d", 1, false);
        for module in 0..50 {
            let client_id = format!("d/{module:02}");
            put(tables, &client_id, 1, false);
            for part in [Part::Tags, Part::Desired] {
                rows::put_section(tables, &id(&client_id), part, section(SECTION));
            }
        }
        for device in 0..20 {
            put(tables, &format!("e{device:02}"), 1, false);
            let id = id(&format!("e{device:02}"));
            rows::put_section(tables, &id, Part::Tags, section(SECTION));
        }
    });
    let backing = Counted(rows, AtomicUsize::new(0));
    let listed = modules(&backing, &id("d")).expect("a device");
    assert!(listed.len() == 50 && listed.is_sorted_by_key(|module| module.id.to_string()));
    assert_eq!(
        devices(&backing, 1_000, || true).map(|all| all.len()),
        Some(21)
    );
    let mut left = 5;
    let some = devices(&backing, 1_000, || {
        left -= 1;
        left > 0
    });
    assert_eq!(some, None, "it was not to go on");
    assert!(backing.1.into_inner() < 20_000);
}
