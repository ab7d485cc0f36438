//! The state store: expiry, KEYNOTIFY, and requests that are sent again.

use super::{Replica, close, open, set};
use crate::base::ids::ConnectionId;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{self, Output, Reply};
use crate::machine::schema::{self, Table as _};
use crate::store::{Condition, Reply as StoreReply};

#[test]
fn a_key_expires_when_its_time_is_over_and_watchers_are_told() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    replica.store(set(b"k", b"v", Condition::None, Some(500), b"1"));
    let watch = command::KeyNotify {
        client_id: "a".to_owned(),
        connection: 1,
        key: "k".into(),
        stop: false,
        ..Default::default()
    };
    assert!(matches!(
        replica.reply(Kind::KeyNotify(watch)),
        Reply::Store(StoreReply::Notify)
    ));
    replica.restart();
    assert!(replica.pass(499).is_empty());
    let outputs = replica.pass(1);
    assert!(
        matches!(
            &outputs[..],
            [Output::Notify {
                connection: ConnectionId(1),
                change: effect::Change::Delete { .. },
                ..
            }]
        ),
        "{outputs:?}"
    );
    assert!(matches!(
        replica.store(set(b"k", b"w", Condition::Nx, None, b"2")),
        StoreReply::Set { .. }
    ));
    replica.run(vec![close("a", 1)]);
    let outputs = replica.run(vec![Kind::StoreWrite(set(
        b"k",
        b"x",
        Condition::None,
        None,
        b"3",
    ))]);
    assert!(
        !outputs
            .iter()
            .any(|output| matches!(output, Output::Notify { .. })),
        "watching ends with the connection"
    );
}

#[test]
fn a_request_that_comes_again_is_answered_as_the_first_time() {
    let mut replica = Replica::new();
    let request = || set(b"k", b"v", Condition::Nx, None, b"same");
    let first = replica.store(request());
    assert!(matches!(first, StoreReply::Set { .. }));
    replica.restart();
    assert_eq!(replica.store(request()), first);
    let other = command::StoreWrite {
        fingerprint: vec![2; 16].into(),
        legacy_fingerprint: 2,
        ..request()
    };
    assert!(
        matches!(replica.store(other), StoreReply::NotSet { .. }),
        "another request with the same correlation data"
    );
    let mut batch = vec![Kind::StoreWrite(set(b"l", b"v", Condition::Nx, None, b"twice")); 2];
    batch.push(Kind::Nothing(command::Nothing {}));
    let outputs = replica.run(batch);
    let answered = |output: &&Output| {
        matches!(
            output,
            Output::Reply {
                reply: Reply::Store(StoreReply::Set { .. }),
                ..
            }
        )
    };
    assert_eq!(
        outputs.iter().filter(answered).count(),
        2,
        "also within one batch: {outputs:?}"
    );
    replica.pass(60_000);
    assert_eq!(replica.machine.parts.replies.len(), 0);
    assert!(
        matches!(replica.store(request()), StoreReply::NotSet { .. }),
        "forgotten after its time"
    );
}

#[test]
fn a_request_is_known_again_by_what_both_versions_have_logged() {
    let request = || set(b"k", b"v", Condition::Nx, None, b"same");
    let old = || command::StoreWrite {
        fingerprint: Default::default(),
        ..request()
    };
    for (first, second) in [(old(), request()), (request(), old()), (old(), old())] {
        let mut replica = Replica::new();
        let reply = replica.store(first);
        assert!(matches!(reply, StoreReply::Set { .. }));
        assert_eq!(replica.store(second.clone()), reply);
        replica.restart();
        assert_eq!(replica.store(second), reply);
    }
    let mut replica = Replica::new();
    replica.store(request());
    let collides = command::StoreWrite {
        fingerprint: vec![2; 16].into(),
        ..request()
    };
    assert!(
        matches!(replica.store(collides), StoreReply::NotSet { .. }),
        "another request with the same 64 bits"
    );
}

#[test]
fn a_restarted_replica_knows_the_same_requests_as_one_that_kept_running() {
    let first = command::StoreWrite {
        remember_s: 600,
        ..set(b"k", b"v", Condition::None, None, b"same")
    };
    let collides = command::StoreWrite {
        remember_s: 1,
        fingerprint: vec![2; 16].into(),
        ..first.clone()
    };
    for restarts in [false, true] {
        let mut replica = Replica::new();
        let reply = replica.store(first.clone());
        replica.store(collides.clone());
        // The reply to the second request is forgotten, the one to the first is not.
        replica.pass(2_000);
        if restarts {
            replica.restart();
        }
        assert_eq!(replica.store(first.clone()), reply, "restarted: {restarts}");
    }
}

/// Otherwise each of them reads and decodes all the replies of its entry, and entries have up to 30,000.
#[test]
fn a_request_that_comes_again_reads_a_few_replies_however_many_its_entry_has() {
    const REQUESTS: u32 = 300;
    const LARGEST_ROW: usize = 4 << 10;
    let mut replica = Replica::new();
    let requests = || {
        let keys = (0..REQUESTS).map(u32::to_be_bytes);
        keys.map(|key| Kind::StoreWrite(set(&key, b"v", Condition::Nx, None, &key)))
            .collect::<Vec<_>>()
    };
    let replies = |outputs: Vec<Output>| {
        let replies = outputs.into_iter().filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        replies
            .map(|reply| format!("{reply:?}"))
            .collect::<Vec<_>>()
    };
    let first = replies(replica.run(requests()));
    for restarted in [false, true] {
        if restarted {
            replica.restart();
        }
        assert_eq!(replies(replica.run(requests())), first);
        let most = u64::from(REQUESTS) + 20;
        assert!(replica.operations < most, "{}", replica.operations);
    }
    let of_replies = |key: &[u8]| key[0] == schema::Replies::ORDINAL;
    let stored = replica.stored.iter();
    let rows: Vec<usize> = stored
        .filter(|(key, _)| of_replies(key))
        .map(|(_, row)| row.len())
        .collect();
    assert!(rows.len() > 1 && rows.iter().all(|row| *row <= LARGEST_ROW));
    assert_eq!(replica.machine.parts.replies.len(), REQUESTS as usize);
    replica.pass(61_000);
    assert_eq!(replica.machine.parts.replies.len(), 0);
    assert_eq!(
        replica.stored.keys().filter(|key| of_replies(key)).count(),
        0
    );
}

/// What writes of a key weigh is known to other threads, also after a snapshot is installed.
#[test]
fn a_key_with_many_watchers_is_known() {
    let mut replica = Replica::new();
    let watch = |connection: u64, key: &str, stop| {
        Kind::KeyNotify(command::KeyNotify {
            client_id: connection.to_string(),
            connection,
            key: key.to_owned().into(),
            stop,
            ..Default::default()
        })
    };
    for connection in 1..=20 {
        replica.present(open(&connection.to_string(), connection));
        replica.run(vec![
            watch(connection, "k", false),
            watch(connection, "k", false),
        ]);
        replica.run(vec![watch(1, "l", false)]);
    }
    let counts = replica.machine.watch_counts();
    assert_eq!(
        (counts.of(b"k"), counts.of(b"l"), counts.of(b"m")),
        (20, 0, 0)
    );
    let stored = replica.stored.clone();
    replica.run(vec![watch(1, "k", true), close("2", 2)]);
    assert_eq!(counts.of(b"k"), 18);
    replica.run(
        (3..20)
            .map(|connection| watch(connection, "k", true))
            .collect(),
    );
    assert_eq!(counts.of(b"k"), 0, "one is none");
    replica.machine.restore(&stored);
    assert_eq!(counts.of(b"k"), 20);
    replica.machine.restore(&stored);
    assert_eq!((counts.of(b"k"), counts.of(b"l")), (20, 0));
}
