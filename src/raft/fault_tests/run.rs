//! One run: a replica that is driven at random, and what happens to it at the steps of its storage. The process of a
//! run may end, as a node does whose disk fails.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::disk::Disk;
use super::driver::Driver;
use super::journal::{Event, Journal};
use super::random::Random;
use crate::storage::{Step, listen, wait_closed};

/// Has [`one_run`] run: its seed, and the directory for what it leaves.
pub const SEED: &str = "QUORUMQ_FAULT_SEED";
pub const DIRECTORY: &str = "QUORUMQ_FAULT_DIRECTORY";

/// How often the replica is started in a run.
const STARTS: u32 = 2;
/// Operations between two starts.
const OPERATIONS: u32 = 15;
/// How long a step is held at most: the driver may wait for the one who is held.
const HELD_MAX: Duration = Duration::from_millis(4);

/// The steps: an image is taken at one of how many, and how many are passed at most before one fails.
pub const STEPS: [(Step, u64, u64); 15] = [
    (Step::FileWritten, 8, 64),
    (Step::FileSynced, 8, 64),
    (Step::Renamed, 8, 16),
    (Step::DirectoryChanged, 2, 48),
    (Step::DirectorySynced, 2, 48),
    (Step::DirectoryRemoving, 4, 12),
    (Step::LogWriting, 3, 64),
    (Step::LogWritten, 2, 8),
    (Step::LogSynced, 3, 64),
    (Step::StateWriting, 2, 8),
    (Step::StateWritten, 2, 8),
    (Step::StateFlushing, 3, 8),
    (Step::StateFlushed, 3, 8),
    (Step::CheckpointTaking, 2, 4),
    (Step::CheckpointTaken, 2, 4),
];

/// What fails in the run of `seed`: kinds of steps, and how many of the kind are passed before. Each kind has its turn.
fn failing(seed: u64) -> Vec<(Step, u64)> {
    let mut random = Random::new(seed);
    let second = random.below(2 * STEPS.len() as u64);
    [seed % STEPS.len() as u64, second]
        .into_iter()
        .filter_map(|kind| {
            let (step, _, end) = STEPS.get(kind as usize)?;
            // Few more often than many: a run may be short.
            let end = 1 + random.below(*end);
            Some((*step, random.below(end)))
        })
        .collect()
}

/// Where the files of a run are.
pub struct Places {
    /// Holds nothing but the data directory.
    pub root: PathBuf,
    pub data: PathBuf,
    /// Images are numbered from 0.
    pub images: PathBuf,
    pub journal: PathBuf,
    /// For databases of leaders.
    pub scratch: PathBuf,
    kept: PathBuf,
}

impl Places {
    pub fn below(dir: &Path) -> Places {
        Places {
            root: dir.join("root"),
            data: dir.join("root").join("data"),
            images: dir.join("images"),
            journal: dir.join("journal"),
            scratch: dir.join("scratch"),
            kept: dir.join("kept"),
        }
    }

    pub fn image(&self, number: usize) -> PathBuf {
        self.images.join(number.to_string())
    }
}

/// What the driver and the steps of the storage share.
pub struct Faults {
    seed: u64,
    places: Places,
    noted: Mutex<Noted>,
    /// Operations that the driver has begun.
    begun: Mutex<u64>,
    /// One more was begun.
    begins: Condvar,
}

struct Noted {
    journal: Journal,
    disk: Disk,
    /// How often each kind of step was passed.
    passed: BTreeMap<Step, u64>,
    /// Steps that are to fail, by their kind and how often that was passed.
    failing: Vec<(Step, u64)>,
    has_failed: bool,
    images: usize,
}

impl Faults {
    pub fn new(seed: u64, dir: &Path) -> Arc<Faults> {
        let places = Places::below(dir);
        for dir in [&places.root, &places.images, &places.scratch] {
            fs::create_dir_all(dir).expect("a directory");
        }
        let disk = Disk::new(&places.root, &places.data, &places.kept);
        Arc::new(Faults {
            seed,
            noted: Mutex::new(Noted {
                journal: Journal::create(&places.journal),
                disk: disk.expect("a directory"),
                passed: BTreeMap::new(),
                failing: failing(seed),
                has_failed: false,
                images: 0,
            }),
            places,
            begun: Mutex::default(),
            begins: Condvar::new(),
        })
    }

    pub fn places(&self) -> &Places {
        &self.places
    }

    pub fn note(&self, event: &Event) {
        self.noted.lock().journal.note(event);
    }

    /// Whether a step has failed: only then may an operation fail.
    pub fn has_failed(&self) -> bool {
        self.noted.lock().has_failed
    }

    /// The driver begins another operation.
    pub fn begin(&self) {
        *self.begun.lock() += 1;
        self.begins.notify_all();
    }

    /// The storage is at `step`: it goes on, is held, fails, or an image is taken of what a crash would leave.
    fn at(&self, step: Step, path: &Path) -> io::Result<()> {
        let held = {
            let mut noted = self.noted.lock();
            let passed = noted.passed.entry(step).or_default();
            let place = (step, *passed);
            *passed += 1;
            // By the place alone: the threads of a run of the same seed may come in another order.
            let mut random = Random::new((self.seed << 24) ^ (place.1 << 8) ^ step as u64);
            noted.disk.note(step, path)?;
            if noted.failing.contains(&place) {
                noted.has_failed = true;
                noted.journal.note(&Event::Failed {
                    step,
                    path: path.to_owned(),
                });
                return Err(io::Error::other("the run has this step fail"));
            }
            let (_, images, _) = STEPS
                .iter()
                .find(|(kind, ..)| *kind == step)
                .expect("it is one");
            if random.below(*images) == 0 {
                self.image(&mut noted, step, path, &mut random);
            }
            random.below(12) == 0
        };
        if held {
            self.hold();
        }
        Ok(())
    }

    fn image(&self, noted: &mut Noted, step: Step, path: &Path, random: &mut Random) {
        let image = self.places.image(noted.images);
        if noted.disk.image(&image, random) {
            noted.images += 1;
            noted.journal.note(&Event::Image {
                step,
                path: path.to_owned(),
            });
        }
    }

    /// Waits until the driver has begun two more operations.
    fn hold(&self) {
        let deadline = Instant::now() + HELD_MAX;
        let mut begun = self.begun.lock();
        let until = *begun + 2;
        while *begun < until && !self.begins.wait_until(&mut begun, deadline).timed_out() {}
    }
}

/// Runs only as a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run() {
    let (Ok(seed), Ok(dir)) = (std::env::var(SEED), std::env::var(DIRECTORY)) else {
        return;
    };
    let faults = Faults::new(seed.parse().expect("a number"), Path::new(&dir));
    let (listening, root) = (Arc::clone(&faults), faults.places.root.clone());
    let _listener = listen(&root, move |step, path| listening.at(step, path));
    let mut driver = Driver::new(Random::new(!faults.seed), Arc::clone(&faults));
    for _ in 0..STARTS {
        if !live(&mut driver).await {
            break;
        }
    }
    let is_closed = wait_closed(Path::new(&dir), Duration::from_secs(60));
    assert!(is_closed, "somebody still holds a store");
}

/// From a start to the end, which is in good order if this returns true.
async fn live(driver: &mut Driver) -> bool {
    if !driver.open().await {
        return false;
    }
    driver.vote().await;
    driver.append().await;
    let mut goes_on = true;
    for _ in 0..OPERATIONS {
        driver.begin();
        match driver.below(20) {
            0..8 => driver.append().await,
            8..10 => driver.vote().await,
            10..14 => driver.commit().await,
            14..17 => driver.snapshot().await,
            17 => goes_on = driver.install().await,
            18 => goes_on = driver.install_kept().await,
            _ => driver.write_committed().await,
        }
        if !goes_on {
            break;
        }
    }
    driver.close().await;
    goes_on
}
