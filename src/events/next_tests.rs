//! One endpoint after another, over random answers: what is promised of deliveries, and single decisions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::options::{Handshake, defaults};
use super::super::schedule::LONGEST_RETRY_AFTER_MS;
use super::super::standing::{CONSENT_MS, Standing};
use super::*;
use crate::base::proto::state::{EventSubscriptionOptions, ParkedEvent};

#[path = "next_consent_tests.rs"]
mod consent;
#[path = "next_reading_tests.rs"]
mod reading;
#[path = "next_trouble_tests.rs"]
mod trouble;

/// When the simulated log begins.
const START: u64 = 1_767_607_200_000;

/// Rows as the machine keeps them, and the clocks.
struct Rows {
    row: EventSubscription,
    options: EventSubscriptionOptions,
    outbox: BTreeMap<u64, Event>,
    unwanted: BTreeSet<u64>,
    parked: BTreeMap<(u64, u64), ParkedEvent>,
    dead: BTreeMap<u64, DeadEvent>,
    delivered: BTreeSet<u64>,
    ticks: u64,
    began: Option<u64>,
    /// Parked events that are counted, and are not there.
    crowd: u64,
    /// Events that are read at once, of those that come next and of those behind a suspect.
    pages: (usize, usize),
    /// Behind the cursor nothing is wanted up to this one.
    passed: u64,
}

impl Rows {
    fn new(events: u64, options: EventSubscriptionOptions) -> Rows {
        let event = |number| Event {
            kind: 1,
            time_ms: START,
            sequence: number,
            ..Event::default()
        };
        Rows {
            row: EventSubscription {
                revision: 7,
                state: State::Active.number(),
                ..EventSubscription::default()
            },
            options,
            outbox: (1..=events).map(|number| (number, event(number))).collect(),
            unwanted: BTreeSet::new(),
            parked: BTreeMap::new(),
            dead: BTreeMap::new(),
            delivered: BTreeSet::new(),
            ticks: 5,
            began: None,
            crowd: 0,
            pages: (128, 128),
            passed: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            ticks: self.ticks,
            log: Millis(START + self.ticks),
        }
    }

    /// New events that are wanted, in order.
    fn wanted(&self) -> Vec<u64> {
        let new = self.outbox.range(self.row.through + 1..);
        new.map(|(number, _)| *number)
            .filter(|number| !self.unwanted.contains(number))
            .collect()
    }

    fn first_parked(&self) -> Option<Parked> {
        let ((due_ms, number), row) = self.parked.first_key_value()?;
        Some(Parked {
            due_ms: *due_ms,
            number: *number,
            row: row.clone(),
        })
    }

    fn view<'a>(&'a self, parked: Option<&'a Parked>) -> View<'a> {
        let first = self.wanted().first().copied();
        let last = self.outbox.keys().next_back().copied().unwrap_or_default();
        View {
            name: "config",
            row: &self.row,
            options: &self.options,
            skipped: first
                .map_or(last, |number| number - 1)
                .max(self.row.through),
            first: first.map(|number| (number, &self.outbox[&number])),
            another: None,
            newest: last,
            parked,
        }
    }

    /// As the machine does it.
    fn apply(&mut self, progress: EventProgress) {
        assert_eq!((progress.name.as_str(), progress.revision), ("config", 7));
        for parked in progress.parked {
            let former = self.parked.remove(&(parked.was_due_ms, parked.number));
            assert_eq!(former.is_some(), parked.was_due_ms != 0);
            let since_ms = former.map_or(self.outbox[&parked.number].time_ms, |row| row.since_ms);
            let row = ParkedEvent {
                attempts: parked.attempts,
                outcome: parked.outcome,
                since_ms,
                ..ParkedEvent::default()
            };
            let twice = self.parked.insert((parked.due_ms, parked.number), row);
            assert!(twice.is_none(), "{} was parked twice", parked.number);
        }
        for unparked in progress.unparked {
            let row = self.parked.remove(&(unparked.was_due_ms, unparked.number));
            assert!(row.is_some());
        }
        for dead in progress.dead {
            let former = self.parked.remove(&(dead.was_due_ms, dead.number));
            assert_eq!(former.is_some(), dead.was_due_ms != 0);
            let twice = self.dead.insert(dead.number, dead);
            assert!(twice.is_none(), "{} died twice", dead.number);
        }
        self.row.through = self.row.through.max(progress.through);
        self.row.parked = self.parked.len() as u64 + self.crowd;
        self.row.consent = progress.consent.unwrap_or(self.row.consent.clone());
        if progress.state != 0 {
            self.row.state = progress.state;
        }
        if let Some(error) = progress.last_error {
            self.row.last_error = error;
        }
        self.nothing_is_lost();
    }

    fn nothing_is_lost(&self) {
        let parked: BTreeSet<u64> = self.parked.keys().map(|(_, number)| *number).collect();
        assert_eq!(parked.len(), self.parked.len(), "one is parked twice");
        for number in 1..=self.row.through {
            let is_kept = self.delivered.contains(&number)
                || self.dead.contains_key(&number)
                || parked.contains(&number)
                || self.unwanted.contains(&number);
            assert!(is_kept, "{number} is lost");
        }
    }

    /// Does what is to be done next; `false` when there is nothing to wait for.
    fn step(
        &mut self,
        course: &mut Course,
        most: usize,
        answer: &mut dyn FnMut(&[u64]) -> End,
    ) -> bool {
        let (wanted, another) = self.read(course);
        let (parked, now) = (self.first_parked(), self.now());
        let view = View {
            another: another.map(|number| (number, &self.outbox[&number])),
            ..self.view(parked.as_ref())
        };
        let first = view.first.map(|(number, _)| number);
        assert_eq!(first, wanted.first().copied(), "what is wanted is found");
        let random = (self.ticks as u32).wrapping_mul(2_654_435_761);
        let progress = match course.next(&view, now) {
            Next::Wait(None) => return false,
            Next::Wait(Some(until)) | Next::Hold(until) => {
                assert!(until > self.ticks, "it waits for nothing");
                self.ticks = until;
                return true;
            }
            Next::Skip(through) => {
                assert_eq!(through, view.skipped);
                course.skipped(&view, now)
            }
            Next::Expire => {
                let new = self.outbox.range(self.row.through + 1..);
                course.expired(&view, new.map(|(number, event)| (*number, event)), now)
            }
            Next::Bury(reason) => view.buried(parked.as_ref().expect("it is there"), reason),
            Next::Ask => {
                let how = (End::Status(200, None), "");
                course.asked(&view, Some(None), how, now, random)
            }
            Next::SendNew(bound) => {
                let numbers: Vec<u64> = wanted.into_iter().take(bound.min(most)).collect();
                assert!(numbers[0] > self.row.through, "new events are in order");
                course.begin(&view, now);
                let end = answer(&numbers);
                let progress = course.ended(&view, &Sent::New(&numbers), end, "e", now, random);
                self.sent(&numbers, end);
                progress
            }
            Next::SendAnother => {
                let number = another.expect("it was found");
                assert!(Some(number) > first, "it is another one");
                let is_next = wanted.get(1) == Some(&number);
                course.begin(&view, now);
                let end = answer(&[number]);
                let sent = Sent::Another { number, is_next };
                let progress = course.ended(&view, &sent, end, "e", now, random);
                self.sent(&[number], end);
                progress
            }
            Next::Probe => {
                assert_eq!(self.wanted().len(), 1, "there is no other one");
                course.begin(&view, now);
                let end = answer(&[]);
                let progress = course.probed(&view, (end, "e"), now, random);
                self.sent(&[], end);
                progress
            }
            Next::SendParked => {
                let parked = parked.as_ref().expect("it is there");
                assert!(parked.due_ms <= now.log.0);
                course.begin(&view, now);
                let end = answer(&[parked.number]);
                let progress = course.ended(&view, &Sent::Parked(parked), end, "e", now, random);
                self.sent(&[parked.number], end);
                progress
            }
        };
        self.apply(progress);
        true
    }

    fn sent(&mut self, numbers: &[u64], end: End) {
        let least = MINUTE_MS.div_ceil(u64::from(self.options.rate_per_min));
        if let Some(began) = self.began {
            assert!(self.ticks - began >= least, "the rate is kept");
        }
        self.began = Some(self.ticks);
        if end.consequence() == Consequence::Delivered {
            self.delivered.extend(numbers);
        }
        // A request takes its time.
        self.ticks += 3;
    }
}

fn end_of(kind: u8) -> End {
    match kind {
        0..6 => End::Status(200, None),
        6 => End::Status(503, Some(700)),
        7 => End::Status(429, None),
        8 => End::TimedOut,
        9 => End::Broken,
        10 => End::Status(500, None),
        11 => End::Status(413, None),
        12 => End::Status(401, None),
        13 => End::Status(302, None),
        _ => End::Unreached,
    }
}

fn options(rate_per_min: u32, max_attempts: u32) -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        rate_per_min,
        max_attempts,
        url: "https://endpoint.example/".to_owned(),
        origin: "quorumq".to_owned(),
        ..defaults()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn nothing_is_lost_and_a_poisonous_event_holds_up_nobody(
        answers in prop::collection::vec(0u8..15, 0..60),
        poison in prop::collection::btree_set(1u64..60, 0..4),
        hangs in any::<bool>(),
        unwanted in prop::collection::btree_set(1u64..60, 0..20),
        most in 1usize..20,
        rate in prop::sample::select(vec![60u32, 6_000, 60_000]),
        max_attempts in 2u32..=30,
        pages in (1usize..20, 1usize..20),
    ) {
        let mut rows = Rows::new(60, options(rate, max_attempts));
        (rows.unwanted, rows.pages) = (unwanted, pages);
        let mut course = Course::default();
        let mut answers = answers.into_iter();
        let mut is_random = true;
        let mut answer = |numbers: &[u64]| {
            let is_poisoned = numbers.iter().any(|number| poison.contains(number));
            match answers.next() {
                Some(kind) => end_of(kind),
                None => {
                    is_random = false;
                    // The endpoint may hang when it gets it, or break the connection.
                    match (is_poisoned, hangs) {
                        (false, _) => End::Status(204, None),
                        (true, false) => End::Status(500, None),
                        (true, true) if numbers[0].is_multiple_of(2) => End::TimedOut,
                        (true, true) => End::Broken,
                    }
                }
            }
        };
        let mut steps = 0;
        let wanted = rows.wanted();
        let done = |rows: &Rows| wanted.iter().all(|number| {
            rows.delivered.contains(number) || rows.dead.contains_key(number)
                || poison.contains(number) || rows.parked.keys().any(|(_, parked)| parked == number)
        });
        while !done(&rows) && steps < 5_000 {
            prop_assert!(rows.step(&mut course, most, &mut answer), "it stops too early");
            steps += 1;
        }
        prop_assert!(done(&rows), "{steps} steps, through {}", rows.row.through);
    }

    #[test]
    fn an_endpoint_that_comes_back_gets_everything(
        answers in prop::collection::vec(6u8..15, 0..40),
        most in 1usize..20,
    ) {
        // No answer here is final, and there are attempts enough.
        let answers: Vec<u8> = answers.into_iter().filter(|kind| *kind != 11).collect();
        let mut rows = Rows::new(40, options(60_000, 30));
        let mut course = Course::default();
        let mut answers = answers.into_iter();
        let mut answer = |_: &[u64]| answers.next().map_or(End::Status(200, None), end_of);
        let mut steps = 0;
        while rows.step(&mut course, most, &mut answer) && steps < 2_000 {
            steps += 1;
        }
        prop_assert_eq!(rows.delivered.len(), 40);
        prop_assert!(rows.dead.is_empty() && rows.parked.is_empty());
        prop_assert_eq!(rows.row.through, 40);
        prop_assert_eq!(rows.row.last_error.as_str(), "");
    }
}

/// Sends what is to be sent next, and ends it so.
fn send(rows: &mut Rows, course: &mut Course, end: End) -> Vec<u64> {
    let mut sent = Vec::new();
    for _ in 0..1_000 {
        let before = sent.len();
        let mut answer = |numbers: &[u64]| {
            sent.extend_from_slice(numbers);
            end
        };
        if !rows.step(course, 100, &mut answer) || sent.len() > before {
            break;
        }
    }
    sent
}

#[test]
fn a_batch_is_cut_as_the_answer_asks_for() {
    let mut rows = Rows::new(4, options(60_000, 30));
    let mut course = Course::default();
    assert_eq!(
        send(&mut rows, &mut course, End::Status(500, None)),
        [1, 2, 3, 4]
    );
    assert_eq!(send(&mut rows, &mut course, End::Status(200, None)), [1]);
    assert_eq!(
        send(&mut rows, &mut course, End::Status(413, None)),
        [2, 3, 4]
    );
    assert_eq!(send(&mut rows, &mut course, End::Status(413, None)), [2]);
    assert_eq!(rows.dead[&2].reason, DeathReason::NotRetried.number());
    assert_eq!(send(&mut rows, &mut course, End::Status(500, None)), [3]);
    assert_eq!(rows.parked.len(), 1);
    assert_eq!(send(&mut rows, &mut course, End::Status(200, None)), [4]);
    assert_eq!(rows.row.through, 4);
    let before = rows.ticks;
    assert_eq!(send(&mut rows, &mut course, End::Status(200, None)), [3]);
    assert!(rows.ticks - before >= 9_000, "ten seconds later");
    assert!(rows.parked.is_empty());
}

#[test]
fn attempts_and_age_end_a_parked_event() {
    let mut rows = Rows::new(1, options(6_000, 3));
    let mut course = Course::default();
    for _ in 0..3 {
        assert_eq!(send(&mut rows, &mut course, End::Status(500, None)), [1]);
    }
    let dead = &rows.dead[&1];
    let reason = DeathReason::MaxDeliveryAttemptsExceeded.number();
    assert_eq!((dead.reason, dead.attempts), (reason, 3));

    let mut rows = Rows::new(1, options(6_000, 30));
    let mut sent = 0;
    while rows.dead.is_empty() {
        sent += send(&mut rows, &mut course, End::Status(500, None)).len();
    }
    let reason = DeathReason::TimeToLiveExceeded.number();
    assert_eq!((rows.dead[&1].reason, sent), (reason, 11));
    assert!(rows.ticks >= 24 * 60 * MINUTE_MS, "after a day");
}

#[test]
fn old_events_are_dead_letters_without_an_attempt() {
    let mut rows = Rows::new(5, options(6_000, 30));
    let mut course = Course::default();
    rows.ticks = 1_440 * MINUTE_MS;
    rows.outbox
        .entry(4)
        .and_modify(|event| event.time_ms += MINUTE_MS);
    assert_eq!(send(&mut rows, &mut course, End::Status(200, None)), [4, 5]);
    assert_eq!(rows.dead.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert!(rows.dead.values().all(|dead| dead.attempts == 0));
}

#[test]
fn who_is_gone_or_paused_gets_nothing() {
    let mut rows = Rows::new(5, options(6_000, 30));
    let mut course = Course::default();
    send(&mut rows, &mut course, End::Status(410, None));
    assert_eq!(State::of(rows.row.state), State::Gone);
    assert!(rows.row.consent.is_empty(), "it is asked anew");
    for state in [State::Gone, State::Paused] {
        rows.row.state = state.number();
        let next = course.next(&rows.view(None), rows.now());
        // Their age goes on.
        let ends = (24 * 60 * MINUTE_MS) + 5;
        assert!(matches!(next, Next::Hold(at) if at <= ends), "{next:?}");
    }
    rows.row.state = State::Active.number();
    assert_eq!(
        send(&mut rows, &mut course, End::Status(200, None)).len(),
        5
    );
}

#[test]
fn so_many_parked_events_are_the_endpoints_fault() {
    let mut rows = Rows::new(5, options(60_000, 30));
    let mut course = Course::default();
    rows.row.parked = limits::EVENTS_PARKED;
    send(&mut rows, &mut course, End::Status(500, None));
    rows.row.parked = limits::EVENTS_PARKED;
    assert_eq!(send(&mut rows, &mut course, End::Status(500, None)), [1]);
    assert_eq!((rows.row.through, rows.parked.len()), (0, 0));
    let standing = Standing::of(&rows.row, &rows.options, rows.now().log);
    assert_eq!(standing, Standing::BackingOff);
}

#[test]
fn who_is_resumed_is_tried_at_once() {
    let mut rows = Rows::new(1, options(60_000, 30));
    let mut course = Course::default();
    for _ in 0..6 {
        send(&mut rows, &mut course, End::Status(503, None));
    }
    let before = rows.ticks;
    rows.row.last_error.clear();
    assert_eq!(send(&mut rows, &mut course, End::Status(200, None)), [1]);
    assert!(rows.ticks - before < 100, "{}", rows.ticks - before);
}

#[test]
fn an_endpoint_may_ask_for_a_pause() {
    let mut rows = Rows::new(1, options(60_000, 30));
    let mut course = Course::default();
    let asked = u64::MAX;
    send(&mut rows, &mut course, End::Status(429, Some(asked)));
    let before = rows.ticks;
    send(&mut rows, &mut course, End::Status(200, None));
    let waited = rows.ticks - before;
    assert!((LONGEST_RETRY_AFTER_MS - 10..LONGEST_RETRY_AFTER_MS + 10).contains(&waited));
}
