//! Events that bring their endpoint to give no answer, over the machine's rows as a deliverer reads them, in simulated
//! time; and the same over a network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::leader::Leader as _;
use super::super::rows::{Position, Rows};
use super::deliveries::{consenting, deliver, options};
use super::endpoint::{Got, TestEndpoint, status};
use super::replica::Replica;
use crate::base::ids::CLUSTER;
use crate::base::proto::command::EventProgress;
use crate::base::proto::command::command::Kind;
use crate::base::proto::state::{Event, EventSubscriptionOptions};
use crate::events::answer::End;
use crate::events::next::{Course, Next, Now, Sent, is_progress};
use crate::events::options::{Handshake, defaults};

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

const OK: End = End::Status(200, None);

/// A deliverer without a network, and its clock.
struct Simulated {
    replica: Arc<Replica>,
    course: Course,
    position: Position,
    ticks: u64,
    /// When each client's events were delivered first.
    delivered: BTreeMap<String, u64>,
    /// How often the endpoint was asked whether it is there.
    probes: u64,
}

fn sites(max_events: u32) -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        url: "http://127.0.0.1:9/".to_owned(),
        origin: "quorumq".to_owned(),
        handshake: Handshake::Off.number(),
        subject_begins_with: "clients/site-".to_owned(),
        rate_per_min: 60_000,
        max_events,
        ..defaults()
    }
}

impl Simulated {
    fn new(options: &EventSubscriptionOptions) -> Simulated {
        let replica = Replica::new();
        replica.stop_clock();
        replica.subscribe(options);
        Simulated {
            replica,
            course: Course::default(),
            position: Position::default(),
            ticks: 5,
            delivered: BTreeMap::new(),
            probes: 0,
        }
    }

    fn connect(&self, clients: impl IntoIterator<Item = String>) {
        for client in clients {
            self.replica.connect(&client);
        }
    }

    fn now(&self) -> Now {
        Now {
            ticks: self.ticks,
            log: self.replica.log_time(),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.ticks += ms;
        self.replica.pass(ms);
    }

    /// Time passes until these ticks. `answer` says how requests end; without events it is asked whether it is there.
    fn until(&mut self, ticks: u64, answer: &mut dyn FnMut(&[&Event]) -> End) {
        while self.ticks < ticks {
            let backing = self.replica.backing();
            let sought = self.course.seeks();
            let rows = Rows::of(&*backing, "ops".to_owned(), &self.position, sought);
            let rows = rows.expect("it was made");
            if self.position.follow(&rows) {
                continue;
            }
            self.course.follow(&rows.row);
            if rows.reads_on(&mut self.position, &mut self.course) {
                continue;
            }
            match self.step(&rows, answer) {
                Ok(progress) if is_progress(&progress) => {
                    self.replica.run(CLUSTER, Kind::EventProgress(progress));
                }
                Ok(_) => {}
                Err(until) => {
                    let until = until.unwrap_or(u64::MAX).min(ticks);
                    self.pass(until - self.ticks);
                }
            }
        }
    }

    /// Does what is to be done next; or when there will be something.
    fn step(
        &mut self,
        rows: &Rows,
        answer: &mut dyn FnMut(&[&Event]) -> End,
    ) -> Result<EventProgress, Option<u64>> {
        let (view, now) = (rows.view(), self.now());
        let random = (self.ticks as u32).wrapping_mul(2_654_435_761);
        let (events, sent): (Vec<(u64, &Event)>, _) = match self.course.next(&view, now) {
            Next::Wait(until) => return Err(until),
            Next::Hold(until) => return Err(Some(until)),
            Next::Skip(_) => return Ok(self.course.skipped(&view, now)),
            Next::Expire => return Ok(self.course.expired(&view, rows.wanted(), now)),
            Next::Bury(reason) => {
                let parked = rows.parked().expect("it is there");
                return Ok(view.buried(parked, reason));
            }
            Next::Ask => panic!("it needs no consent"),
            Next::Probe => {
                self.probes += 1;
                self.course.begin(&view, now);
                let end = answer(&[]);
                self.pass(3);
                return Ok(self.course.probed(&view, (end, "e"), self.now(), random));
            }
            Next::SendNew(most) => {
                let most = most.min(view.options.max_events as usize);
                (rows.wanted().take(most).collect(), None)
            }
            Next::SendAnother => {
                let (number, event) = view.another.expect("it was found");
                let is_next = rows.is_next(number);
                (
                    vec![(number, event)],
                    Some(Sent::Another { number, is_next }),
                )
            }
            Next::SendParked => {
                let parked = rows.parked().expect("it is there");
                let event = parked.row.event.as_ref().expect("a whole row");
                (vec![(parked.number, event)], Some(Sent::Parked(parked)))
            }
        };
        let (numbers, events): (Vec<u64>, Vec<&Event>) = events.into_iter().unzip();
        self.course.begin(&view, now);
        let end = answer(&events);
        self.pass(3);
        if end == OK {
            for event in &events {
                let delivered = self.delivered.entry(event.session.clone());
                delivered.or_insert(self.ticks);
            }
        }
        let sent = sent.unwrap_or(Sent::New(&numbers));
        let now = self.now();
        Ok(self.course.ended(&view, &sent, end, "e", now, random))
    }
}

/// Breaks the connection where an event of these clients comes.
fn poisoned(events: &[&Event]) -> End {
    match events.iter().any(|event| event.session.contains("poison")) {
        true => End::Broken,
        false => OK,
    }
}

#[test]
fn an_event_far_behind_shows_that_the_endpoint_is_there() {
    for (max_events, unwanted) in [(100, 500), (1, 500), (100, 3_000)] {
        let mut simulated = Simulated::new(&sites(max_events));
        simulated.connect(["site-poison".to_owned()]);
        simulated.connect((0..unwanted).map(|number| format!("other-{number}")));
        simulated.connect(["site-healthy".to_owned()]);
        simulated.until(MINUTE, &mut poisoned);
        assert!(simulated.delivered.contains_key("site-healthy"));
        let row = simulated.replica.row();
        assert_eq!((row.parked, row.through), (1, unwanted + 2));
        assert_eq!(simulated.probes, 0, "another event says more");
    }
}

/// One client that comes again and again, or many clients.
#[test]
fn many_events_in_a_row_that_break_their_endpoint_hold_up_nobody_for_long() {
    for max_events in [100, 1, 5_000] {
        for is_one in [true, false] {
            let mut simulated = Simulated::new(&sites(max_events));
            match is_one {
                // One event, and two each time that it comes again.
                true => simulated.connect((0..150).map(|_| "site-poison".to_owned())),
                false => simulated.connect((0..300).map(|number| format!("site-poison-{number}"))),
            }
            simulated.connect((0..100).map(|number| format!("site-{number}")));
            simulated.until(20 * MINUTE, &mut poisoned);
            let times: Vec<u64> = simulated.delivered.values().copied().collect();
            assert_eq!(times.len(), 100, "{max_events} {is_one}");
            let first = times.iter().min().copied().unwrap_or_default();
            let most = if is_one { MINUTE } else { 6 * MINUTE };
            assert!(first <= most, "{max_events} {is_one}: {first}");
            let row = simulated.replica.row();
            assert_eq!((row.parked, row.dead), (if is_one { 299 } else { 300 }, 0));
        }
    }
}

#[test]
fn where_nothing_else_is_wanted_a_question_shows_that_the_endpoint_is_there() {
    let mut simulated = Simulated::new(&sites(100));
    simulated.connect(["site-poison".to_owned()]);
    simulated.connect((0..500).map(|number| format!("other-{number}")));
    simulated.until(MINUTE, &mut poisoned);
    let row = simulated.replica.row();
    assert_eq!((row.parked, simulated.probes), (1, 1));
    assert_eq!(row.through, 501, "the outbox need not keep them");
    simulated.until(20 * MINUTE, &mut poisoned);
    simulated.connect(["site-healthy".to_owned()]);
    let began = simulated.ticks;
    simulated.until(began + 75 * SECOND, &mut poisoned);
    assert!(simulated.delivered.contains_key("site-healthy"));
    assert_eq!(simulated.replica.row().parked, 1);
}

#[test]
fn an_endpoint_that_is_down_has_nothing_parked_however_little_is_wanted() {
    for wanted in [1, 2, 300] {
        for end in [End::TimedOut, End::Broken] {
            let mut simulated = Simulated::new(&sites(100));
            simulated.connect((0..500).map(|number| format!("other-{number}")));
            simulated.connect((0..wanted).map(|number| format!("site-{number}")));
            simulated.connect((500..900).map(|number| format!("other-{number}")));
            simulated.until(3 * 60 * MINUTE, &mut |_| end);
            let row = simulated.replica.row();
            assert_eq!((row.parked, row.dead), (0, 0), "{wanted} {end:?}");
            // A gateway before it is not the endpoint.
            let until = simulated.ticks + 10 * MINUTE;
            simulated.until(until, &mut |events| match events {
                [] => End::Status(503, None),
                _ => end,
            });
            assert_eq!(simulated.replica.row().parked, 0, "{wanted} {end:?}");
            let until = simulated.ticks + 3 * MINUTE;
            simulated.until(until, &mut |_| OK);
            assert_eq!(simulated.delivered.len(), wanted, "{end:?}");
            let row = simulated.replica.row();
            assert_eq!((row.parked, row.dead), (0, 0), "{wanted} {end:?}");
        }
    }
}

fn without_poison(got: &Got) -> String {
    match got
        .sessions()
        .iter()
        .any(|session| session.contains("poison"))
    {
        true => String::new(),
        false => status("202 Accepted"),
    }
}

async fn finds_out(has_other: bool, handshake: Handshake) {
    let endpoint = TestEndpoint::new(consenting(without_poison)).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        subject_begins_with: "clients/site-".to_owned(),
        handshake: handshake.number(),
        ..options(&endpoint)
    });
    replica.connect("site-poison");
    for number in 0..200 {
        replica.connect(&format!("other-{number}"));
    }
    if has_other {
        replica.connect("site-healthy");
    }
    let began = std::time::Instant::now();
    let (_running, _) = deliver(&replica);
    replica.until("it is parked", |row| row.parked == 1).await;
    // Steps of 1, 2 and 5 seconds, less a fifth each.
    let taken = began.elapsed();
    assert!(taken >= Duration::from_millis(6_400), "{taken:?}");
    let asked = endpoint.got().len() - endpoint.posts().len();
    assert_eq!(asked, 1, "for consent, or whether it is there");
    assert!(replica.row().delivered >= u64::from(has_other));
}

/// The deliverer reads on, sends what it finds, and asks where it finds nothing.
#[tokio::test]
async fn a_deliverer_finds_out_whether_its_endpoint_is_there() {
    tokio::join!(
        finds_out(true, Handshake::Required),
        finds_out(false, Handshake::Off),
    );
}
