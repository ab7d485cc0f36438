//! Many conversations side by side, and what is told about them.

use super::conversation::{self, Mismatch};
use super::file::{APART, File, files};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Conversations held at the same time: most of them only wait.
const SIDE_BY_SIDE: usize = 12;

/// How a conversation went.
#[derive(Debug)]
pub struct Verdict {
    pub file: File,
    pub broken: Option<Mismatch>,
    pub took: Duration,
}

/// How all of them went.
#[derive(Debug)]
pub struct Report {
    pub verdicts: Vec<Verdict>,
    pub took: Duration,
    broker: String,
}

/// Holds the conversations whose name begins with one of `picked` with the nodes of a broker; without any, all but
/// those that need a node of their own. `QUORUMQ_REWRITE=1` rewrites those that go otherwise, `unlike` ones excepted.
pub fn hold_all(broker: &str, picked: &[String], nodes: &[SocketAddr]) -> Report {
    hold_with_hub(broker, picked, nodes, None)
}

/// The same, with a hub for those that ask one.
pub fn hold_with_hub(
    broker: &str,
    picked: &[String],
    nodes: &[SocketAddr],
    hub: Option<SocketAddr>,
) -> Report {
    let began = Instant::now();
    let mut all = files(picked);
    let is_apart = |file: &File| APART.iter().any(|folder| file.name.starts_with(folder));
    all.retain(|file| !picked.is_empty() || !is_apart(file));
    let (alone, beside): (Vec<File>, Vec<File>) = all.into_iter().partition(File::is_alone);
    let verdicts = Mutex::new(Vec::new());
    for (group, threads) in [(beside, SIDE_BY_SIDE), (alone, 1)] {
        // Those that wait begin first.
        let mut group = group;
        group.sort_by_key(|file| !file.text.contains("\npause "));
        let next = Mutex::new(group.into_iter().enumerate());
        let work = || {
            loop {
                let taken = next.lock().expect("no thread panics with it").next();
                let Some((index, file)) = taken else { break };
                let mut turned = nodes.to_vec();
                turned.rotate_left(index % nodes.len());
                let verdict = hold(file, broker, &turned, hub);
                verdicts
                    .lock()
                    .expect("no thread panics with it")
                    .push(verdict);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    let mut verdicts = verdicts.into_inner().expect("every thread has ended");
    verdicts.sort_by(|a, b| a.file.name.cmp(&b.file.name));
    Report {
        verdicts,
        took: began.elapsed(),
        broker: broker.to_owned(),
    }
}

fn hold(file: File, broker: &str, nodes: &[SocketAddr], hub: Option<SocketAddr>) -> Verdict {
    let began = Instant::now();
    let asked = std::env::var("QUORUMQ_REWRITE").is_ok_and(|value| value == "1");
    // What is known to be wrong is not made the expectation.
    let rewrite = asked && file.unlike(broker).is_none();
    let held = conversation::hold(&file.text, &unique_word(), nodes, hub, rewrite);
    let broken = match held {
        Ok(text) => {
            if rewrite && text != file.text {
                std::fs::write(&file.path, text).expect("a file of the corpus can be written");
            }
            None
        }
        Err(broken) => Some(broken),
    };
    Verdict {
        file,
        broken,
        took: began.elapsed(),
    }
}

/// Eight letters and digits, never the same twice, also not in another run against the same broker.
fn unique_word() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let tenths = now.map_or(0, |now| now.as_millis() / 100);
    // Five digits of base 36 go on for 70 days.
    let mut word = String::from("c");
    for (mut number, digits) in [(tenths, 5), (u128::from(count), 2)] {
        for _ in 0..digits {
            let digit = u32::try_from(number % 36).expect("it is below 36");
            word.push(char::from_digit(digit, 36).expect("it is below 36"));
            number /= 36;
        }
    }
    word
}

impl Report {
    /// Everything that is not as it should be, one entry each: a conversation that broke, or one that was known to
    /// break and does not.
    pub fn complaints(&self) -> Vec<String> {
        let complaint = |verdict: &Verdict| {
            let name = &verdict.file.name;
            let known = verdict.file.unlike(&self.broker);
            match (&verdict.broken, known) {
                (Some(broken), None) => Some(format!(
                    "{name}:{}\n    expected {}\n    came     {}",
                    broken.line, broken.expected, broken.came
                )),
                (None, Some(why)) => Some(format!(
                    "{name} holds now; remove its line: unlike {} {why}",
                    self.broker
                )),
                _ => None,
            }
        };
        self.verdicts.iter().filter_map(complaint).collect()
    }

    /// How many held, how many are known to break, the slowest, and the complaints.
    pub fn summary(&self) -> String {
        let held = self.verdicts.iter().filter(|o| o.broken.is_none()).count();
        let complaints = self.complaints();
        let (all, took) = (self.verdicts.len(), self.took.as_millis());
        let mut report = format!("{held} of {all} conversations held in {took} ms");
        if let Some(slowest) = self.verdicts.iter().max_by_key(|verdict| verdict.took) {
            let (name, took) = (&slowest.file.name, slowest.took.as_millis());
            report += &format!("; the slowest, {name}, took {took} ms");
        }
        for complaint in &complaints {
            report += &format!("\n  {complaint}");
        }
        report
    }
}
