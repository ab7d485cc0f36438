//! Endpoints in trouble, and events that bring them there.

use super::*;
use crate::events::answer::Outcome;

fn outcome(outcome: Outcome) -> u32 {
    outcome.number()
}

impl Rows {
    fn record(&mut self, number: u64) {
        let event = Event {
            kind: 1,
            time_ms: START + self.ticks,
            sequence: number,
            ..Event::default()
        };
        self.outbox.insert(number, event);
    }
}

/// Time passes until a number of events is settled; what was sent, one request after the other.
fn run(rows: &mut Rows, until_ticks: u64, answer: impl FnMut(&[u64]) -> End) -> Vec<Vec<u64>> {
    go_on(rows, &mut Course::default(), until_ticks, answer)
}

/// The same with what is known of the endpoint.
fn go_on(
    rows: &mut Rows,
    course: &mut Course,
    until_ticks: u64,
    mut answer: impl FnMut(&[u64]) -> End,
) -> Vec<Vec<u64>> {
    let mut sent = Vec::new();
    let mut noting = |numbers: &[u64]| {
        sent.push(numbers.to_vec());
        answer(numbers)
    };
    while rows.ticks < until_ticks && rows.step(course, 100, &mut noting) {}
    sent
}

#[test]
fn an_event_that_breaks_its_endpoint_does_not_hold_up_the_others() {
    for end in [End::Broken, End::TimedOut] {
        let mut rows = Rows::new(9, options(60_000, 30));
        run(&mut rows, 30_000, |numbers| match numbers.contains(&3) {
            true => end,
            false => End::Status(200, None),
        });
        let delivered: Vec<u64> = rows.delivered.iter().copied().collect();
        assert_eq!(delivered, [1, 2, 4, 5, 6, 7, 8, 9], "{end:?}");
        assert_eq!(rows.parked.len(), 1);
        // Nor does it later, however often it is tried.
        let mut course = Course::default();
        for number in 10..16 {
            rows.record(number);
            let ends = rows.ticks + MINUTE_MS;
            go_on(&mut rows, &mut course, ends, |numbers| {
                match numbers.contains(&3) {
                    true => end,
                    false => End::Status(200, None),
                }
            });
            rows.ticks = rows.ticks.max(ends);
            assert!(rows.delivered.contains(&number));
        }
        let (_, parked) = rows.parked.first_key_value().expect("it is there");
        assert!(parked.attempts >= 3, "{}", parked.attempts);
    }
}

/// Events are not to blame where nobody is there, or where somebody says that it is busy.
#[test]
fn an_endpoint_that_is_down_parks_nothing() {
    for end in [
        End::Unreached,
        End::Unresolved,
        End::Unable,
        End::Status(503, None),
        End::TimedOut,
        End::Broken,
    ] {
        for events in [9, 1] {
            let mut rows = Rows::new(events, options(60_000, 1));
            let sent = run(&mut rows, 60 * MINUTE_MS, |_| end);
            assert!(sent.len() > 50 && rows.parked.is_empty() && rows.dead.is_empty());
            assert_eq!(rows.row.through, 0, "{end:?}");
        }
    }
}

/// It has no answer to anything, so nothing can be said of what it has got: no attempt counts, and once it is back all
/// is delivered within a minute or two, what was parked before included.
#[test]
fn an_endpoint_that_hangs_for_half_a_day_costs_no_event_an_attempt() {
    for (end, max_attempts) in [(End::TimedOut, 1), (End::Broken, 1), (End::TimedOut, 30)] {
        let mut rows = Rows::new(200, options(60_000, max_attempts));
        let row = |number: u64| ParkedEvent {
            attempts: u32::from(max_attempts > 1),
            since_ms: START + number,
            ..ParkedEvent::default()
        };
        rows.parked = (1..=20)
            .map(|number| ((START + number, number), row(number)))
            .collect();
        rows.row.parked = 20;
        rows.row.through = 20;
        let mut course = Course::default();
        let down_until = 12 * 60 * MINUTE_MS;
        go_on(&mut rows, &mut course, down_until, |_| end);
        assert!(rows.delivered.is_empty() && rows.dead.is_empty());
        assert_eq!((rows.row.through, rows.parked.len()), (20, 20), "{end:?}");
        let least = u32::from(max_attempts > 1);
        assert!(rows.parked.values().all(|row| row.attempts == least));
        let ends = rows.ticks + 3 * MINUTE_MS;
        go_on(&mut rows, &mut course, ends, |_| End::Status(200, None));
        assert_eq!(rows.delivered.len(), 200, "{end:?}");
        assert!(rows.dead.is_empty());
    }
}

/// Where no further one may be parked, the parked ones go first: they make the room. What is not taken then is given
/// up, as others are delivered.
#[test]
fn an_event_that_breaks_its_endpoint_keeps_no_parked_one_back() {
    for end in [End::Broken, End::TimedOut] {
        let mut rows = Rows::new(9, options(60_000, 30));
        let healthy = ParkedEvent {
            attempts: 1,
            since_ms: START,
            ..ParkedEvent::default()
        };
        rows.parked.insert((START + 60_000, 1), healthy);
        rows.crowd = limits::EVENTS_PARKED - 1;
        (rows.row.parked, rows.row.through) = (limits::EVENTS_PARKED, 1);
        let answer = |numbers: &[u64]| match numbers.contains(&2) {
            true => end,
            false => End::Status(200, None),
        };
        let mut course = Course::default();
        go_on(&mut rows, &mut course, 60_000, answer);
        let delivered: Vec<u64> = rows.delivered.iter().copied().collect();
        assert_eq!(delivered, [3, 4, 5, 6, 7, 8, 9], "{end:?}");
        let reason = DeathReason::MaxDeliveryAttemptsExceeded.number();
        assert_eq!(rows.dead.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!((rows.dead[&2].reason, rows.dead[&2].attempts), (reason, 5));
        let sent = go_on(&mut rows, &mut course, 200_000, answer);
        let place = sent.iter().position(|numbers| *numbers == [1]);
        assert!(place.is_some_and(|place| place < 3), "{sent:?}");
        assert_eq!(rows.delivered.len(), 8, "{sent:?}");
    }
}

/// One client fills the room of the parked ones, and goes on.
#[test]
fn events_that_are_not_taken_hold_up_nobody_where_none_may_be_parked() {
    const POISONOUS: u64 = 200;
    for end in [End::Status(500, None), End::Broken] {
        let mut rows = Rows::new(POISONOUS + 100, options(60_000, 30));
        rows.crowd = limits::EVENTS_PARKED;
        rows.row.parked = limits::EVENTS_PARKED;
        let mut answer = |numbers: &[u64]| match numbers.iter().any(|number| *number <= POISONOUS) {
            true => end,
            false => End::Status(200, None),
        };
        let mut course = Course::default();
        while rows.ticks < 60 * MINUTE_MS && rows.step(&mut course, 100, &mut answer) {}
        assert_eq!(rows.delivered.len(), 100, "after {} ms", rows.ticks);
        assert_eq!(rows.dead.len() as u64, POISONOUS);
    }
}

/// All are answered so: no event is at fault, and none is given up when the endpoint is back.
#[test]
fn an_endpoint_that_takes_nothing_for_an_hour_costs_no_event_where_none_may_be_parked() {
    for end in [End::Status(500, None), End::Broken, End::TimedOut] {
        let mut rows = Rows::new(100, options(60_000, 1_000));
        rows.crowd = limits::EVENTS_PARKED;
        rows.row.parked = limits::EVENTS_PARKED;
        let mut course = Course::default();
        let sent = go_on(&mut rows, &mut course, 60 * MINUTE_MS, |_| end);
        assert!(sent.len() < 100, "a probe a minute: {}", sent.len());
        assert!(rows.delivered.is_empty() && rows.dead.is_empty());
        let ends = rows.ticks + 3 * MINUTE_MS;
        go_on(&mut rows, &mut course, ends, |_| End::Status(200, None));
        assert_eq!(rows.delivered.len(), 100, "{end:?}");
        assert!(rows.dead.is_empty());
    }
}

/// One client makes as many such events as it likes.
#[test]
fn events_in_a_row_that_break_their_endpoint_hold_up_the_others_for_minutes() {
    for (most, poisonous) in [(100, 150), (100, 60), (1, 150), (100, 300), (1, 300)] {
        let mut rows = Rows::new(poisonous + 100, options(60_000, 30));
        // The others are pages behind.
        rows.pages = (128, 32);
        let mut answer = |numbers: &[u64]| match numbers.iter().any(|number| *number <= poisonous) {
            true => End::Broken,
            false => End::Status(200, None),
        };
        let mut course = Course::default();
        while rows.ticks < 60 * MINUTE_MS && rows.step(&mut course, most, &mut answer) {}
        assert_eq!(rows.delivered.len(), 100, "after {} ms", rows.ticks);
        assert!(rows.dead.is_empty());
    }
}

/// Something before it answers a question while no event is answered.
#[test]
fn an_endpoint_that_answers_questions_alone_loses_nothing() {
    let mut rows = Rows::new(1, options(60_000, 1));
    let mut course = Course::default();
    for number in 2..80 {
        let ends = rows.ticks + 7 * MINUTE_MS;
        go_on(&mut rows, &mut course, ends, |numbers| match numbers {
            [] => End::Status(405, None),
            _ => End::TimedOut,
        });
        rows.ticks = rows.ticks.max(ends);
        rows.record(number);
    }
    assert!(rows.parked.values().all(|row| row.attempts == 0));
    let ends = rows.ticks + 3 * MINUTE_MS;
    go_on(&mut rows, &mut course, ends, |_| End::Status(200, None));
    assert_eq!((rows.delivered.len(), rows.dead.len()), (79, 0));
}

/// What is wanted may be any number of pages behind, and the next one may not be there yet.
#[test]
fn an_event_that_nothing_follows_is_parked_and_another_one_is_looked_for_in_the_whole_outbox() {
    for (unwanted, has_other) in [(2..1_000, true), (2..1_000, false), (2..2, false)] {
        let last = unwanted.end;
        let mut rows = Rows::new(last, options(60_000, 30));
        rows.pages = (8, 32);
        rows.unwanted = unwanted.collect();
        if !has_other {
            rows.unwanted.insert(last);
        }
        let mut questions = 0;
        let mut answer = |numbers: &[u64]| {
            questions += u32::from(numbers.is_empty());
            match numbers.contains(&1) {
                true => End::Broken,
                false => End::Status(200, None),
            }
        };
        let mut course = Course::default();
        go_on(&mut rows, &mut course, MINUTE_MS, &mut answer);
        assert_eq!(rows.parked.len(), 1);
        assert_eq!(rows.delivered.contains(&last), has_other);
        assert!(rows.row.through >= last - 1);
        rows.ticks = 10 * MINUTE_MS;
        rows.record(last + 1);
        let ends = rows.ticks + 75_000;
        go_on(&mut rows, &mut course, ends, &mut answer);
        assert!(rows.delivered.contains(&(last + 1)));
        assert_eq!(questions, u32::from(!has_other));
    }
}

/// Each of them may cost the longest time that a request takes: that leaves time for others.
#[test]
fn parked_events_that_hang_are_tried_one_a_minute() {
    const POISONOUS: u64 = 40;
    let mut rows = Rows::new(POISONOUS, options(60_000, 30));
    let mut course = Course::default();
    let (mut number, mut tries) = (POISONOUS, 0);
    let (begins, ends) = (60 * MINUTE_MS, 8 * 60 * MINUTE_MS);
    while rows.ticks < ends {
        // Another client comes every ten seconds.
        if rows.ticks > (number - POISONOUS) * 10_000 {
            number += 1;
            rows.record(number);
        }
        let is_late = rows.ticks > begins;
        let mut answer = |numbers: &[u64]| {
            let hangs = numbers.iter().any(|number| *number <= POISONOUS);
            tries += u64::from(hangs && is_late);
            match hangs {
                true => End::TimedOut,
                false => End::Status(200, None),
            }
        };
        if !rows.step(&mut course, 100, &mut answer) {
            rows.ticks += 1_000;
        }
    }
    let minutes = (ends - begins) / MINUTE_MS;
    assert!(tries <= minutes + 5, "{tries} in {minutes} minutes");
    assert!(tries > minutes / 10, "{tries} in {minutes} minutes");
    assert!(rows.delivered.len() as u64 >= number - POISONOUS - 2);
}

#[test]
fn a_dead_letter_tells_how_it_was_tried() {
    let mut rows = Rows::new(2, options(60_000, 30));
    run(&mut rows, 1_441 * MINUTE_MS, |_| End::Status(503, None));
    for number in [1, 2] {
        let dead = &rows.dead[&number];
        assert_eq!(dead.reason, DeathReason::TimeToLiveExceeded.number());
        assert_eq!(dead.outcome, outcome(Outcome::Busy));
        assert!(dead.attempts > 1_000, "{}", dead.attempts);
        assert!(dead.attempted_ms > START + 1_430 * MINUTE_MS);
    }
    // What was never sent was never tried.
    let mut rows = Rows::new(1, options(60_000, 30));
    rows.row.state = State::Paused.number();
    run(&mut rows, 1_441 * MINUTE_MS, |_| End::Status(200, None));
    assert_eq!((rows.dead[&1].attempts, rows.dead[&1].outcome), (0, 0));
}

#[test]
fn an_account_holds_no_more_letters_than_it_may() {
    let most = limits::EVENT_PROGRESS_ITEMS as u64;
    let mut rows = Rows::new(most + 10, options(60_000, 30));
    rows.ticks = 1_440 * MINUTE_MS;
    let mut course = Course::default();
    let mut answer = |_: &[u64]| End::Status(200, None);
    rows.step(&mut course, 100, &mut answer);
    assert_eq!(rows.dead.len() as u64, most);
    rows.step(&mut course, 100, &mut answer);
    assert_eq!(rows.dead.len() as u64, most + 10);
}

/// Who is paused keeps events that it wants, and no others.
#[test]
fn who_gets_nothing_passes_over_what_it_does_not_want_all_the_same() {
    for state in [State::Paused, State::Gone] {
        let mut rows = Rows::new(5, options(60_000, 30));
        rows.unwanted = [1, 2, 4, 5].into();
        rows.row.state = state.number();
        run(&mut rows, 10_000, |_| panic!("nothing is sent"));
        assert_eq!(rows.row.through, 2);
        rows.unwanted.insert(3);
        run(&mut rows, 20_000, |_| panic!("nothing is sent"));
        assert_eq!(rows.row.through, 5);
    }
}

#[test]
fn an_error_that_has_not_come_to_the_rows_is_cleared_by_nobody() {
    let rows = Rows::new(
        1,
        EventSubscriptionOptions {
            handshake: Handshake::Off.number(),
            ..options(60_000, 30)
        },
    );
    let mut course = Course::default();
    let view = rows.view(None);
    let sent = Sent::New(&[1]);
    let lost = course.ended(&view, &sent, End::Status(503, None), "e", rows.now(), 0);
    assert_eq!(lost.last_error.as_deref(), Some("e"));
    for _ in 0..3 {
        course.follow(&rows.row);
        let next = course.next(&view, rows.now());
        assert!(
            matches!(next, Next::Hold(until) if until >= rows.ticks + 800),
            "{next:?}"
        );
    }
}

#[test]
fn a_pause_is_never_shorter_than_the_first_step_and_a_question_keeps_to_it() {
    let mut rows = Rows::new(1, options(60_000, 30));
    let mut course = Course::default();
    let busy = |after| (End::Status(429, Some(after)), "no");
    for (after, least) in [(0, 800), (40_000, 40_000)] {
        let refused = course.asked(&rows.view(None), None, busy(after), rows.now(), 0);
        rows.apply(refused);
        let before = rows.ticks;
        while let Next::Hold(until) = course.next(&rows.view(None), rows.now()) {
            rows.ticks = until;
        }
        assert!(rows.ticks - before >= least, "{after}");
        assert_eq!(course.next(&rows.view(None), rows.now()), Next::Ask);
    }
    rows.options.handshake = Handshake::Off.number();
    let mut answers = 0;
    run(&mut rows, 100_000, |_| {
        answers += 1;
        End::Status(503, Some(0))
    });
    assert!(answers <= 100, "{answers}");
}

#[test]
fn what_follows_a_question_or_a_change_keeps_to_the_rate() {
    let mut rows = Rows::new(1, options(6, 30));
    let mut course = Course::default();
    course.begin(&rows.view(None), rows.now());
    let given = (End::Status(200, None), "");
    let consent = course.asked(&rows.view(None), Some(None), given, rows.now(), 0);
    rows.apply(consent);
    for course in [course.clone(), course.anew()] {
        let next = course.next(&rows.view(None), rows.now());
        assert!(matches!(next, Next::Hold(_)), "{next:?}");
    }
}
