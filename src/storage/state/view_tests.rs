//! Properties of views.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::base::pulse::{self, Phase, busy};
use crate::machine::tables::{Backing, Change, Changes};
use crate::storage::{Directory, StateDb, StateView};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// How long a thread may take that is to say something.
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
enum Step {
    /// A batch: keys, and their values or that they go.
    Write(Vec<(u8, Option<u8>)>),
    /// What was written is in RocksDB.
    Flush,
    /// A view is taken.
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0u8..12, prop::option::weighted(0.7, any::<u8>()));
    let step = prop_oneof![
        6 => prop::collection::vec(change, 1..6).prop_map(Step::Write),
        1 => Just(Step::Flush),
        2 => Just(Step::Look),
    ];
    prop::collection::vec(step, 1..40)
}

fn write(state: &StateDb, model: &mut Rows, changes: &[(u8, Option<u8>)]) {
    let mut batch = Changes::new();
    for (key, value) in changes {
        let key = vec![1, *key];
        match value {
            Some(value) => {
                let value = vec![*value; 1 + usize::from(*value)];
                let change = match model.contains_key(&key) || batch.contains_key(&key) {
                    true => Change::Put(value.clone().into()),
                    false => Change::New(value.clone().into()),
                };
                batch.insert(key, change);
            }
            None => {
                batch.insert(key, Change::Delete);
            }
        }
    }
    for (key, change) in &batch {
        match change.value() {
            Some(value) => model.insert(key.clone(), value.to_vec()),
            None => model.remove(key),
        };
    }
    state.write(batch, &[]);
}

fn rows(view: &StateView<'_>) -> Rows {
    let mut rows = Rows::new();
    view.scan(&[1], &[2], &mut |key, value| {
        rows.insert(key.to_vec(), value.to_vec());
        true
    });
    for (key, value) in &rows {
        assert_eq!(view.get(key).as_deref(), Some(&value[..]));
    }
    rows
}

/// Takes a view, which is read when the sender says so, and not before.
fn look(state: &StateDb) -> (mpsc::Sender<()>, mpsc::Receiver<Rows>) {
    let (read, may_read) = mpsc::channel();
    let (found, finds) = mpsc::channel();
    let work = move |view: &StateView<'_>| {
        may_read.recv().expect("the test goes on");
        found.send(rows(view)).expect("the test goes on");
    };
    state.look(work).expect("a thread");
    (read, finds)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is written later, and wherever the rows were when the view was taken.
    #[test]
    fn a_view_shows_the_state_of_its_moment(steps in steps()) {
        let dir = Directory::new();
        let state = StateDb::open(dir.path()).expect("an empty directory");
        let mut model = Rows::new();
        let mut views = Vec::new();
        for step in &steps {
            match step {
                Step::Write(changes) => write(&state, &mut model, changes),
                Step::Flush => state.flush(),
                Step::Look => views.push((look(&state), model.clone())),
            }
        }
        for ((read, found), expected) in views {
            read.send(()).expect("the thread waits");
            let found = found.recv_timeout(SOON).expect("the thread reads");
            prop_assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_view_is_not_needed_when_its_database_is_replaced_or_closed() {
    for replaces in [true, false] {
        let dir = Directory::new();
        let state = StateDb::open(dir.path()).expect("an empty directory");
        write(&state, &mut Rows::new(), &[(1, Some(1))]);
        let copy = dir.path().join("copy");
        state.checkpoint(&copy).expect("a copy");
        let (changed, has_changed) = mpsc::channel();
        let (says, said) = mpsc::channel();
        let work = move |view: &StateView<'_>| {
            says.send(view.is_needed()).expect("the test goes on");
            has_changed.recv().expect("the test goes on");
            says.send(view.is_needed()).expect("the test goes on");
        };
        state.look(work).expect("a thread");
        assert!(said.recv_timeout(SOON).expect("the thread runs"));
        match replaces {
            true => state.replace(&copy).expect("a copy"),
            false => drop(state),
        }
        changed.send(()).expect("the thread waits");
        assert!(!said.recv_timeout(SOON).expect("the thread runs"));
    }
}

/// So that a disk that pauses is not taken for work without end.
#[test]
fn who_waits_for_rows_of_rocksdb_is_seen_to_wait() {
    let dir = Directory::new();
    let state = StateDb::open(dir.path()).expect("an empty directory");
    write(&state, &mut Rows::new(), &[(1, Some(1))]);
    state.flush();
    let reads: [fn(&StateDb); 2] = [
        |state| drop(state.get(&[1])),
        |state| state.scan(&[1], &[2], &mut |_, _| true),
    ];
    let state = &state;
    for (number, read) in reads.into_iter().enumerate() {
        let name = format!("reads {number}");
        let (end, ended) = mpsc::channel::<()>();
        let seen = std::thread::scope(|scope| {
            let reading = move || {
                busy(Phase::Apply, || {
                    while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                        read(state);
                    }
                });
            };
            let thread = std::thread::Builder::new().name(name.clone());
            thread.spawn_scoped(scope, reading).expect("a thread");
            let deadline = Instant::now() + SOON;
            let is_seen = || {
                let all = pulse::readings();
                all.iter()
                    .any(|one| one.name == name && one.phase == Phase::StateRead)
            };
            let mut seen = false;
            while !seen && Instant::now() < deadline {
                seen = is_seen();
            }
            drop(end);
            seen
        });
        assert!(seen, "{name}");
    }
}

/// Rows that are written together are seen together, by whoever looks and whenever.
#[test]
fn who_does_not_write_sees_one_moment_too() {
    let dir = Directory::new();
    let state = StateDb::open(dir.path()).expect("an empty directory");
    let state = &state;
    let (end, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut number = 0_u32;
            while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                number += 1;
                let value = |_: &u8| Change::Put(number.to_be_bytes().to_vec().into());
                // In each batch two keys of a hundred: what a view mixes is seen in those that are not in the last one.
                let key = (number % 100) as u8;
                let keys = [key, key + 100];
                let batch = keys.iter().map(|key| (vec![1, *key], value(key)));
                state.write(batch.collect(), &[]);
                if number.is_multiple_of(10) {
                    state.flush();
                }
            }
        });
        for _ in 0..200 {
            let (says, said) = mpsc::channel();
            let work = move |view: &StateView<'_>| {
                let mut rows = Rows::new();
                view.scan(&[1], &[2], &mut |key, value| {
                    rows.insert(key.to_vec(), value.to_vec());
                    true
                });
                says.send(rows).expect("the test goes on");
            };
            state.look(work).expect("a thread");
            let rows = said.recv_timeout(SOON).expect("the thread runs");
            let newest = |from: u8| {
                let range = vec![1, from]..vec![1, from + 100];
                let values = rows.range(range).map(|(_, value)| value.clone());
                values.collect::<Vec<_>>()
            };
            assert_eq!(newest(0), newest(100), "both rows of each batch, or none");
        }
        drop(end);
    });
}
