//! Finds threads that do not come round: names them in the log and the metrics, lets `/livez` know, and ends the
//! process when that lasts, because its clients are better off elsewhere.
//!
//! Invariant: only time in which the watchdog itself was on time counts. A process that was stopped, on a machine that
//! was suspended or starved, is not stuck.
//! Invariant: time that a thread spends on the disk does not end the process. Nor does that of a runtime whose tasks do
//! not run meanwhile: its threads may be the ones that wait.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::base::pulse::{self, Phase, Pulse, Reading};
use crate::telemetry::metrics::Metrics;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(500);

/// A look that comes this late says nothing about the others.
const LATE: Duration = Duration::from_millis(1_500);

/// How long a piece of work may take before it is named.
const SLOW: Duration = Duration::from_secs(5);

/// How often a runtime shows that it gets to its tasks.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// A thread that does not come round.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stuck {
    name: String,
    phase: Phase,
    lasts: Duration,
    /// That part of it which must not grow too long.
    counted: Duration,
}

/// The threads that do not come round, in words; shared with `/livez`.
pub(super) type StuckThreads = Arc<Mutex<Vec<String>>>;

/// What a pulse showed last, and since when.
struct Seen {
    beats: u64,
    phase: Phase,
    since: Instant,
    /// As much of the time since then as it was found in a phase that is short.
    counted: Duration,
    /// It was named in the log.
    named: bool,
}

/// What is known between two looks.
#[derive(Default)]
struct Watch {
    seen: BTreeMap<usize, Seen>,
    last: Option<Instant>,
}

impl Watch {
    /// Looks at all pulses. Returns who does not come round, and who came round after all.
    fn look(&mut self, readings: Vec<Reading>, now: Instant) -> (Vec<Stuck>, Vec<String>) {
        let passed = self
            .last
            .map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let was_late = passed > LATE;
        self.last = Some(now);
        let disk_pauses = readings.iter().any(|one| self.reads_still(one));
        let mut stuck = Vec::new();
        let mut back = Vec::new();
        let mut seen = BTreeMap::new();
        for reading in readings {
            let former = self.seen.remove(&reading.id);
            let stands = former.as_ref().is_some_and(|former| {
                former.beats == reading.beats && reading.phase != Phase::Idle
            });
            let was_named = former.as_ref().is_some_and(|former| former.named);
            let since = match &former {
                Some(former) if stands && !was_late => former.since,
                _ => now,
            };
            let lasts = now.saturating_duration_since(since);
            let may_wait = disk_pauses && reading.phase == Phase::Turn;
            let counted = match &former {
                Some(former) if stands && !was_late => {
                    let counts = reading.phase.is_short() && !may_wait;
                    former.counted + if counts { passed } else { Duration::ZERO }
                }
                _ => Duration::ZERO,
            };
            let named = stands && (lasts >= SLOW || was_named);
            if named {
                stuck.push(Stuck {
                    name: reading.name,
                    phase: reading.phase,
                    lasts,
                    counted,
                });
            } else if was_named {
                back.push(reading.name);
            }
            let entry = Seen {
                beats: reading.beats,
                phase: reading.phase,
                since,
                counted,
                named,
            };
            seen.insert(reading.id, entry);
        }
        self.seen = seen;
        (stuck, back)
    }

    /// Whether a thread reads the state as it did at the last look.
    fn reads_still(&self, reading: &Reading) -> bool {
        let former = self.seen.get(&reading.id);
        reading.phase == Phase::StateRead
            && former.is_some_and(|former| {
                former.phase == Phase::StateRead && former.beats == reading.beats
            })
    }
}

/// The first thread whose piece of work must not take as long as it has.
fn beyond(stuck: &[Stuck], bound: Duration) -> Option<&Stuck> {
    let mut short = stuck.iter().filter(|one| one.phase.is_short());
    short.find(|one| !bound.is_zero() && one.counted >= bound)
}

/// Starts the watchdog, and the probes of the runtimes.
///
/// `bound` is `node.stuck_s`; zero: the process never ends for that reason.
pub(super) fn start(
    bound: Duration,
    metrics: Arc<Metrics>,
    runtimes: &[(&'static str, Handle)],
) -> std::io::Result<StuckThreads> {
    for (name, runtime) in runtimes {
        let pulse = Pulse::probe(name);
        runtime.spawn(async move {
            loop {
                pulse.beat();
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        });
    }
    let stuck = StuckThreads::default();
    let known = stuck.clone();
    // The thread ends with the process: it watches the end of the node, too.
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || run(bound, &metrics, &known))?;
    Ok(stuck)
}

fn run(bound: Duration, metrics: &Metrics, known: &StuckThreads) {
    let mut watch = Watch::default();
    let mut named = Vec::new();
    loop {
        std::thread::sleep(INTERVAL);
        let now = Instant::now();
        let (stuck, back) = watch.look(pulse::readings(), now);
        for name in back {
            tracing::warn!(thread = name, "the thread came round again");
        }
        for one in &stuck {
            if !named.contains(&one.name) {
                let (thread, doing) = (&one.name, one.phase.text());
                tracing::error!(thread, doing, "the thread does not come round");
            }
        }
        named = stuck.iter().map(|one| one.name.clone()).collect();
        metrics.threads_stuck.set(stuck.len() as u64);
        *known.lock() = stuck.iter().map(describe).collect();
        if beyond(&stuck, bound).is_some() {
            end_process(&stuck);
        }
    }
}

fn describe(stuck: &Stuck) -> String {
    format!(
        "{} has been {} for {} s",
        stuck.name,
        stuck.phase.text(),
        stuck.lasts.as_secs()
    )
}

/// Ends the process at once, and names all that are stuck: a runtime may wait for one of its threads. It aborts, so
/// that a core dump shows where they are.
fn end_process(stuck: &[Stuck]) -> ! {
    let what: Vec<String> = stuck.iter().map(describe).collect();
    let what = what.join(", ");
    tracing::error!(what, "a thread is stuck: this process ends (node.stuck_s)");
    let mut stderr = std::io::stderr();
    // Nothing is left to do when stderr is gone too.
    let _ = writeln!(
        stderr,
        "quorumq: {what}: stopping, so that clients go elsewhere (node.stuck_s)"
    );
    let _ = stderr.flush();
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    fn reading(phase: Phase, beats: u64) -> Reading {
        Reading {
            id: 1,
            name: "apply".into(),
            phase,
            beats,
        }
    }

    /// Looks every [`INTERVAL`] for `seconds`; the last answer.
    fn look_for(
        watch: &mut Watch,
        now: &mut Instant,
        seconds: u64,
        mut next: impl FnMut() -> Reading,
    ) -> (Vec<Stuck>, Vec<String>) {
        let mut answer = (Vec::new(), Vec::new());
        for _ in 0..seconds * 2 {
            *now += INTERVAL;
            answer = watch.look(vec![next()], *now);
        }
        answer
    }

    #[test]
    fn a_thread_that_stands_is_named_with_what_it_does_and_then_ends_the_process() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let stands = || reading(Phase::Apply, 7);
        let (stuck, _) = look_for(&mut watch, &mut now, 5, stands);
        assert!(
            stuck.is_empty(),
            "not yet five seconds since the first look"
        );
        let (stuck, _) = look_for(&mut watch, &mut now, 1, stands);
        assert_eq!(stuck[0].phase, Phase::Apply);
        assert_eq!(stuck[0].name, "apply");
        assert_eq!(beyond(&stuck, BOUND), None);
        let (stuck, _) = look_for(&mut watch, &mut now, 25, stands);
        assert_eq!(beyond(&stuck, BOUND), Some(&stuck[0]));
        assert_eq!(beyond(&stuck, Duration::ZERO), None, "0: never");
    }

    #[test]
    fn a_thread_that_works_or_waits_is_not_stuck() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let mut beats = 0;
        let (stuck, _) = look_for(&mut watch, &mut now, 60, || {
            beats += 1;
            reading(Phase::Packets, beats)
        });
        assert!(stuck.is_empty());
        let (stuck, _) = look_for(&mut watch, &mut now, 60, || reading(Phase::Idle, 7));
        assert!(stuck.is_empty());
    }

    #[test]
    fn a_thread_that_comes_round_again_is_named_once_more() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        look_for(&mut watch, &mut now, 10, || reading(Phase::Log, 7));
        now += INTERVAL;
        let (stuck, back) = watch.look(vec![reading(Phase::Idle, 8)], now);
        assert!(stuck.is_empty());
        assert_eq!(back, ["apply"]);
    }

    #[test]
    fn a_process_that_was_stopped_is_not_stuck() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let stands = || reading(Phase::Apply, 7);
        look_for(&mut watch, &mut now, 4, stands);
        for _ in 0..10 {
            // SIGSTOP, or a machine that was suspended: the watchdog stood as well.
            now += Duration::from_secs(3_600);
            let (stuck, _) = watch.look(vec![stands()], now);
            assert!(stuck.is_empty());
            let (stuck, _) = look_for(&mut watch, &mut now, 3, stands);
            assert!(stuck.is_empty());
        }
    }

    #[test]
    fn work_that_grows_with_the_data_is_named_and_goes_on() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let (stuck, _) = look_for(&mut watch, &mut now, 600, || reading(Phase::Restore, 7));
        assert_eq!(stuck.len(), 1);
        assert_eq!(beyond(&stuck, BOUND), None);
    }

    #[test]
    fn a_disk_that_pauses_does_not_end_the_process() {
        for phase in [Phase::Log, Phase::StateWrite, Phase::StateRead] {
            let (mut watch, mut now) = (Watch::default(), Instant::now());
            let (stuck, _) = look_for(&mut watch, &mut now, 600, || reading(phase, 7));
            assert_eq!(stuck.len(), 1, "it is named");
            assert_eq!(beyond(&stuck, BOUND), None);
        }
    }

    /// The rows are there at last, and the same piece of work goes on.
    #[test]
    fn time_on_the_disk_does_not_count_afterwards() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        look_for(&mut watch, &mut now, 60, || reading(Phase::StateRead, 7));
        let works = || reading(Phase::Apply, 7);
        let (stuck, _) = look_for(&mut watch, &mut now, 29, works);
        assert_eq!(stuck.len(), 1, "it is named");
        assert_eq!(beyond(&stuck, BOUND), None);
        let (stuck, _) = look_for(&mut watch, &mut now, 2, works);
        assert_eq!(beyond(&stuck, BOUND), Some(&stuck[0]));
    }

    /// Work without end reads rows, too.
    #[test]
    fn work_between_reads_counts() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let mut looks = 0;
        let (stuck, _) = look_for(&mut watch, &mut now, 125, || {
            looks += 1;
            let reads = looks % 4 != 0;
            reading(
                if reads {
                    Phase::StateRead
                } else {
                    Phase::Apply
                },
                7,
            )
        });
        let worst = stuck.first().expect("it is named");
        assert!(worst.counted >= BOUND, "{worst:?}");
    }

    #[test]
    fn a_runtime_whose_threads_wait_for_the_disk_is_not_stuck() {
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let mut look = |phase: Phase, seconds: u64| {
            let mut stuck = Vec::new();
            for _ in 0..seconds * 2 {
                now += INTERVAL;
                let runtime = Reading {
                    id: 2,
                    ..reading(Phase::Turn, 3)
                };
                stuck = watch.look(vec![reading(phase, 7), runtime], now).0;
            }
            stuck
        };
        let stuck = look(Phase::StateRead, 60);
        assert_eq!(stuck.len(), 2, "both are named");
        assert_eq!(beyond(&stuck, BOUND), None);
        let stuck = look(Phase::Idle, 31);
        let worst = beyond(&stuck, BOUND).expect("nothing holds it up");
        assert_eq!(worst.phase, Phase::Turn);
    }

    #[test]
    fn a_thread_that_is_really_stuck_is_found() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("held".into());
        let handle = thread.spawn(move || pulse::busy(Phase::Packets, || held.recv().is_ok()));
        let handle = handle.expect("a thread starts");
        let (mut watch, mut now) = (Watch::default(), Instant::now());
        let is_there = || pulse::readings().iter().any(|one| one.name == "held");
        while !is_there() {
            std::thread::yield_now();
        }
        let mut stuck = Vec::new();
        for _ in 0..20 {
            now += INTERVAL;
            stuck = watch.look(pulse::readings(), now).0;
        }
        let found = stuck.iter().find(|one| one.name == "held");
        assert_eq!(found.expect("it is stuck").phase, Phase::Packets);
        drop(release);
        assert!(!handle.join().expect("it does not panic"));
    }
}
