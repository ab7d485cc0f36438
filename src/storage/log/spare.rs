//! The segment after the one that is written, made beforehand by a thread of its own: filling a file takes its time,
//! and so does a new name, and nobody waits for either as long as one is ready when it is needed.
//!
//! Segments that nobody needs any more are used again, so that in the long run few files are filled or removed. A file
//! is filled as the segment before it fills, because syncs of the log would wait behind a burst.
//!
//! Invariant: a segment that is ready has its name, its size and its blocks durably.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::segment::{self, Segment};
use crate::storage::fatal::fatal;
use crate::storage::files::write_durably;

/// Unneeded segments that are kept to be used again.
const MAX_UNUSED: usize = 4;

/// The file in which the number of the newest segment with a frame is noted.
const BEGUN: &str = "begun";

/// Parts of a segment of which the filling of the next one takes notice.
pub const PARTS: u64 = 16;

/// Time after a failure until the next attempt, unless somebody waits.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    /// The next segment.
    ready: Option<Segment>,
    /// Its number.
    number: u64,
    /// Segments that may be used again.
    unused: Vec<Segment>,
    /// Segments that are to be removed.
    surplus: Vec<Arc<Segment>>,
    /// The newest segment with a frame, when that is not noted.
    begun: Option<u64>,
    /// Why the last attempt failed, and when the next one begins.
    failure: Option<(io::Error, Instant)>,
    /// Attempts that were begun.
    attempts: u64,
    /// How many [`PARTS`] of the segment that was taken last are written.
    written: u64,
    /// Whether somebody waits for the next one.
    is_awaited: bool,
    ended: bool,
}

struct Inner {
    dir: PathBuf,
    log: u64,
    /// Bytes of the volume.
    volume: u64,
    state: Mutex<State>,
    /// Something has changed.
    changed: Condvar,
}

/// The thread, and what it has made.
pub struct Spare {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Spare {
    /// Starts to make the segment with this number in `dir`, unless it is `ready`.
    pub fn start(
        dir: &Path,
        log: u64,
        volume: u64,
        number: u64,
        ready: Option<Segment>,
    ) -> io::Result<Spare> {
        let inner = Arc::new(Inner {
            dir: dir.to_owned(),
            log,
            volume,
            state: Mutex::new(State {
                ready,
                number,
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let working = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("log-spare".into());
        let thread = thread.spawn(move || {
            let _stop = StopOnPanic("preparing the log");
            working.run();
        })?;
        Ok(Spare {
            inner,
            thread: Some(thread),
        })
    }

    /// The next segment; waits until it is ready.
    pub fn take(&self) -> io::Result<Segment> {
        let mut state = self.inner.state.lock();
        // What made an earlier attempt fail may be over.
        let earlier = state.attempts;
        state.failure = None;
        state.is_awaited = true;
        self.inner.changed.notify_all();
        loop {
            if let Some(segment) = state.ready.take() {
                state.number = segment.number + 1;
                (state.written, state.is_awaited) = (0, false);
                self.inner.changed.notify_all();
                return Ok(segment);
            }
            if let Some((error, _)) = state.failure.take() {
                if state.attempts > earlier {
                    return Err(error);
                }
                self.inner.changed.notify_all();
            }
            self.inner.changed.wait(&mut state);
        }
    }

    /// Has it noted that the segment with this number has a frame, durably.
    pub fn begun(&self, number: u64) {
        self.inner.state.lock().begun = Some(number);
        self.inner.changed.notify_all();
    }

    /// Tells how many [`PARTS`] of the segment that was taken last are written.
    pub fn note(&self, parts: u64) {
        self.inner.state.lock().written = parts;
        self.inner.changed.notify_all();
    }

    /// Takes in segments of which the log needs nothing any more.
    pub fn give_back(&self, unneeded: Vec<Arc<Segment>>) {
        let mut state = self.inner.state.lock();
        for segment in unneeded {
            // One that is being read must not change.
            match Arc::try_unwrap(segment) {
                Ok(segment) if state.unused.len() < MAX_UNUSED && !segment.was_lengthened() => {
                    state.unused.push(segment);
                }
                Ok(segment) => state.surplus.push(Arc::new(segment)),
                Err(shared) => state.surplus.push(shared),
            }
        }
        self.inner.changed.notify_all();
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.inner.state.lock().ended = true;
        self.inner.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It panics only where the process ends anyway.
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if !state.is_awaited && self.do_chores(&mut state) {
                continue;
            }
            // The lock was given up meanwhile.
            if state.ended {
                break;
            }
            match state.failure.as_ref().map(|(_, until)| *until) {
                Some(until) => {
                    if self.changed.wait_until(&mut state, until).timed_out() {
                        state.failure = None;
                    }
                    continue;
                }
                None if state.ready.is_some() => {
                    self.changed.wait_for(&mut state, RETRY);
                    continue;
                }
                None => {}
            }
            let (unused, number) = (state.unused.pop(), state.number);
            state.attempts += 1;
            let made = MutexGuard::unlocked(&mut state, || self.make(unused, number));
            match made {
                Ok(segment) => state.ready = Some(segment),
                Err(_) if state.ended => break,
                Err(error) => {
                    tracing::warn!(%error, "the next segment of the log can't be made");
                    state.failure = Some((error, Instant::now() + RETRY));
                }
            }
            self.changed.notify_all();
        }
        self.do_chores(&mut state);
    }

    /// Removes what is to be removed, and notes what is to be noted. Returns whether there was something, and nothing
    /// of it has to be tried again.
    fn do_chores(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let (surplus, begun) = (std::mem::take(&mut state.surplus), state.begun.take());
        if begun.is_none() && surplus.is_empty() {
            return false;
        }
        let noted = MutexGuard::unlocked(state, || {
            remove(&surplus);
            begun.map_or(Ok(()), |begun| note_begun(&self.dir, begun))
        });
        if let Err(error) = &noted {
            tracing::warn!(%error, "the newest segment of the log is not noted yet");
            state.begun = state.begun.or(begun);
        }
        noted.is_ok()
    }

    fn make(&self, unused: Option<Segment>, number: u64) -> io::Result<Segment> {
        let capacity = segment::capacity(number, self.volume);
        if let Some(unused) = unused {
            if unused.capacity == capacity {
                return unused.reuse(&self.dir, number);
            }
            remove(&[Arc::new(unused)]);
        }
        Segment::create(&self.dir, number, self.log, capacity, &|filled| {
            self.pause(filled, capacity)
        })
    }

    /// Waits as long as the filling of a segment is far enough ahead of the writing of the one before: twice as fast,
    /// and a bit. An error says that nothing more is needed.
    fn pause(&self, filled: u64, capacity: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        let is_ahead = |state: &State| filled * PARTS > (2 * state.written + 2) * capacity;
        let is_to_wait = |state: &State| is_ahead(state) && !state.is_awaited && !state.ended;
        while is_to_wait(&state) {
            // The lock is given up meanwhile.
            if !self.do_chores(&mut state) && is_to_wait(&state) {
                self.changed.wait_for(&mut state, RETRY);
            }
        }
        match state.ended {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        }
    }
}

/// Ends the process when a thread of the log panicked at this work: nobody would go on with it.
pub struct StopOnPanic(pub &'static str);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            fatal(self.0, &"the thread panicked; see above");
        }
    }
}

/// Notes that the segment with this number has a frame: without a note, nobody would miss the newest.
fn note_begun(dir: &Path, number: u64) -> io::Result<()> {
    write_durably(&dir.join(BEGUN), format!("{number}\n").as_bytes())
}

/// The number that was noted last; 0 when there is none.
pub fn noted_begun(dir: &Path) -> io::Result<u64> {
    match fs::read_to_string(dir.join(BEGUN)) {
        Ok(text) => text.trim().parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Removes files of which nobody needs anything. What can't be removed the next start removes.
fn remove(segments: &[Arc<Segment>]) {
    for segment in segments {
        if let Err(error) = segment.remove() {
            tracing::warn!(path = %segment.path().display(), %error, "an unused segment of the log was not removed");
        }
    }
}
