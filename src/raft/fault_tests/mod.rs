//! Faults at every step of the storage, from a seed.
//!
//! A replica's log, state and snapshots are driven as the Raft library does, in a process of its own ([`run`]). At each
//! step of the storage it goes on, is held while others go on, fails, or is looked at as after a crash: an image of the
//! data directory is made in which anything that was not synced may be missing ([`disk`]). Then a replica is opened on
//! each image, and on what the process left. It has to start, and nothing that was acknowledged before may be missing
//! ([`check`]).

mod check;
mod disk;
mod driver;
mod journal;
mod kept_copy;
mod random;
mod replica;
mod run;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use self::driver::Driver;
use self::journal::{Acknowledged, Event};
use self::random::Random;
use self::run::{Faults, Places};
use super::core::applier;
use crate::machine::VERSION;
use crate::storage::{EXIT_IO, Step, wait_closed};

/// How long the test goes on with further seeds.
const DURATION: Duration = Duration::from_secs(45);
/// Directories that it looks at even when that takes longer.
const MIN_CASES: usize = 1_000;
/// When it gives up.
const DEADLINE: Duration = Duration::from_secs(240);
/// Runs at a time.
const THREADS: usize = 2;
/// Steps whose failure ends the process.
const FATAL: [Step; 7] = [
    Step::LogWriting,
    Step::LogWritten,
    Step::LogSynced,
    Step::StateWriting,
    Step::StateWritten,
    Step::StateFlushing,
    Step::StateFlushed,
];

/// What the runs did, and what was looked at.
#[derive(Debug, Default)]
struct Counts {
    seeds: AtomicU64,
    cases: AtomicUsize,
    /// Processes that ended by a failure.
    ended: AtomicUsize,
    images: parking_lot::Mutex<BTreeMap<Step, usize>>,
    failures: parking_lot::Mutex<BTreeMap<Step, usize>>,
}

impl Counts {
    /// Whether every kind of step has failed and was crashed at, and so many cases were looked at.
    fn are_enough(&self) -> bool {
        let kinds = [&self.images, &self.failures].map(|steps| steps.lock().len());
        self.cases.load(Relaxed) >= MIN_CASES && kinds == [run::STEPS.len(); 2]
    }
}

/// A directory to look at.
struct Case {
    path: PathBuf,
    what: String,
    acknowledged: Acknowledged,
}

/// Has a process do the run of `seed` below `dir`, and lists what it left.
fn run_of(seed: u64, dir: &Path, counts: &Counts) -> Vec<Case> {
    let program = std::env::current_exe().expect("this test has a file");
    let output = Command::new(program)
        .args(["--exact", "raft::fault_tests::run::one_run", "--nocapture"])
        .env(run::SEED, seed.to_string())
        .env(run::DIRECTORY, dir)
        .output()
        .expect("a process");
    let places = Places::below(dir);
    let events = journal::read(&places.journal).expect("whole lines");
    let mut acknowledged = Acknowledged::default();
    let (mut cases, mut failures) = (Vec::new(), Vec::new());
    // A start that a step fails is over; it does not end the process.
    let (mut is_starting, mut must_end) = (true, false);
    for event in &events {
        acknowledged.note(event);
        match event {
            Event::Image { step, path } => {
                *counts.images.lock().entry(*step).or_default() += 1;
                cases.push(Case {
                    path: places.image(cases.len()).join("data"),
                    what: format!("crash {} at {step:?} of {}", cases.len(), path.display()),
                    acknowledged: acknowledged.clone(),
                });
            }
            Event::Failed { step, path } => {
                *counts.failures.lock().entry(*step).or_default() += 1;
                failures.push((*step, path));
                must_end |= FATAL.contains(step) && !is_starting;
            }
            Event::Machine(_) => is_starting = true,
            Event::Opened => is_starting = false,
            _ => {}
        }
    }
    // The switch to another state is on its way when this fails; but it may also fail in a start.
    let is_switch = |path: &Path| path.ends_with("state.partial") || path == places.data;
    // Some of what a start writes is written by threads that end the process.
    let is_fatal = |step: &Step| FATAL.contains(step);
    let may_end = failures
        .iter()
        .any(|(step, path)| is_switch(path) || is_fatal(step));
    let has_ended = output.status.code() == Some(EXIT_IO);
    assert!(
        has_ended && (must_end || may_end) || output.status.success() && !must_end,
        "seed {seed}: {:?} after {failures:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    counts.ended.fetch_add(usize::from(has_ended), Relaxed);
    cases.push(Case {
        path: places.data,
        what: format!("the end, after {failures:?}"),
        acknowledged,
    });
    cases
}

/// Runs seeds, and looks at what they left.
fn work(root: &Path, only: Option<u64>, counts: &Counts, runtime: &Runtime) {
    let started = Instant::now();
    while started.elapsed() < DURATION || !counts.are_enough() && started.elapsed() < DEADLINE {
        let seed = counts.seeds.fetch_add(1, Relaxed) + 1;
        let seed = only.unwrap_or(seed);
        let dir = tempfile::tempdir_in(root).expect("a directory");
        for case in run_of(seed, dir.path(), counts) {
            let scratch = dir.path().join("copy");
            let what = case.what.clone();
            let checked = runtime.block_on(runtime.spawn(async move {
                check::check(&case.path, &scratch, &case.acknowledged).await;
                let _ = fs::remove_dir_all(&scratch);
            }));
            assert!(
                checked.is_ok(),
                "{what}: {checked:?}; again with {}={seed}",
                run::SEED
            );
            counts.cases.fetch_add(1, Relaxed);
        }
        let is_closed = wait_closed(dir.path(), Duration::from_secs(60));
        assert!(is_closed, "somebody still holds a store");
        if only.is_some() {
            return;
        }
    }
}

#[test]
fn a_fault_at_any_step_loses_nothing_that_was_acknowledged() {
    let memory = Path::new("/dev/shm");
    let root = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let root = root.expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime");
    let only = std::env::var(run::SEED).ok();
    let only = only.map(|seed| seed.parse().expect("a number"));
    let counts = Counts::default();
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| work(root.path(), only, &counts, &runtime));
        }
    });
    println!("{counts:?}");
    assert!(only.is_some() || counts.are_enough(), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_another_machine_version_changes_nothing() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let faults = Faults::new(1, root.path());
    let mut driver = Driver::new(Random::new(1), faults);
    assert!(driver.open_as(VERSION).await);
    driver.vote().await;
    driver.append().await;
    driver.install().await;
    let state = std::sync::Arc::clone(&driver.replica().stores.state);
    let before = applier::stored(&state).expect("well-formed");
    let last = before.0.expect("something is applied");
    let (present, further) = (VERSION, last.index + 5);
    for (machine, announced, is_taken) in [
        (Some(present + 1), further, false),
        (None, further, false),
        (Some(present), further + 1, false),
        (Some(present), further, true),
    ] {
        let installed = driver.install_other(machine, further, announced).await;
        assert_eq!(installed, is_taken, "{machine:?}, {announced}");
        let (applied, _) = applier::stored(&state).expect("well-formed");
        let expected = if is_taken { further } else { last.index };
        assert_eq!(applied.map(|id| id.index), Some(expected));
    }
    drop(state);
    driver.close().await;
}
