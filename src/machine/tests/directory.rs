//! The directory against a model; what rests on an entry; its bounds; and that its rows are what they were.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Replica, open};
use crate::base::directory::Kind;
use crate::base::limits;
use crate::base::proto::command;
use crate::base::proto::command::command::Kind as Command;
use crate::machine::effect::{DirectoryChanged, DirectoryReply, Output, Reply};
use crate::machine::read::{self, ListBudget};
use crate::machine::schema::{self, Table as _};
use crate::machine::state_hash::hash_tables;
use crate::machine::tables::Backing;

pub(super) fn put(kind: Kind, name: &str, value: &str) -> command::DirectoryChange {
    command::DirectoryChange {
        kind: kind as u32,
        name: name.to_owned(),
        value: Some(value.to_owned().into()),
        ..Default::default()
    }
}

fn delete(kind: Kind, name: &str) -> command::DirectoryChange {
    command::DirectoryChange {
        value: None,
        ..put(kind, name, "")
    }
}

fn expecting(change: command::DirectoryChange, version: u64) -> command::DirectoryChange {
    command::DirectoryChange {
        expected_version: Some(version),
        ..change
    }
}

fn until(change: command::DirectoryChange, expires_at_ms: u64) -> command::DirectoryChange {
    command::DirectoryChange {
        expires_at_ms,
        ..change
    }
}

pub(super) fn write(changes: Vec<command::DirectoryChange>) -> Command {
    Command::WriteDirectory(command::WriteDirectory {
        changes,
        ..Default::default()
    })
}

impl Replica {
    fn change(&mut self, changes: Vec<command::DirectoryChange>) -> DirectoryReply {
        match self.reply(write(changes)) {
            Reply::Directory(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    fn written(&mut self, change: command::DirectoryChange) -> u64 {
        match self.change(vec![change]) {
            DirectoryReply::Written(index) => index.0,
            other => panic!("{other:?}"),
        }
    }

    /// Version and value.
    fn entry(&self, kind: Kind, name: &str) -> Option<(u64, String)> {
        let backing: &dyn Backing = &self.stored;
        let row = read::directory_entry(backing, kind, name)?;
        let value = String::from_utf8(row.value.to_vec()).expect("text");
        Some((row.version, value))
    }
}

fn changed(outputs: &[Output]) -> Vec<&DirectoryChanged> {
    let changed = outputs.iter().filter_map(|output| match output {
        Output::DirectoryChanged(changed) => Some(&**changed),
        _ => None,
    });
    changed.collect()
}

#[test]
fn an_entry_has_the_version_of_its_last_change() {
    let mut replica = Replica::new();
    let first = replica.written(expecting(put(Kind::User, "a", "1"), 0));
    let again = replica.change(vec![expecting(put(Kind::User, "a", "2"), 0)]);
    let version = first;
    assert_eq!(again, DirectoryReply::Conflict { at: 0, version });
    let second = replica.written(expecting(put(Kind::User, "a", "2"), first));
    assert!(second > first);
    assert_eq!(replica.entry(Kind::User, "a"), Some((second, "2".into())));
    assert_eq!(replica.entry(Kind::Token, "a"), None, "another kind");
    let stale = replica.change(vec![expecting(delete(Kind::User, "a"), first)]);
    let version = second;
    assert_eq!(stale, DirectoryReply::Conflict { at: 0, version });
    replica.written(delete(Kind::User, "a"));
    assert_eq!(replica.entry(Kind::User, "a"), None);
    let outputs = replica.run(vec![write(vec![delete(Kind::User, "a")])]);
    assert!(changed(&outputs).is_empty(), "there was nothing");
    let third = replica.written(put(Kind::User, "a", "1"));
    assert!(third > second, "no version comes back");
    assert_eq!(replica.machine.directory_usage(), (1, 2));
}

#[test]
fn a_life_counts_from_the_command_on_in_log_time() {
    let mut replica = Replica::new();
    replica.written(command::DirectoryChange {
        expires_in_ms: 5_000,
        ..put(Kind::Ban, "client:c", "")
    });
    replica.pass(4_000);
    assert!(replica.entry(Kind::Ban, "client:c").is_some());
    replica.pass(2_000);
    assert_eq!(replica.entry(Kind::Ban, "client:c"), None);
}

#[test]
fn what_says_the_same_in_another_way_keeps_its_version() {
    let mut replica = Replica::new();
    let first = replica.written(put(Kind::User, "a", "weak"));
    let rehashed = command::DirectoryChange {
        keeps_version: true,
        ..expecting(put(Kind::User, "a", "strong"), first)
    };
    let outputs = replica.run(vec![write(vec![rehashed.clone()])]);
    assert_eq!(changed(&outputs).len(), 1, "its value has changed");
    assert_eq!(
        replica.entry(Kind::User, "a"),
        Some((first, "strong".into()))
    );
    let second = replica.written(put(Kind::User, "a", "new"));
    let late = replica.change(vec![rehashed.clone()]);
    assert!(matches!(late, DirectoryReply::Conflict { .. }));
    replica.written(delete(Kind::User, "a"));
    let unconditional = command::DirectoryChange {
        expected_version: None,
        ..rehashed
    };
    let third = replica.written(unconditional);
    assert!(third > second);
    let version = replica.entry(Kind::User, "a").map(|entry| entry.0);
    assert_eq!(version, Some(third), "what is new has no version to keep");
}

#[test]
fn a_command_changes_everything_or_nothing() {
    let mut replica = Replica::new();
    let a = replica.written(put(Kind::User, "a", "1"));
    let stored = replica.stored.clone();
    let mixed = vec![
        put(Kind::User, "b", "1"),
        expecting(put(Kind::User, "a", "2"), a),
        expecting(delete(Kind::Token, "t"), 7),
    ];
    assert_eq!(
        replica.change(mixed),
        DirectoryReply::Conflict { at: 2, version: 0 }
    );
    for (key, row) in &stored {
        if key[0] == 5 {
            assert_eq!(replica.stored.get(key), Some(row));
        }
    }
    assert_eq!(replica.entry(Kind::User, "b"), None);
    // The same entry twice: both are judged on what there was, the last one stays.
    let twice = vec![
        expecting(put(Kind::User, "a", "22"), a),
        expecting(put(Kind::User, "a", "333"), a),
    ];
    assert!(matches!(replica.change(twice), DirectoryReply::Written(_)));
    let value = replica.entry(Kind::User, "a").map(|entry| entry.1);
    assert_eq!(value.as_deref(), Some("333"));
    assert_eq!(replica.machine.directory_usage(), (1, 4));
}

#[test]
fn what_is_too_large_or_unknown_is_refused() {
    let mut replica = Replica::new();
    let long = "x".repeat(limits::DIRECTORY_NAME_BYTES + 1);
    let large = "x".repeat(limits::DIRECTORY_VALUE_BYTES + 1);
    for change in [
        put(Kind::User, "", "v"),
        put(Kind::User, &long, "v"),
        put(Kind::Rules, "rules", &large),
        command::DirectoryChange {
            kind: 9,
            ..put(Kind::User, "a", "v")
        },
    ] {
        let reply = replica.change(vec![put(Kind::User, "ok", "v"), change]);
        assert_eq!(reply, DirectoryReply::Invalid);
    }
    let most = limits::DIRECTORY_CHANGES;
    let many = |count| (0..count).map(|n: usize| put(Kind::User, &n.to_string(), "v"));
    assert_eq!(
        replica.change(many(most + 1).collect()),
        DirectoryReply::Invalid
    );
    assert_eq!(replica.machine.directory_usage(), (0, 0));
    let reply = replica.change(many(most).collect());
    assert!(matches!(reply, DirectoryReply::Written(_)));
}

#[test]
fn above_its_bounds_the_directory_only_shrinks() {
    let mut replica = Replica::new();
    let bounded = |changes, max_entries, max_bytes| {
        Command::WriteDirectory(command::WriteDirectory {
            changes,
            max_entries,
            max_bytes,
        })
    };
    let mut reply = |changes, max_entries, max_bytes| match replica.reply(bounded(
        changes,
        max_entries,
        max_bytes,
    )) {
        Reply::Directory(reply) => reply,
        other => panic!("{other:?}"),
    };
    let is_written = |reply| matches!(reply, DirectoryReply::Written(_));
    let (a, b) = (put(Kind::User, "a", "123"), put(Kind::User, "b", "123"));
    assert!(is_written(reply(vec![a.clone(), b.clone()], 2, 8)));
    let c = put(Kind::Ban, "c", "");
    assert_eq!(reply(vec![c.clone()], 2, 0), DirectoryReply::Full);
    assert_eq!(reply(vec![c.clone()], 0, 8), DirectoryReply::Full);
    let longer = put(Kind::User, "a", "1234");
    assert_eq!(reply(vec![longer], 2, 8), DirectoryReply::Full);
    assert!(is_written(reply(vec![a], 1, 1)), "it grows by nothing");
    let swapped = vec![c, delete(Kind::User, "b")];
    assert!(is_written(reply(swapped, 1, 1)), "it shrinks");
}

#[test]
fn an_entry_goes_when_its_time_is_over() {
    let mut replica = Replica::new();
    let now = replica.now;
    replica.written(until(put(Kind::Ban, "a", "1"), now + 1_000));
    replica.written(until(put(Kind::Ban, "b", "1"), now + 1_000));
    replica.written(until(put(Kind::Ban, "b", "2"), now + 5_000));
    replica.written(until(put(Kind::Ban, "c", "1"), now + 1_000));
    replica.written(put(Kind::Ban, "c", "for ever"));
    replica.written(until(put(Kind::Ban, "d", "1"), now + 1_000));
    replica.written(delete(Kind::Ban, "d"));
    replica.restart();
    let outputs = replica.pass(1_000);
    let gone: Vec<_> = changed(&outputs)
        .iter()
        .map(|changed| (changed.name.clone(), changed.entry.is_none()))
        .collect();
    assert_eq!(gone, [("a".to_owned(), true)]);
    assert!(replica.entry(Kind::Ban, "b").is_some());
    replica.pass(10_000);
    assert_eq!(replica.entry(Kind::Ban, "b"), None);
    assert_eq!(replica.machine.directory_usage(), (1, 9));
    // What is over when it is written goes at once.
    replica.written(until(put(Kind::Ban, "e", "1"), now));
    replica.settle();
    assert_eq!(replica.entry(Kind::Ban, "e"), None);
}

fn proof(kind: Kind, name: &str, version: u64) -> command::Proof {
    command::Proof {
        kind: kind as u32,
        name: name.to_owned(),
        version,
    }
}

fn open_as(client_id: &str, connection: u64, proofs: Vec<command::Proof>) -> Command {
    let principal = command::Principal {
        name: "somebody".to_owned(),
        proofs,
    };
    Command::OpenSession(command::OpenSession {
        principal: Some(principal),
        ..open(client_id, connection)
    })
}

#[test]
fn an_identity_opens_a_session_only_while_what_it_rests_on_is_unchanged() {
    let mut replica = Replica::new();
    let user = replica.written(put(Kind::User, "u", "1"));
    let token = replica.written(put(Kind::Token, "t", "1"));
    let proofs = vec![proof(Kind::User, "u", user), proof(Kind::Token, "t", token)];
    let opened = |reply: Reply| matches!(reply, Reply::Opened { .. });
    let refused = |reply: Reply| matches!(reply, Reply::NotAuthorized);
    assert!(opened(replica.reply(open_as("a", 1, proofs.clone()))));
    assert!(opened(replica.reply(open_as("b", 2, Vec::new()))));
    let owner = replica.stored.clone();
    // Revoked in the same entry, just before.
    let outputs = replica.run(vec![
        write(vec![put(Kind::User, "u", "2")]),
        open_as("a", 3, proofs.clone()),
    ]);
    let replies: Vec<_> = outputs
        .iter()
        .filter_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply.clone()),
            Output::End { .. } => panic!("the owner stays"),
            _ => None,
        })
        .collect();
    assert!(refused(replies[1].clone()));
    let session = schema::Session::encode("a");
    assert_eq!(replica.stored.get(&session), owner.get(&session));
    replica.restart();
    assert!(refused(replica.reply(open_as("a", 3, proofs.clone()))));
    replica.written(delete(Kind::User, "u"));
    assert!(refused(replica.reply(open_as("a", 3, proofs))));
    let unknown = command::Proof {
        kind: 77,
        ..proof(Kind::User, "u", user)
    };
    assert!(refused(replica.reply(open_as("a", 3, vec![unknown]))));
    let holds = proof(Kind::Token, "t", token);
    let most = vec![holds.clone(); limits::PROOFS];
    assert!(opened(replica.reply(open_as("a", 3, most))));
    let more = vec![holds; limits::PROOFS + 1];
    assert!(refused(replica.reply(open_as("a", 3, more))));
}

#[test]
fn a_kind_is_listed_in_pages() {
    let mut replica = Replica::new();
    let users = (0..25).map(|n| put(Kind::User, &format!("{n:02}"), "v"));
    replica.change(users.collect());
    replica.written(put(Kind::Ban, "00", "v"));
    let backing: &dyn Backing = &replica.stored;
    for (most, budget) in [
        (4, ListBudget::default()),
        (100, ListBudget::of(4, 1 << 20)),
    ] {
        let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let (page, next) = read::directory_page(backing, Kind::User, &after, most, budget);
            found.extend(page.into_iter().map(|(name, _)| name));
            pages += 1;
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!((found.len(), pages), (25, 7));
        assert!(found.is_sorted());
    }
    let mut all = 0;
    read::directory_all(backing, Kind::User, |_, _| all += 1);
    assert_eq!(all, 25);
}

/// What is done to the directory.
#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Model>),
    Pass(u64),
}

/// A change: entry, whether its version is right, value if it is put, time to live, whether it keeps the version.
type Model = (u8, Option<bool>, Option<u8>, u64, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (
        0u8..6,
        prop::option::of(prop::bool::weighted(0.8)),
        prop::option::weighted(0.7, 0u8..20),
        prop_oneof![2 => Just(0), 1 => 1u64..2_000],
        prop::bool::weighted(0.2),
    );
    let step = prop_oneof![
        5 => prop::collection::vec(change, 1..4).prop_map(Step::Write),
        1 => (0u64..1_500).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 0..50)
}

/// Version, value, and when it expires.
type Entries = BTreeMap<(Kind, String), (u64, String, u64)>;

fn key_of(entry: u8) -> (Kind, String) {
    let kind = Kind::ALL[usize::from(entry % 2)];
    (kind, format!("name {}", entry / 2))
}

/// What the model says to a command; `None` when it changes nothing.
fn model(entries: &Entries, changes: &[command::DirectoryChange], index: u64) -> Option<Entries> {
    let mut after = entries.clone();
    for change in changes {
        let kind = Kind::of_number(change.kind).expect("a kind");
        let key = (kind, change.name.clone());
        let version = entries.get(&key).map_or(0, |entry| entry.0);
        if change
            .expected_version
            .is_some_and(|expected| expected != version)
        {
            return None;
        }
        let Some(value) = &change.value else {
            after.remove(&key);
            continue;
        };
        let kept = after.get(&key).filter(|_| change.keeps_version);
        let version = kept.map_or(index, |entry| entry.0);
        let value = String::from_utf8(value.to_vec()).expect("text");
        after.insert(key, (version, value, change.expires_at_ms));
    }
    Some(after)
}

fn stored(replica: &Replica) -> Entries {
    let backing: &dyn Backing = &replica.stored;
    let mut found = Entries::new();
    for kind in Kind::ALL {
        read::directory_all(backing, kind, |name, row| {
            let value = String::from_utf8(row.value.to_vec()).expect("text");
            found.insert(
                (kind, name.to_owned()),
                (row.version, value, row.expires_at_ms),
            );
        });
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_directory_is_what_a_model_says_and_replicas_agree(
        steps in steps(), restarts in prop::collection::btree_set(0usize..50, 0..8),
    ) {
        let (mut replica, mut restarted) = (Replica::new(), Replica::new());
        let mut entries = Entries::new();
        for (number, step) in steps.iter().enumerate() {
            if restarts.contains(&number) {
                restarted.restart();
            }
            match step {
                Step::Pass(ms) => {
                    let outputs = replica.pass(*ms);
                    restarted.pass(*ms);
                    let before = entries.len();
                    entries.retain(|_, entry| entry.2 == 0 || entry.2 > replica.now);
                    prop_assert_eq!(changed(&outputs).len(), before - entries.len());
                }
                Step::Write(changes) => {
                    let changes: Vec<_> = changes.iter().map(|(entry, expected, value, ttl, keeps)| {
                        let (kind, name) = key_of(*entry);
                        let version = entries.get(&(kind, name.clone())).map_or(0, |entry| entry.0);
                        command::DirectoryChange {
                            kind: kind as u32,
                            name,
                            expected_version: expected.map(|right| if right { version } else { version + 1 }),
                            value: value.map(|value| value.to_string().into()),
                            expires_at_ms: if *ttl == 0 { 0 } else { replica.now + ttl },
                            keeps_version: *keeps,
                            expires_in_ms: 0,
                        }
                    }).collect();
                    let reply = replica.change(changes.clone());
                    prop_assert_eq!(restarted.change(changes.clone()), reply);
                    match model(&entries, &changes, replica.index) {
                        Some(after) => {
                            prop_assert!(matches!(reply, DirectoryReply::Written(_)), "{:?}", reply);
                            entries = after;
                        }
                        None => prop_assert!(matches!(reply, DirectoryReply::Conflict { .. }), "{:?}", reply),
                    }
                }
            }
            prop_assert_eq!(&stored(&replica), &entries);
            prop_assert_eq!(&replica.stored, &restarted.stored);
            let size = |((_, name), (_, value, _)): (&(Kind, String), &(u64, String, u64))| name.len() + value.len();
            let bytes: usize = entries.iter().map(size).sum();
            prop_assert_eq!(replica.machine.directory_usage(), (entries.len() as u64, bytes as u64));
        }
        // No timer stays behind its entry.
        let timers = replica.stored.keys().filter(|key| key[0] == 0x30).count();
        prop_assert_eq!(timers, entries.values().filter(|entry| entry.2 != 0).count());
        let hash = |replica: &Replica| hash_tables(&replica.stored, &mut |_| true);
        prop_assert_eq!(hash(&replica), hash(&restarted));
    }
}
