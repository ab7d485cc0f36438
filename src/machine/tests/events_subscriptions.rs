//! Event subscriptions: their cursor, what they park and give up, replays, and their end.

use prost::Message as _;

use super::Replica;
use super::events::{outbox, recording, set_events, told};
use super::queues::rows;
use super::{close, open};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::state;
use crate::base::time::Millis;
use crate::machine::effect::{EventsReply, Reply};
use crate::machine::schema::{self, Table as _};
use crate::machine::{read_events, tests::Budget};

pub(super) fn options() -> state::EventSubscriptionOptions {
    state::EventSubscriptionOptions {
        url: "https://example.org/events".to_owned(),
        ..Default::default()
    }
}

pub(super) fn put(name: &str) -> command::PutEventSubscription {
    command::PutEventSubscription {
        name: name.to_owned(),
        options: options().encode_to_vec().into(),
        ..Default::default()
    }
}

pub(super) fn progress(replica: &Replica, name: &str, through: u64) -> command::EventProgress {
    command::EventProgress {
        name: name.to_owned(),
        revision: row(replica, name).revision,
        through,
        ..Default::default()
    }
}

pub(super) fn row(replica: &Replica, name: &str) -> state::EventSubscription {
    read_events::subscription(&replica.stored, name).expect("a row")
}

fn park(number: u64, was_due_ms: u64, due_ms: u64) -> command::ParkEvent {
    command::ParkEvent {
        number,
        was_due_ms,
        due_ms,
        attempts: 1,
        outcome: 2,
        attempted_ms: 3,
    }
}

pub(super) fn dead(number: u64, was_due_ms: u64) -> command::DeadEvent {
    command::DeadEvent {
        number,
        was_due_ms,
        reason: 1,
        attempts: 30,
        outcome: 2,
        attempted_ms: 3,
    }
}

pub(super) fn numbers_of_dead(replica: &Replica, name: &str) -> Vec<u64> {
    let mut found = Vec::new();
    read_events::dead_letters(&replica.stored, name, 0, |number, _| {
        found.push(number);
        true
    });
    found
}

pub(super) fn numbers_of_parked(replica: &Replica, name: &str) -> Vec<(u64, u64)> {
    let all = read_events::parked(&replica.stored, name, usize::MAX);
    all.into_iter()
        .map(|(due, number, _)| (due.0, number))
        .collect()
}

impl Replica {
    pub(super) fn events_reply(&mut self, kind: Kind) -> EventsReply {
        match self.reply(kind) {
            Reply::Events(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn account(&mut self, progress: command::EventProgress) -> EventsReply {
        self.events_reply(Kind::EventProgress(progress))
    }

    /// So many events of one client, and whatever else is due meanwhile.
    pub(super) fn record(&mut self, pairs: u64) {
        for _ in 0..pairs {
            self.run(vec![Kind::OpenSession(open("a", 1)), close("a", 1)]);
        }
    }

    /// So many events of the outbox become dead letters.
    pub(super) fn give_up(&mut self, first: u64, last: u64) {
        self.give_up_of("s", first, last);
    }

    pub(super) fn give_up_of(&mut self, name: &str, first: u64, last: u64) {
        let most = limits::EVENT_PROGRESS_ITEMS as u64;
        for from in (first..=last).step_by(most as usize) {
            let through = (from + most - 1).min(last);
            let account = command::EventProgress {
                dead: (from..=through).map(|number| dead(number, 0)).collect(),
                ..progress(self, name, through)
            };
            assert!(matches!(self.account(account), EventsReply::Done(_)));
        }
    }

    pub(super) fn check_counts(&self, name: &str) {
        let row = row(self, name);
        let bytes = |ordinal: u8| -> u64 {
            let of_name = [&[ordinal], name.as_bytes(), &[0]].concat();
            let rows = self.stored.range(of_name.clone()..);
            let rows = rows.take_while(|(key, _)| key.starts_with(&of_name));
            rows.map(|(_, row)| row.len() as u64).sum()
        };
        assert_eq!(row.parked_bytes, bytes(schema::ParkedEvent::ORDINAL));
        assert_eq!(row.dead_bytes, bytes(schema::DeadLetter::ORDINAL));
        let first = numbers_of_dead(self, name).first().copied();
        assert!(first.is_none_or(|first| row.first_dead <= first));
        assert_eq!(row.parked, numbers_of_parked(self, name).len() as u64);
        assert_eq!(row.dead, numbers_of_dead(self, name).len() as u64);
        let usage = self.machine.event_usage();
        let bytes: usize = outbox(self)
            .iter()
            .map(|(_, event)| event.encoded_len() + 9)
            .sum();
        assert_eq!(usage.events, outbox(self).len() as u64);
        assert_eq!(usage.bytes, bytes as u64);
    }
}

pub(super) fn subscribed() -> Replica {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|_| {})]);
    let done = replica.events_reply(Kind::PutEventSubscription(put("s")));
    assert!(matches!(done, EventsReply::Done(_)));
    replica
}

#[test]
fn an_event_goes_when_everybody_has_it() {
    let mut replica = subscribed();
    replica.record(2);
    replica.events_reply(Kind::PutEventSubscription(put("late")));
    let early = command::PutEventSubscription {
        from_oldest: true,
        ..put("early")
    };
    replica.events_reply(Kind::PutEventSubscription(early));
    assert_eq!(
        (
            row(&replica, "late").through,
            row(&replica, "early").through
        ),
        (4, 0)
    );
    replica.record(1);
    for (name, through) in [("s", 6), ("late", 6), ("early", 2)] {
        let progress = progress(&replica, name, through);
        assert!(matches!(replica.account(progress), EventsReply::Done(_)));
    }
    replica.pass(2_000);
    replica.settle();
    let kept: Vec<u64> = outbox(&replica)
        .into_iter()
        .map(|(number, _)| number)
        .collect();
    assert_eq!(kept, [3, 4, 5, 6]);
    assert_eq!(read_events::numbers(&replica.stored).first, 3);
    let page = read_events::events(&replica.stored, 4, 1, 1);
    assert_eq!(page.len(), 1, "one comes in any case");
    assert_eq!(page[0].0, 5);
    assert_eq!(read_events::events(&replica.stored, 0, 9, 1 << 20).len(), 4);
    replica.check_counts("s");
    let end = command::DeleteEventSubscription {
        name: "early".to_owned(),
    };
    replica.events_reply(Kind::DeleteEventSubscription(end));
    replica.pass(2_000);
    replica.settle();
    assert!(told(&replica).is_empty());
    assert_eq!(read_events::subscriptions(&replica.stored).len(), 2);
}

#[test]
fn a_cursor_never_goes_back_and_another_revision_says_nothing() {
    let mut replica = subscribed();
    replica.record(2);
    let first = progress(&replica, "s", 3);
    replica.account(first.clone());
    replica.account(command::EventProgress {
        through: 1,
        ..first.clone()
    });
    assert_eq!(row(&replica, "s").through, 3);
    replica.account(command::EventProgress {
        through: 99,
        ..first.clone()
    });
    assert_eq!(row(&replica, "s").through, 4, "there are no more");
    let changed = replica.events_reply(Kind::PutEventSubscription(put("s")));
    let EventsReply::Done(index) = changed else {
        panic!("{changed:?}");
    };
    assert_eq!(row(&replica, "s").through, 4, "the cursor stays");
    let stale = replica.account(first);
    assert_eq!(stale, EventsReply::Conflict { revision: index.0 });
    let expecting = command::PutEventSubscription {
        expected_revision: Some(1),
        ..put("s")
    };
    let conflict = replica.events_reply(Kind::PutEventSubscription(expecting));
    assert_eq!(conflict, EventsReply::Conflict { revision: index.0 });
    let unknown = command::EventProgress {
        name: "none".to_owned(),
        ..Default::default()
    };
    assert_eq!(replica.account(unknown), EventsReply::NotFound);
}

#[test]
fn what_is_not_right_is_refused() {
    let mut replica = subscribed();
    let too_long = "n".repeat(65);
    for name in ["", "a b", "ü", &too_long] {
        let reply = replica.events_reply(Kind::PutEventSubscription(put(name)));
        assert_eq!(reply, EventsReply::Invalid, "{name}");
    }
    let wrong = [
        state::EventSubscriptionOptions {
            types: vec!["Microsoft.EventGrid.Other".to_owned()],
            ..options()
        },
        state::EventSubscriptionOptions {
            reasons: vec![12],
            ..options()
        },
        state::EventSubscriptionOptions::default(),
        state::EventSubscriptionOptions {
            token: "t".repeat(limits::EVENT_SUBSCRIPTION_BYTES),
            ..options()
        },
    ];
    for options in wrong {
        let put = command::PutEventSubscription {
            options: options.encode_to_vec().into(),
            ..put("x")
        };
        let reply = replica.events_reply(Kind::PutEventSubscription(put));
        assert_eq!(reply, EventsReply::Invalid);
    }
    let garbage = command::PutEventSubscription {
        options: b"\xff\xff"[..].into(),
        ..put("x")
    };
    let reply = replica.events_reply(Kind::PutEventSubscription(garbage));
    assert_eq!(reply, EventsReply::Invalid);
    let items = limits::EVENT_PROGRESS_ITEMS + 1;
    let large = command::EventProgress {
        dead: vec![dead(1, 0); items],
        ..progress(&replica, "s", 0)
    };
    assert_eq!(replica.account(large), EventsReply::Invalid);
    for number in 1..limits::EVENT_SUBSCRIPTIONS {
        let put = put(&format!("s-{number}"));
        let reply = replica.events_reply(Kind::PutEventSubscription(put));
        assert!(matches!(reply, EventsReply::Done(_)));
    }
    let one_more = replica.events_reply(Kind::PutEventSubscription(put("more")));
    assert_eq!(one_more, EventsReply::Full);
}

#[test]
fn events_are_parked_given_up_and_replayed() {
    let mut replica = subscribed();
    replica.record(3);
    let account = command::EventProgress {
        parked: vec![park(1, 0, 50), park(2, 0, 40)],
        dead: vec![dead(3, 0)],
        delivered: 1,
        last_error: Some("no".to_owned()),
        consent: Some(b"yes"[..].into()),
        state: 3,
        ..progress(&replica, "s", 4)
    };
    replica.account(account.clone());
    replica.check_counts("s");
    // A former leader says the same, late.
    replica.account(account);
    assert_eq!(numbers_of_parked(&replica, "s"), [(40, 2), (50, 1)]);
    assert_eq!(numbers_of_dead(&replica, "s"), [3]);
    replica.check_counts("s");
    let known = row(&replica, "s");
    assert_eq!((known.state, known.consent.as_ref()), (3, &b"yes"[..]));
    assert_eq!(known.last_error, "no");
    replica.restart();
    let account = command::EventProgress {
        parked: vec![park(2, 40, 90), park(9, 1, 1)],
        unparked: vec![command::UnparkEvent {
            number: 1,
            was_due_ms: 50,
        }],
        state: 1,
        ..progress(&replica, "s", 0)
    };
    replica.account(account);
    assert_eq!(numbers_of_parked(&replica, "s"), [(90, 2)]);
    let account = command::EventProgress {
        dead: vec![dead(2, 90)],
        ..progress(&replica, "s", 6)
    };
    replica.account(account);
    replica.pass(2_000);
    replica.settle();
    assert!(told(&replica).is_empty(), "the outbox has let go of them");
    assert_eq!(numbers_of_dead(&replica, "s"), [2, 3]);
    replica.check_counts("s");
    let replay = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 3,
        through: 9,
        purge: false,
    };
    replica.events_reply(Kind::ReplayDeadLetters(replay.clone()));
    let parked = read_events::parked(&replica.stored, "s", 9);
    assert_eq!(parked.len(), 1);
    let (due, number, letter) = &parked[0];
    assert_eq!((*due, *number), (Millis(replica.now), 3));
    assert_eq!((letter.attempts, letter.since_ms), (0, replica.now));
    assert_eq!(letter.event.as_ref().expect("its own copy").sequence, 2);
    let purge = command::ReplayDeadLetters {
        from: 1,
        purge: true,
        ..replay.clone()
    };
    replica.events_reply(Kind::ReplayDeadLetters(purge));
    assert!(numbers_of_dead(&replica, "s").is_empty());
    replica.check_counts("s");
    let nothing = command::ReplayDeadLetters {
        through: 0,
        ..replay
    };
    let reply = replica.events_reply(Kind::ReplayDeadLetters(nothing));
    assert_eq!(reply, EventsReply::Invalid);
}

/// As many dead letters as may be, the oldest give way.
#[test]
fn the_oldest_dead_letters_go() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.dead_letters_max = 3)]);
    replica.events_reply(Kind::PutEventSubscription(put("s")));
    replica.record(3);
    let account = command::EventProgress {
        dead: (1..=6).map(|number| dead(number, 0)).collect(),
        ..progress(&replica, "s", 6)
    };
    replica.account(account);
    assert_eq!(numbers_of_dead(&replica, "s"), [4, 5, 6]);
    let row = row(&replica, "s");
    assert_eq!((row.dead_lettered, row.dead_dropped), (6, 3));
    replica.check_counts("s");
}

/// Replays wait for room among the parked ones, and go on when some have left.
#[test]
fn a_replay_goes_on_when_there_is_room() {
    let mut replica = subscribed();
    let all = limits::EVENTS_PARKED + 500;
    replica.record(all / 2);
    replica.give_up(1, all);
    let replay = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 1,
        through: u64::MAX,
        purge: false,
    };
    replica.events_reply(Kind::ReplayDeadLetters(replay.clone()));
    replica.settle();
    assert_eq!(row(&replica, "s").parked, limits::EVENTS_PARKED);
    // The next one takes the place of one that waits for room; so does one of nothing.
    let other = command::ReplayDeadLetters {
        through: 1,
        ..replay.clone()
    };
    for (replay, through) in [(other, 1), (replay, u64::MAX)] {
        let reply = replica.events_reply(Kind::ReplayDeadLetters(replay));
        assert!(matches!(reply, EventsReply::Done(_)));
        assert_eq!(row(&replica, "s").replay_through, through);
    }
    while row(&replica, "s").parked > 0 {
        replica.restart();
        let parked = numbers_of_parked(&replica, "s");
        let some = parked.iter().take(limits::EVENT_PROGRESS_ITEMS);
        let account = command::EventProgress {
            unparked: some
                .map(|(was_due_ms, number)| command::UnparkEvent {
                    number: *number,
                    was_due_ms: *was_due_ms,
                })
                .collect(),
            ..progress(&replica, "s", 0)
        };
        replica.account(account);
        replica.settle();
        replica.check_counts("s");
    }
    assert!(numbers_of_dead(&replica, "s").is_empty());
}

#[test]
fn an_event_subscription_that_ends_leaves_nothing() {
    let mut replica = subscribed();
    replica.record(50);
    let account = command::EventProgress {
        parked: (1..=40).map(|number| park(number, 0, number)).collect(),
        ..progress(&replica, "s", 40)
    };
    replica.account(account);
    replica.give_up(41, 100);
    replica.set_budget(Budget {
        row_operations: 8,
        items_at_least: 1,
        overdraft: 0,
        queues_at_least: 1,
        looked_up_anew: 1_000,
    });
    let end = command::DeleteEventSubscription {
        name: "s".to_owned(),
    };
    replica.events_reply(Kind::DeleteEventSubscription(end.clone()));
    let again = replica.events_reply(Kind::DeleteEventSubscription(end));
    assert_eq!(again, EventsReply::NotFound);
    let busy = replica.events_reply(Kind::PutEventSubscription(put("s")));
    assert_eq!(busy, EventsReply::Busy, "its letters are going");
    replica.restart();
    replica.settle();
    replica.pass(2_000);
    replica.settle();
    assert_eq!(rows::<schema::ParkedEvent>(&replica), 0);
    assert_eq!(rows::<schema::DeadLetter>(&replica), 0);
    assert_eq!(rows::<schema::EventSubscription>(&replica), 0);
    assert!(outbox(&replica).is_empty());
    assert_eq!(
        rows::<schema::Timer>(&replica),
        2,
        "of a's session and its numbers"
    );
    let made = replica.events_reply(Kind::PutEventSubscription(put("s")));
    assert!(matches!(made, EventsReply::Done(_)));
}

#[test]
fn a_new_address_is_asked_again() {
    let mut replica = recording();
    replica.events_reply(Kind::PutEventSubscription(put("s")));
    let gone = command::EventProgress {
        state: 3,
        ..progress(&replica, "s", 0)
    };
    replica.account(gone);
    replica.events_reply(Kind::PutEventSubscription(put("s")));
    assert_eq!(row(&replica, "s").state, 3, "nothing is new");
    let moved = command::PutEventSubscription {
        options: state::EventSubscriptionOptions {
            url: "https://example.org/other".to_owned(),
            ..options()
        }
        .encode_to_vec()
        .into(),
        ..put("s")
    };
    replica.events_reply(Kind::PutEventSubscription(moved));
    assert_eq!(row(&replica, "s").state, 1);
}
