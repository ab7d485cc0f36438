//! Letters as large as clients like: bytes have a bound as well.

use super::events::set_events;
use super::events_subscriptions::{
    numbers_of_dead, numbers_of_parked, progress, put, row, subscribed,
};
use super::{Replica, close, open};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};

/// Clients choose how large the letters are: bytes have a bound as well.
#[test]
fn large_letters_are_fewer() {
    let mut replica = Replica::new();
    replica.run(vec![set_events(|settings| settings.dead_letters_max = 40)]);
    replica.events_reply(Kind::PutEventSubscription(put("s")));
    let long = "long".repeat(2_500);
    for _ in 0..10 {
        replica.run(vec![Kind::OpenSession(open(&long, 1)), close(&long, 1)]);
    }
    replica.give_up(1, 20);
    replica.settle();
    // A letter has the name twice.
    assert_eq!(numbers_of_dead(&replica, "s"), [19, 20]);
    replica.check_counts("s");
    replica.record(19);
    replica.give_up(21, 58);
    replica.settle();
    assert_eq!(numbers_of_dead(&replica, "s").len(), 39);
    replica.check_counts("s");
    let purge = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 0,
        through: 30,
        purge: true,
    };
    replica.events_reply(Kind::ReplayDeadLetters(purge));
    assert_eq!(numbers_of_dead(&replica, "s")[0], 31);
    replica.check_counts("s");
}

/// Whoever makes many letters, or large ones, does not push out those of others.
#[test]
fn one_client_makes_its_own_letters_go_and_not_those_of_others() {
    for (long, count) in [("l".repeat(2_000), 40), ("s".to_owned(), 400)] {
        let mut replica = Replica::new();
        replica.run(vec![set_events(|settings| settings.dead_letters_max = 100)]);
        replica.events_reply(Kind::PutEventSubscription(put("s")));
        let connect = |replica: &mut Replica, client_id: &str| {
            let opened = Kind::OpenSession(open(client_id, 1));
            replica.run(vec![opened, close(client_id, 1)]);
        };
        connect(&mut replica, &long);
        connect(&mut replica, "other");
        for _ in 0..count {
            connect(&mut replica, &long);
        }
        let last = 2 * (count + 2);
        replica.give_up(1, last);
        replica.settle();
        let left = numbers_of_dead(&replica, "s");
        assert!(left.contains(&3) && left.contains(&4), "{left:?}");
        assert!(left.len() > 20, "{left:?}");
        replica.check_counts("s");
        let row = row(&replica, "s");
        assert_eq!(row.dead + row.dead_dropped, last);
        assert_eq!(row.dead_lettered, last);
        // Others' new ones make the oldest go.
        replica.restart();
        for number in 0..100 {
            connect(&mut replica, &format!("new-{number}"));
        }
        replica.give_up(last + 1, last + 200);
        replica.settle();
        let left = numbers_of_dead(&replica, "s");
        assert!(left.iter().all(|number| *number > last), "{left:?}");
        replica.check_counts("s");
    }
}

/// The same of parked ones: large ones wait for room.
#[test]
fn large_letters_are_replayed_as_there_is_room() {
    let mut replica = subscribed();
    let long = "l".repeat(60_000);
    for _ in 0..100 {
        replica.run(vec![Kind::OpenSession(open(&long, 1)), close(&long, 1)]);
    }
    replica.give_up(1, 200);
    let replay = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 1,
        through: u64::MAX,
        purge: false,
    };
    replica.events_reply(Kind::ReplayDeadLetters(replay));
    replica.settle();
    let parked = numbers_of_parked(&replica, "s");
    assert!((130..150).contains(&parked.len()), "{}", parked.len());
    replica.check_counts("s");
    // What waits for room is not looked at again with every account.
    let account = command::EventProgress {
        delivered: 1,
        ..progress(&replica, "s", 0)
    };
    replica.account(account);
    assert!(replica.operations < 30, "{}", replica.operations);
    for (was_due_ms, number) in parked {
        let account = command::EventProgress {
            unparked: vec![command::UnparkEvent { number, was_due_ms }],
            ..progress(&replica, "s", 0)
        };
        replica.account(account);
    }
    replica.settle();
    replica.check_counts("s");
    assert!(numbers_of_dead(&replica, "s").is_empty());
    assert_eq!(row(&replica, "s").replay_through, 0);
}

/// Clients choose how much one batch reads and deletes, too.
#[test]
fn large_letters_go_bit_by_bit() {
    let mut replica = subscribed();
    let long = "l".repeat(60_000);
    for _ in 0..100 {
        replica.run(vec![Kind::OpenSession(open(&long, 1)), close(&long, 1)]);
    }
    replica.give_up(1, 200);
    let purge = command::ReplayDeadLetters {
        name: "s".to_owned(),
        from: 1,
        through: 190,
        purge: true,
    };
    replica.events_reply(Kind::ReplayDeadLetters(purge));
    assert!(numbers_of_dead(&replica, "s").len() > 120);
    replica.check_counts("s");
    replica.settle();
    assert_eq!(numbers_of_dead(&replica, "s").len(), 10);
    assert_eq!(row(&replica, "s").purge_through, 0);
    replica.check_counts("s");
    replica.run(vec![set_events(|settings| settings.dead_letters_max = 3)]);
    replica.settle();
    assert!(numbers_of_dead(&replica, "s").len() <= 3);
    replica.check_counts("s");
}

/// Nor do they choose it by how many event subscriptions have such letters.
#[test]
fn letters_of_all_event_subscriptions_share_the_bytes_of_a_batch() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let mut replica = Replica::new();
    replica.run(vec![set_events(|_| {})]);
    for name in NAMES {
        replica.events_reply(Kind::PutEventSubscription(put(name)));
    }
    let long = "l".repeat(60_000);
    for _ in 0..40 {
        replica.run(vec![Kind::OpenSession(open(&long, 1)), close(&long, 1)]);
    }
    for name in NAMES {
        replica.give_up_of(name, 1, 80);
    }
    replica.settle();
    let left = |replica: &Replica| -> u64 {
        let rows = NAMES.iter().map(|name| row(replica, name));
        rows.map(|row| row.dead_bytes).sum()
    };
    let before = left(&replica);
    assert!(before > 4 * limits::EVENTS_TRIMMED_BYTES, "{before}");
    let purges = NAMES.map(|name| {
        Kind::ReplayDeadLetters(command::ReplayDeadLetters {
            name: name.to_owned(),
            from: 1,
            through: u64::MAX,
            purge: true,
        })
    });
    replica.run(purges.to_vec());
    // The last letter may exceed them.
    let most = limits::EVENTS_TRIMMED_BYTES + 200_000;
    let gone = before - left(&replica);
    assert!((1..=most).contains(&gone), "{gone}");
    replica.settle();
    assert_eq!(left(&replica), 0);
    for name in NAMES {
        assert!(numbers_of_dead(&replica, name).is_empty());
        replica.check_counts(name);
    }
}
