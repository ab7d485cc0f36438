//! Properties of the memtables.

use proptest::prelude::*;

use super::*;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn scan(memtables: &Memtables, below: &Rows, from: &[u8], to: &[u8], most: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let (view, ()) = memtables.view(from, to, |_| ());
    view.scan(
        from,
        to,
        |show| {
            for (key, value) in below.range::<[u8], _>((Included(from), Excluded(to))) {
                if !show(key, value) {
                    break;
                }
            }
            None
        },
        &mut |key, value| {
            found.push([key, b"=", value].concat());
            found.len() < most
        },
    );
    found
}

fn write(memtable: &Memtable, below: &mut Rows) {
    for (key, change) in &memtable.rows {
        match change.value() {
            Some(value) => below.insert(key.clone(), value.to_vec()),
            None => below.remove(key),
        };
    }
}

#[test]
fn a_new_row_that_is_deleted_before_it_was_written_leaves_nothing() {
    let memtables = Memtables::default();
    let value = || Bytes::from_static(b"v");
    let changes = |change| Changes::from([(b"k".to_vec(), change)]);
    memtables.add(changes(Change::New(value())), Vec::new());
    memtables.add(changes(Change::Put(value())), Vec::new());
    memtables.add(changes(Change::Delete), Vec::new());
    assert!(memtables.pair.read().active.rows.is_empty());
    assert_eq!(memtables.pair.read().active.bytes, 0);
    memtables.add(changes(Change::Put(value())), Vec::new());
    memtables.add(changes(Change::Delete), Vec::new());
    assert!(
        matches!(memtables.get(b"k"), Some(Change::Delete)),
        "it may be below"
    );
}

#[test]
fn rows_of_a_state_that_was_replaced_are_never_written_to_the_new_one() {
    use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

    let memtables = Arc::new(Memtables::default());
    // The number of the state in use; each row's value is the number of the state it was written for.
    let current = Arc::new(AtomicU8::new(0));
    let (writing, read) = (Arc::clone(&memtables), Arc::clone(&current));
    let writer = std::thread::spawn(move || {
        writing.run(|memtable| {
            std::thread::yield_now();
            for change in memtable.rows.values() {
                let number = change.value().map(|value| value[0]);
                assert_eq!(number, Some(read.load(SeqCst)), "another state's row");
            }
        });
    });
    let flushing = Arc::clone(&memtables);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let flusher = std::thread::spawn(move || {
        while stopped.try_recv().is_err() {
            flushing.drain();
        }
    });
    for number in 0..200 {
        for key in 0..20u8 {
            let change = Change::Put(Bytes::copy_from_slice(&[number]));
            memtables.add(Changes::from([(vec![key], change)]), Vec::new());
        }
        memtables.replace(|| current.store(number + 1, SeqCst));
    }
    let _ = stop.send(());
    flusher.join().expect("the flusher has not panicked");
    memtables.end();
    writer.join().expect("the writer has not panicked");
}

#[test]
fn apply_writes_while_a_scan_is_under_way() {
    let memtables = Memtables::default();
    let change = |key: u32| (key.to_be_bytes().to_vec(), Change::Put(Bytes::new()));
    let all = (0..1_000).map(change).collect();
    memtables.add(all, Vec::new());
    let (view, ()) = memtables.view(&[0], &[1], |_| ());
    let end = view.end(&[1]).to_vec();
    let mut seen = 0;
    let below = |_: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
        memtables.add(
            Changes::from([(vec![0], Change::Put(Bytes::new()))]),
            Vec::new(),
        );
        None
    };
    let ended = view.scan(&[0], &end, below, &mut |_, _| {
        seen += 1;
        true
    });
    assert!(matches!(ended, ScanEnd::Before(key) if key == end));
    assert_eq!(
        (seen, end),
        (VIEW_ROWS, (VIEW_ROWS as u32).to_be_bytes().to_vec())
    );
}

proptest! {
    #[test]
    fn memtables_over_rows_read_as_one_map(
        steps in prop::collection::vec((0u8..4, prop::collection::vec(b'a'..b'd', 1..3), any::<u8>()), 0..80),
        from in prop::collection::vec(b'a'..b'd', 0..3),
        to in prop::collection::vec(b'a'..b'e', 0..3),
        most in 1usize..6,
    ) {
        let memtables = Memtables::default();
        let (mut model, mut below) = (Rows::new(), Rows::new());
        for (kind, key, value) in steps {
            let bytes = Bytes::copy_from_slice(&[value]);
            let change = match kind {
                0 => Change::Delete,
                1 if !model.contains_key(&key) => Change::New(bytes),
                1 | 2 => Change::Put(bytes),
                _ => {
                    // The thread's two steps, with reads in between.
                    if memtables.pair.read().immutable.is_none() {
                        memtables.pair.write().freeze();
                    } else if value % 2 == 0 {
                        let immutable = memtables.pair.read().immutable.clone();
                        write(&immutable.expect("just seen"), &mut below);
                        memtables.pair.write().immutable = None;
                    }
                    continue;
                }
            };
            match change.value() {
                Some(value) => model.insert(key.clone(), value.to_vec()),
                None => model.remove(&key),
            };
            memtables.add(Changes::from([(key.clone(), change)]), Vec::new());
            let found = match memtables.get(&key) {
                Some(change) => change.value().map(|value| value.to_vec()),
                None => below.get(&key).cloned(),
            };
            prop_assert_eq!(found.as_ref(), model.get(&key));
        }
        if from < to {
            let expected: Vec<_> = model
                .range::<[u8], _>((Included(&from[..]), Excluded(&to[..])))
                .map(|(key, value)| [key, &b"="[..], value].concat())
                .take(most)
                .collect();
            prop_assert_eq!(scan(&memtables, &below, &from, &to, most), expected);
        }
    }
}
