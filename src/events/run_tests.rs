//! What a run holds, and what ends it.

use super::super::answer::End;
use super::super::next::{Parked, Sent};
use super::super::options::{Handshake, defaults};
use super::*;
use crate::base::proto::command::ParkEvent;
use crate::base::proto::state::{Event, EventSubscriptionOptions, ParkedEvent};
use crate::base::time::Millis;

const START: u64 = 1_767_607_200_000;

fn options(rate_per_min: u32) -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        handshake: Handshake::Off.number(),
        rate_per_min,
        ..defaults()
    }
}

fn row() -> EventSubscription {
    EventSubscription {
        options: Some(options(60_000)),
        revision: 7,
        state: State::Active.number(),
        ..EventSubscription::default()
    }
}

fn event() -> Event {
    Event {
        kind: 1,
        time_ms: START,
        ..Event::default()
    }
}

fn view<'a>(
    row: &'a EventSubscription,
    options: &'a EventSubscriptionOptions,
    (number, event): (u64, &'a Event),
) -> View<'a> {
    View {
        name: "ops",
        row,
        options,
        skipped: number - 1,
        first: Some((number, event)),
        another: None,
        newest: number,
        parked: None,
    }
}

fn now(ticks: u64) -> Now {
    Now {
        ticks,
        log: Millis(START + ticks),
    }
}

/// Sends events until the run is over, each of which takes so many milliseconds; where it has come, and when.
fn run_of(each_ms: u64, rate_per_min: u32) -> (EventProgress, u64) {
    let (options, event) = (options(rate_per_min), event());
    let before = row();
    let mut course = Course::default();
    let mut run = Run::new(&view(&before, &options, (1, &event)), 1_000, now(1_000));
    let mut ticks = 1_000;
    for number in 1.. {
        let row = run.ahead(&before, before.clone()).expect("the same row");
        let view = view(&row, &options, (number, &event));
        loop {
            match run.then(&course, &view, now(ticks)) {
                Then::Send => break,
                Then::Pause(until) => {
                    assert!(until > ticks, "a pause ends");
                    ticks = until;
                }
                Then::Confirm => run.confirmed(ticks),
                Then::Tell => return (run.over(), ticks),
            }
        }
        course.begin(&view, now(ticks));
        ticks += each_ms;
        let progress = course.ended(
            &view,
            &Sent::New(&[number]),
            End::Status(204, None),
            "",
            now(ticks),
            0,
        );
        if !run.add(progress) {
            break;
        }
    }
    (run.over(), ticks)
}

#[test]
fn a_run_is_over_after_so_many_events_or_after_its_time() {
    // The rate is a thousand a second.
    let (told, ticks) = run_of(0, 60_000);
    assert_eq!((told.through, told.delivered), (RUN_EVENTS, RUN_EVENTS));
    assert!(ticks < 1_000 + RUN_MS);
    let (told, ticks) = run_of(30, 60_000);
    assert_eq!((told.through, told.delivered), (7, 7));
    assert!(ticks >= 1_000 + RUN_MS);
    // One takes longer than the whole run.
    assert_eq!(run_of(9_000, 60_000).0.delivered, 1);
}

/// A majority that has spoken does so for a while.
#[test]
fn nothing_begins_long_after_a_majority_was_asked() {
    let (options, event, before) = (options(60_000), event(), row());
    let view = view(&before, &options, (2, &event));
    let course = Course::default();
    let mut run = Run::new(&view, 1_000, now(1_060));
    let then = |ticks| run.then(&course, &view, now(ticks));
    assert_eq!(then(1_099), Then::Send);
    assert_eq!(then(1_100), Then::Confirm);
    run.confirmed(1_120);
    let then = |ticks| run.then(&course, &view, now(ticks));
    assert_eq!(then(1_219), Then::Send);
    assert_eq!(then(1_220), Then::Confirm);
    assert_eq!(then(1_060 + RUN_MS), Then::Tell);
}

#[test]
fn a_run_keeps_to_the_rate() {
    // One in ten milliseconds, then one in a second.
    assert_eq!(run_of(0, 6_000).0.delivered, RUN_MS / 10);
    assert_eq!(run_of(0, 60).0.delivered, 1);
}

#[test]
fn what_is_no_delivery_ends_a_run_and_goes_to_the_log_with_it() {
    let (options, event) = (options(60_000), event());
    for (end, parked, error) in [
        (End::Status(500, None), 1, None),
        (End::Status(503, None), 0, Some("busy")),
        (End::TimedOut, 0, Some("busy")),
    ] {
        let (before, mut course) = (row(), Course::default());
        let mut run = Run::new(&view(&before, &options, (1, &event)), 0, now(0));
        for (number, end) in [(1, End::Status(200, None)), (2, end)] {
            let row = run.ahead(&before, before.clone()).expect("the same row");
            let view = view(&row, &options, (number, &event));
            let progress = course.ended(&view, &Sent::New(&[number]), end, "busy", now(1), 0);
            assert_eq!(run.add(progress), number == 1, "{end:?}");
        }
        let told = run.over();
        assert_eq!((told.delivered, told.parked.len()), (1, parked), "{end:?}");
        assert_eq!(told.through, 1 + parked as u64, "{end:?}");
        assert_eq!(told.last_error.as_deref(), error, "{end:?}");
    }
}

#[test]
fn a_row_that_somebody_else_has_changed_ends_a_run() {
    let (options, event) = (options(60_000), event());
    let before = row();
    let run = Run::new(&view(&before, &options, (1, &event)), 0, now(0));
    let changes: [fn(&mut EventSubscription); 6] = [
        |row| row.options = None,
        |row| row.revision = 8,
        |row| row.state = State::Paused.number(),
        // Dead letters are replayed.
        |row| row.parked = 1,
        |row| row.consent = vec![1].into(),
        |row| row.last_error = "busy".to_owned(),
    ];
    for change in changes {
        let mut changed = before.clone();
        change(&mut changed);
        assert_eq!(run.ahead(&before, changed), None);
    }
    let further = EventSubscription {
        through: 9,
        dead: 2,
        ..before.clone()
    };
    assert!(run.ahead(&before, further).is_some());
}

#[test]
fn what_goes_before_new_events_ends_a_run() {
    let (options, event) = (options(60_000), event());
    let before = row();
    let course = Course::default();
    let view = view(&before, &options, (2, &event));
    let run = Run::new(&view, 0, now(0));
    assert_eq!(run.then(&course, &view, now(1)), Then::Send);
    let parked = |due_ms| Parked {
        due_ms,
        number: 1,
        row: ParkedEvent {
            since_ms: START,
            ..ParkedEvent::default()
        },
    };
    let (due, later) = (parked(START), parked(START + 100));
    let with = |parked| View {
        parked: Some(parked),
        ..view
    };
    assert_eq!(run.then(&course, &with(&later), now(99)), Then::Send);
    assert_eq!(run.then(&course, &with(&later), now(100)), Then::Tell);
    assert_eq!(run.then(&course, &view, now(100)), Then::Confirm);
    assert_eq!(run.then(&course, &with(&due), now(1)), Then::Tell);
    // One that is too old is no delivery.
    let old = Event {
        time_ms: START - u64::from(options.ttl_min) * 60_000,
        ..event.clone()
    };
    let too_old = View {
        first: Some((2, &old)),
        ..view
    };
    assert_eq!(run.then(&course, &too_old, now(1)), Then::Tell);
}

#[test]
fn the_last_word_of_a_run_is_of_its_last_request() {
    let (options, event, before) = (options(60_000), event(), row());
    let mut run = Run::new(&view(&before, &options, (1, &event)), 0, now(0));
    let of = |through, delivered| EventProgress {
        through,
        delivered,
        name: "ops".to_owned(),
        revision: 7,
        ..EventProgress::default()
    };
    assert!(run.add(of(4, 1)));
    assert!(run.add(of(9, 1)));
    let parked = EventProgress {
        parked: vec![ParkEvent {
            number: 12,
            ..ParkEvent::default()
        }],
        ..of(12, 0)
    };
    assert!(!run.add(parked.clone()));
    assert_eq!(
        run.over(),
        EventProgress {
            delivered: 2,
            ..parked
        }
    );
}
