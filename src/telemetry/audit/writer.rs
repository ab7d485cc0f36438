//! The thread that writes audit lines to their file.
//!
//! Invariants: who records an event never waits, and whatever is not written is counted.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::event::{Kind, Outcome};
use crate::telemetry::metrics::Metrics;

/// Lines that wait for the disk; what comes while there are more is dropped and counted.
const MOST_WAITING_LINES: usize = 4_096;

/// Of these, lines that clients cause: the rest of the queue is for what operators and the cluster do.
const MOST_WAITING_OF_CLIENTS: usize = 3_072;

/// How long the end of the process waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Mode of a new file: who may read who logs in from where is the operator's to widen.
const MODE: u32 = 0o600;

/// Name that stands for standard error.
const STANDARD_ERROR: &str = "-";

enum Message {
    Line(String),
    Reopen,
    Flush(SyncSender<()>),
}

/// The way to the writing thread.
pub(super) struct Sink {
    queue: SyncSender<Message>,
    rates: Mutex<HashMap<(Kind, Outcome), Rate>>,
    /// Lines in the queue.
    waiting: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

/// Bounded events of the present second.
struct Rate {
    since: Instant,
    count: u32,
}

impl Rate {
    fn admits(&mut self, most: u32, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.count <= most
    }
}

impl Sink {
    /// Opens the file and starts the thread.
    pub(super) fn start(path: &Path, metrics: Arc<Metrics>) -> io::Result<Sink> {
        let (queue, messages) = sync_channel(MOST_WAITING_LINES);
        let output = Output::open(path)?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            path: path.to_owned(),
            output,
            waiting: waiting.clone(),
            metrics: metrics.clone(),
            is_failing: false,
        };
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || writer.run(&messages))?;
        Ok(Sink {
            queue,
            rates: Mutex::default(),
            waiting,
            metrics,
        })
    }

    /// Leaves the line of an event for the thread; counted as dropped if there is no room for it.
    pub(super) fn record(&self, kind: Kind, outcome: Outcome, line: impl FnOnce() -> String) {
        match self.admits(kind, outcome) {
            true => self.write(line()),
            false => self.metrics.audit_dropped.increment(),
        }
    }

    /// Whether one more event of this kind may be written now.
    fn admits(&self, kind: Kind, outcome: Outcome) -> bool {
        let Some(most) = kind.most_per_second(outcome) else {
            return true;
        };
        if self.waiting.load(Ordering::Relaxed) >= MOST_WAITING_OF_CLIENTS {
            return false;
        }
        let now = Instant::now();
        let mut rates = self.rates.lock();
        let rate = rates.entry((kind, outcome)).or_insert(Rate {
            since: now,
            count: 0,
        });
        rate.admits(most, now)
    }

    fn write(&self, line: String) {
        // Before it is in the queue: the thread takes away no more than was added.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                self.metrics.audit_dropped.increment();
            }
        }
    }

    /// Has the file opened again under its name, after it was moved away. Waits for room in the queue.
    pub(super) fn reopen(&self) {
        let _ = self.queue.send(Message::Reopen);
    }

    /// Waits until everything that was recorded so far is written, for [`FLUSH_TIMEOUT`] at most.
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (done, is_done) = sync_channel(1);
        let mut message = Message::Flush(done);
        while let Err(TrySendError::Full(back)) = self.queue.try_send(message) {
            if Instant::now() >= deadline {
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

enum Output {
    File(File),
    StandardError,
}

impl Output {
    fn open(path: &Path) -> io::Result<Output> {
        if path == Path::new(STANDARD_ERROR) {
            return Ok(Output::StandardError);
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(MODE)
            .open(path)?;
        let mode = file.metadata()?.permissions().mode();
        if mode & 0o002 != 0 && file.metadata()?.is_file() {
            let message = "every user of this machine may write it: chmod o-w";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Output::File(file))
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Output::File(file) => file.write_all(lines),
            Output::StandardError => io::stderr().lock().write_all(lines),
        }
    }
}

struct Writer {
    path: PathBuf,
    output: Output,
    waiting: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    /// Whether the last write failed, which is logged once.
    is_failing: bool,
}

impl Writer {
    /// Writes until the last sender is gone. What has gathered is written at once.
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            let mut lines = Vec::new();
            let mut count = 0;
            for message in
                std::iter::once(first).chain(messages.try_iter().take(MOST_WAITING_LINES))
            {
                match message {
                    Message::Line(line) => {
                        self.waiting.fetch_sub(1, Ordering::Relaxed);
                        lines.extend_from_slice(line.as_bytes());
                        count += 1;
                    }
                    Message::Reopen => {
                        self.write(&mut lines, &mut count);
                        self.reopen();
                    }
                    Message::Flush(done) => {
                        self.write(&mut lines, &mut count);
                        let _ = done.send(());
                    }
                }
            }
            self.write(&mut lines, &mut count);
        }
    }

    fn write(&mut self, lines: &mut Vec<u8>, count: &mut u64) {
        if lines.is_empty() {
            return;
        }
        match self.output.write(lines) {
            Ok(()) => {
                self.metrics.audit_lines.add(*count);
                self.is_failing = false;
            }
            Err(error) => {
                self.metrics.audit_dropped.add(*count);
                if !self.is_failing {
                    tracing::error!(file = %self.path.display(), %error, "the audit log can't be written");
                }
                self.is_failing = true;
            }
        }
        lines.clear();
        *count = 0;
    }

    /// A file that cannot be opened keeps the former one.
    fn reopen(&mut self) {
        match Output::open(&self.path) {
            Ok(output) => self.output = output,
            Err(error) => {
                tracing::error!(file = %self.path.display(), %error, "the audit log can't be opened again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_the_owners_and_goes_on_under_its_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.jsonl");
        let metrics = Arc::new(Metrics::default());
        let sink = Sink::start(&path, metrics.clone()).expect("a file");
        sink.write("one\n".into());
        sink.flush();
        let mode = std::fs::metadata(&path)
            .expect("the file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, MODE);
        let moved = directory.path().join("audit.1");
        std::fs::rename(&path, &moved).expect("it is moved");
        sink.write("two\n".into());
        sink.reopen();
        sink.write("three\n".into());
        sink.flush();
        assert_eq!(
            std::fs::read_to_string(&moved).ok().as_deref(),
            Some("one\ntwo\n")
        );
        assert_eq!(
            std::fs::read_to_string(&path).ok().as_deref(),
            Some("three\n")
        );
        assert_eq!(
            (metrics.audit_lines.get(), metrics.audit_dropped.get()),
            (3, 0)
        );
    }

    #[test]
    fn an_existing_file_is_continued_unless_everybody_may_write_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.jsonl");
        std::fs::write(&path, "old\n").expect("it is written");
        let sink = Sink::start(&path, Arc::default()).expect("a file");
        sink.write("new\n".into());
        sink.flush();
        assert_eq!(
            std::fs::read_to_string(&path).ok().as_deref(),
            Some("old\nnew\n")
        );
        let open = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, open).expect("its mode is set");
        let refused = Sink::start(&path, Arc::default()).err();
        assert_eq!(
            refused.map(|error| error.kind()),
            Some(io::ErrorKind::PermissionDenied)
        );
    }

    #[test]
    fn a_flood_of_one_kind_is_bounded_and_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        for outcome in [Outcome::Refused, Outcome::Accepted] {
            let metrics = Arc::new(Metrics::default());
            let sink = Sink::start(&directory.path().join("a"), metrics).expect("a file");
            let most = Kind::LogIn.most_per_second(outcome).expect("it is bounded");
            let admitted = (0..most + 10)
                .filter(|_| sink.admits(Kind::LogIn, outcome))
                .count();
            assert!(admitted >= most as usize);
            let others = [(Kind::Denial, outcome), (Kind::LogIn, Outcome::Failed)];
            let others = others.map(|(kind, outcome)| sink.admits(kind, outcome));
            assert_eq!(others, [true; 2], "others have their own");
            let now = Instant::now();
            let mut rate = Rate {
                since: now,
                count: most,
            };
            assert!(!rate.admits(most, now));
            assert!(rate.admits(most, now + Duration::from_secs(1)));
        }
    }

    #[test]
    fn behind_a_slow_disk_there_is_room_for_what_operators_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "a pipe");
        // Somebody who reads, but not before everything was recorded. Whoever opens a pipe for both does not wait.
        let pipe = OpenOptions::new().read(true).write(true).open(&path);
        let pipe = pipe.expect("the pipe");
        let metrics = Arc::new(Metrics::default());
        let sink = Sink::start(&path, metrics.clone()).expect("the pipe");
        let kinds = [
            (Kind::LogIn, Outcome::Accepted),
            (Kind::Reauthentication, Outcome::Accepted),
            (Kind::LogIn, Outcome::Refused),
            (Kind::HttpRefusal, Outcome::Refused),
        ];
        let line = format!("{}\n", "x".repeat(200));
        for (kind, outcome) in kinds {
            for _ in 0..10_000 {
                sink.record(kind, outcome, || line.clone());
            }
        }
        let dropped = metrics.audit_dropped.get();
        assert!(dropped >= 20_000, "{dropped}");
        let bans = 1_000;
        for _ in 0..bans {
            sink.record(Kind::Ban, Outcome::Accepted, || "ban\n".to_owned());
        }
        assert_eq!(metrics.audit_dropped.get(), dropped, "every ban is there");
        let mut found = 0;
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(pipe));
        while found < bans {
            let line = lines.next().expect("the pipe stays open").expect("text");
            found += usize::from(line == "ban");
        }
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_counted() {
        let metrics = Arc::new(Metrics::default());
        let sink = Sink::start(Path::new("/dev/full"), metrics.clone()).expect("a device");
        sink.write("lost\n".into());
        sink.flush();
        assert_eq!(
            (metrics.audit_lines.get(), metrics.audit_dropped.get()),
            (0, 1)
        );
    }
}
