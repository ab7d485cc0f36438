//! What each thread of the process is doing, and whether it comes round.
//!
//! A thread says when it begins and ends a piece of work ([`busy`]), and when it waits within one ([`wait`]); a runtime
//! shows by a small task that it gets to its tasks ([`Pulse::probe`]). Whoever watches compares two readings
//! ([`readings`]): a thread that is in a phase, and whose count has not moved, is still at the same piece of work.
//!
//! Invariant: telling costs two relaxed stores at the beginning of a piece of work and two at its end, and no reading
//! of a clock.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

macro_rules! phases {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $may_end:literal;)+) => {
        /// What a thread does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Phase {
            $($(#[$doc])* $variant),+
        }

        impl Phase {
            const ALL: &'static [Phase] = &[$(Phase::$variant),+];

            /// In words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Phase::$variant => $text),+
                }
            }

            /// Whether a process that stays in this phase is of no use any more. The work of some other phases grows
            /// with the data, and may take long; the rest wait for the disk. A disk that pauses (its path fails over,
            /// the machine is backed up) may do so for all nodes at once, and each of them goes on where it was.
            pub const fn is_short(self) -> bool {
                match self {
                    $(Phase::$variant => $may_end),+
                }
            }
        }
    };
}

phases! {
    /// Nothing: the thread waits for work.
    Idle = "waiting for work", false;
    /// A runtime's turn to run its probe.
    Turn = "running its tasks", true;
    /// A connection's packets.
    Packets = "handling a client's packets", true;
    /// What waits for a connection.
    Mailbox = "handing a client what waits for it", true;
    /// Messages of another node.
    Messages = "delivering messages of another node", true;
    /// Committed entries.
    Apply = "applying entries", true;
    /// What was applied before, which is being written.
    StateWrite = "waiting until the state is written", false;
    /// Rows that are read.
    StateRead = "waiting until the state is read", false;
    /// The tables, when the process starts or a snapshot came.
    Restore = "reading the tables", false;
    /// A snapshot.
    Snapshot = "taking or installing a snapshot", false;
    /// The log.
    Log = "writing and syncing the log", false;
}

/// The signs of life of one thread or runtime.
#[derive(Debug)]
pub struct Pulse {
    name: String,
    phase: AtomicU8,
    /// Raised at the beginning and at the end of each piece of work, by its own thread alone.
    beats: AtomicU64,
}

/// All pulses; one that is dropped is left out.
static PULSES: Mutex<Vec<Weak<Pulse>>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread's, made when it is needed first.
    static OWN: Arc<Pulse> = {
        let thread = std::thread::current();
        Pulse::register(thread.name().unwrap_or("a thread without a name"), Phase::Idle)
    };
}

impl Pulse {
    fn new(name: &str, phase: Phase) -> Pulse {
        Pulse {
            name: name.to_owned(),
            phase: AtomicU8::new(phase as u8),
            beats: AtomicU64::new(0),
        }
    }

    fn register(name: &str, phase: Phase) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::new(name, phase));
        let mut all = PULSES.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&pulse));
        pulse
    }

    /// A pulse that is expected to beat all the time, for as long as it is kept.
    pub fn probe(name: &str) -> Arc<Pulse> {
        Pulse::register(name, Phase::Turn)
    }

    /// A sign of life. Only one thread at a time may give it.
    pub fn beat(&self) {
        self.beats
            .store(self.beats.load(Relaxed).wrapping_add(1), Relaxed);
    }

    fn set(&self, phase: u8) {
        self.phase.store(phase, Relaxed);
        self.beat();
    }

    fn read(self: &Arc<Pulse>) -> Reading {
        let phase = usize::from(self.phase.load(Relaxed));
        Reading {
            id: Arc::as_ptr(self) as usize,
            name: self.name.clone(),
            phase: Phase::ALL.get(phase).copied().unwrap_or(Phase::Idle),
            beats: self.beats.load(Relaxed),
        }
    }
}

/// A pulse at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The same in all readings of a pulse.
    pub id: usize,
    /// The thread or runtime.
    pub name: String,
    /// What it does.
    pub phase: Phase,
    /// It has done something since another reading when this differs.
    pub beats: u64,
}

/// All pulses at this moment.
pub fn readings() -> Vec<Reading> {
    let all = PULSES.lock();
    all.iter()
        .filter_map(Weak::upgrade)
        .map(|pulse| pulse.read())
        .collect()
}

/// Ends a wait, also when it panics.
struct Waiting<'a> {
    pulse: &'a Pulse,
    before: u8,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pulse.phase.store(self.before, Relaxed);
    }
}

/// Ends a piece of work, also when it panics.
struct Busy<'a> {
    pulse: &'a Pulse,
    before: u8,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.pulse.set(self.before);
    }
}

/// A sign of life of this thread within a long piece of work.
pub fn beat() {
    OWN.with(|pulse| pulse.beat());
}

/// Does a piece of work of this thread, which is in `phase` meanwhile.
pub fn busy<T>(phase: Phase, work: impl FnOnce() -> T) -> T {
    OWN.with(|pulse| {
        let before = pulse.phase.load(Relaxed);
        pulse.set(phase as u8);
        let _busy = Busy { pulse, before };
        work()
    })
}

/// Waits in `phase`, within the present piece of work of this thread. That is no sign of life: a piece of work that
/// waits again and again is still the same. A thread without one begins one.
pub fn wait<T>(phase: Phase, work: impl FnOnce() -> T) -> T {
    OWN.with(|pulse| {
        let before = pulse.phase.load(Relaxed);
        if before == Phase::Idle as u8 {
            pulse.beat();
        }
        pulse.phase.store(phase as u8, Relaxed);
        let _waiting = Waiting { pulse, before };
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Reading {
        OWN.with(Pulse::read)
    }

    #[test]
    fn a_thread_is_in_a_phase_as_long_as_it_works() {
        let before = own();
        assert_eq!(before.phase, Phase::Idle);
        let inside = busy(Phase::Packets, || {
            let nested = busy(Phase::Messages, own);
            assert_eq!(nested.phase, Phase::Messages);
            let before = own();
            beat();
            assert_ne!(own(), before);
            own()
        });
        assert_eq!(inside.phase, Phase::Packets);
        assert_ne!(inside.beats, before.beats);
        assert_eq!(own().phase, Phase::Idle);
        assert_ne!(own().beats, inside.beats);
    }

    #[test]
    fn a_wait_is_no_sign_of_life_of_the_work_that_it_belongs_to() {
        let idle = own();
        let waiting = wait(Phase::StateRead, own);
        assert_eq!(waiting.phase, Phase::StateRead);
        assert_ne!(waiting.beats, idle.beats, "it is work by itself");
        busy(Phase::Apply, || {
            let before = own();
            let waiting = wait(Phase::StateRead, own);
            assert_eq!(waiting.phase, Phase::StateRead);
            assert_eq!(waiting.beats, before.beats);
            assert_eq!(own(), before);
        });
        assert_eq!(own().phase, Phase::Idle);
    }

    #[test]
    fn work_that_panics_is_over_too() {
        let panicked = std::panic::catch_unwind(|| busy(Phase::Apply, || panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(own().phase, Phase::Idle);
    }

    #[test]
    fn a_pulse_is_read_as_long_as_its_thread_lives() {
        let thread = std::thread::Builder::new().name("of a test".into());
        let handle = thread.spawn(|| {
            busy(Phase::Log, || {
                let all = readings();
                let found = all.into_iter().find(|one| one.name == "of a test");
                found.map(|one| one.phase)
            })
        });
        let seen = handle.expect("a thread starts").join();
        assert_eq!(seen.expect("it does not panic"), Some(Phase::Log));
        assert!(readings().iter().all(|one| one.name != "of a test"));
    }
}
