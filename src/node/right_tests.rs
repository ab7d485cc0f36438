//! The end of the right to serve, against the leader's lease, in simulated time: the node's clock and the leaders'
//! clocks run apart, messages and threads are late, leaders change and do not know it yet.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::incarnation::Right;
use crate::base::ids::{Incarnation, NodeId};
use crate::base::time::Elapsed;
use crate::forward::last_seen::LastSeen;

const GIVE_UP: Duration = Duration::from_millis(3_000);
const LEASE: Duration = Duration::from_millis(5_000);
const NODE: NodeId = NodeId(3);
const INCARNATION: Incarnation = Incarnation(7);

/// Real time, microseconds.
type Time = u64;

#[derive(Debug)]
enum Event {
    /// The node asks the leader that it believes in.
    Ask,
    /// The question arrives at a leader.
    Arrives { at: usize, asked: Time },
    /// A majority is asked whether that leader leads.
    Confirm { at: usize, asked: Time },
    /// The answer arrives at the node.
    Answer { asked: Time },
    /// A leader checks the leases.
    Check { at: usize },
    /// What a leader has decided leaves its queue.
    Append { at: usize, term: u64 },
    /// The other leader is elected.
    Elect,
    /// A former leader learns of it.
    Learn { at: usize },
}

struct Leader {
    last_seen: LastSeen,
    /// The term that it believes to lead.
    believes: Option<u64>,
    /// The term of its last check.
    checked: Option<u64>,
    /// A declaration is on its way to the log.
    declares: bool,
}

/// What is drawn for one history.
#[derive(Clone, Debug)]
struct Draw {
    seed: u64,
    /// How much faster than real time the node's clock runs, in millionths.
    drift_ppm: i64,
    /// Longest way of a message, ms.
    way_ms: u64,
    /// Messages in 100 that are lost.
    lost: u64,
    /// Between two elections, ms.
    elections_ms: u64,
}

struct World {
    draw: Draw,
    now: Time,
    serial: u64,
    events: BTreeMap<(Time, u64), Event>,
    origin: Instant,
    right: Right,
    leaders: [Leader; 2],
    /// Who leads, and in which term.
    truth: (usize, u64),
    declared: u32,
    confirmed: u32,
}

impl World {
    fn new(draw: Draw) -> World {
        let leader = |believes| Leader {
            last_seen: LastSeen::default(),
            believes,
            checked: None,
            declares: false,
        };
        World {
            draw,
            now: 1_000_000,
            serial: 0,
            events: BTreeMap::new(),
            origin: Instant::now(),
            right: Right::registered(),
            leaders: [leader(Some(1)), leader(None)],
            truth: (0, 1),
            declared: 0,
            confirmed: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.draw.seed = self.draw.seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.draw.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.serial += 1;
        self.events.insert((self.now + delay, self.serial), event);
    }

    /// Sends something that may be lost.
    fn send(&mut self, event: Event) {
        let way = self.random(self.draw.way_ms * 1000);
        if self.random(100) >= self.draw.lost {
            self.after(way, event);
        }
    }

    /// The node's own clock.
    fn clock(&self, at: Time) -> Elapsed {
        let off = i128::from(at) * i128::from(self.draw.drift_ppm) / 1_000_000;
        let us = u64::try_from(i128::from(at) + off).expect("it is positive");
        Elapsed::from_duration(Duration::from_micros(us))
    }

    /// A leader's clock.
    fn instant(&self) -> Instant {
        self.origin + Duration::from_micros(self.now)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ask => {
                let at = match self.random(4) {
                    0 => 1 - self.truth.0,
                    _ => self.truth.0,
                };
                self.send(Event::Arrives {
                    at,
                    asked: self.now,
                });
                let pause = 50_000 + self.random(1_500_000);
                self.after(pause, Event::Ask);
            }
            Event::Arrives { at, asked } => {
                let now = self.instant();
                let leader = &self.leaders[at];
                if leader.believes.is_some() && leader.last_seen.note(NODE, INCARNATION, now) {
                    self.send(Event::Confirm { at, asked });
                }
            }
            Event::Confirm { at, asked } => {
                if self.truth.0 == at {
                    self.confirmed += 1;
                    self.send(Event::Answer { asked });
                }
            }
            Event::Answer { asked } => self.right.confirmed(self.clock(asked), GIVE_UP),
            Event::Check { at } => self.check(at),
            Event::Append { at, term } => self.append(at, term),
            Event::Elect => {
                let former = self.truth.0;
                self.truth = (1 - former, self.truth.1 + 1);
                self.leaders[self.truth.0].believes = Some(self.truth.1);
                let late = self.random(4_000_000);
                self.after(late, Event::Learn { at: former });
                let pause = self.random(self.draw.elections_ms * 1000);
                self.after(pause, Event::Elect);
            }
            Event::Learn { at } => {
                if self.truth.0 != at {
                    self.leaders[at].believes = None;
                }
            }
        }
    }

    fn check(&mut self, at: usize) {
        let now = self.instant();
        let leader = &mut self.leaders[at];
        if leader.believes != leader.checked {
            leader.last_seen.forget();
        }
        leader.checked = leader.believes;
        if let Some(term) = leader.believes
            && !leader.declares
            && leader
                .last_seen
                .condemn_if_silent(NODE, INCARNATION, LEASE, now)
        {
            leader.declares = true;
            let queued = self.random(3_000_000);
            self.after(queued, Event::Append { at, term });
        }
        let pause = 250_000 + self.random(50_000);
        self.after(pause, Event::Check { at });
    }

    fn append(&mut self, at: usize, term: u64) {
        if self.leaders[at].believes == Some(term) && self.truth == (at, term) {
            self.declared += 1;
            assert!(
                !self.right.holds_at(self.clock(self.now)),
                "declared down while it may serve"
            );
        }
        // Here the incarnation goes on all the same, so that a history has many ends.
        self.leaders[at].declares = false;
        self.leaders[at].last_seen.pardon(NODE, INCARNATION);
        if self.truth == (at, term) {
            self.right = Right::registered();
            self.events
                .retain(|_, event| !matches!(event, Event::Answer { .. } | Event::Confirm { .. }));
        }
    }

    fn run(&mut self, until: Time) {
        self.after(0, Event::Ask);
        self.after(0, Event::Check { at: 0 });
        self.after(1, Event::Check { at: 1 });
        self.after(self.draw.elections_ms * 1000, Event::Elect);
        while self.now < until
            && let Some(((at, _), event)) = self.events.pop_first()
        {
            self.now = at;
            self.handle(event);
        }
    }
}

fn draws() -> impl Strategy<Value = Draw> {
    (
        any::<u64>(),
        -500i64..=500,
        1u64..4_000,
        0u64..95,
        500u64..30_000,
    )
        .prop_map(|(seed, drift_ppm, way_ms, lost, elections_ms)| Draw {
            seed,
            drift_ppm,
            way_ms,
            lost,
            elections_ms,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A session never has two live owners: the old owner's right has ended before the node is declared down.
    #[test]
    fn a_node_is_declared_down_only_when_it_may_not_serve(draw in draws()) {
        World::new(draw).run(300_000_000);
    }
}

#[test]
fn the_histories_have_contacts_and_declarations() {
    let mut world = World::new(Draw {
        seed: 1,
        drift_ppm: 500,
        way_ms: 500,
        lost: 70,
        elections_ms: 60_000,
    });
    world.run(3_000_000_000);
    let seen = (world.declared, world.confirmed);
    assert!(seen.0 >= 3 && seen.1 >= 20, "{seen:?}");
}

#[test]
fn the_right_ends_by_the_clock_although_nobody_looks() {
    let asked = Elapsed::from_duration(Duration::from_secs(100));
    let mut right = Right::registered();
    assert!(!right.holds_at(asked), "no contact yet");
    right.confirmed(asked, GIVE_UP);
    assert!(right.holds_at(asked.plus(GIVE_UP - Duration::from_micros(1))));
    assert!(!right.holds_at(asked.plus(GIVE_UP)));
    // An answer to an older question does not move the deadline back.
    right.confirmed(asked.plus(Duration::from_secs(2)), GIVE_UP);
    right.confirmed(asked.plus(Duration::from_secs(1)), GIVE_UP);
    assert!(right.holds_at(asked.plus(Duration::from_millis(4_999))));
}
