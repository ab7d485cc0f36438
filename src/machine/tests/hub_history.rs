//! Random histories of identities and twins. Whatever happens: versions and etags rise by one per accepted write and
//! nothing else moves them, of the conditional writes with one etag one is accepted, what is refused changes no row,
//! and a replica that has lost its memory has the same rows and says the same.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::golden_commands::Random;
use super::hub::{delete, id, put, report, update, with_keys};
use super::hub_connections::{hub_open, observe};
use super::{Replica, close, open};
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::hub::{HubReply, Refusal, Reported, read};
use crate::machine::state_hash::hash_tables;
use crate::registry::IfMatch;

/// Rows after each batch. As in [`super::golden`], it may be recorded anew only when the history itself was changed.
const GOLDEN: &str = "d4dc12989b47ecb7";

const CLIENTS: [&str; 6] = ["a", "a/m", "a/n", "b", "b/m", "c"];

struct History {
    random: Random,
    whole: Replica,
    restarted: Replica,
    /// Who thinks that it is connected, under which number.
    connections: BTreeMap<&'static str, u64>,
    next_connection: u64,
    /// Etags that a conditional write was accepted with, by generation.
    used: BTreeSet<(u64, u64)>,
    /// All etags of identities there have been.
    identity_etags: BTreeSet<u64>,
    accepted: u64,
    refused: BTreeSet<String>,
    hash: Sha256,
}

impl History {
    fn new(seed: u64) -> History {
        History {
            random: Random(seed),
            whole: Replica::new(),
            restarted: Replica::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            used: BTreeSet::new(),
            identity_etags: BTreeSet::new(),
            accepted: 0,
            refused: BTreeSet::new(),
            hash: Sha256::new(),
        }
    }

    fn client(&mut self) -> &'static str {
        self.random.of(&CLIENTS)
    }

    fn identity_if_match(&mut self, client_id: &str) -> IfMatch {
        let etag = self.identity(client_id).map_or(0, |identity| identity.etag);
        match self.random.below(6) {
            0 | 1 => IfMatch::Absent,
            2 => IfMatch::Any,
            3 => IfMatch::OneOf(vec![etag]),
            4 => IfMatch::OneOf(vec![etag + 1, etag]),
            _ => IfMatch::OneOf(vec![etag.saturating_sub(1)]),
        }
    }

    fn identity(&self, client_id: &str) -> Option<crate::base::proto::state::Identity> {
        read::identity(self.whole.backing(), &id(client_id))
    }

    fn json(&mut self, depth: u64, nulls: bool) -> Json {
        let mut members = serde_json::Map::new();
        for _ in 0..self.random.below(4) {
            let key = self.random.of(&["x", "y", "z"]).to_owned();
            let value = match self.random.below(7) {
                0 if nulls => Json::Null,
                1 | 2 if depth < 3 => self.json(depth + 1, nulls),
                3 => json!([1, {"k": "v"}]),
                4 => json!("text"),
                // Now and then too large.
                5 if self.random.percent(10) => json!(vec!["t".repeat(4000); 9]),
                _ => self.random.below(100).into(),
            };
            members.insert(key, value);
        }
        Json::Object(members)
    }

    fn connection(&self, client_id: &str) -> u64 {
        self.connections.get(client_id).copied().unwrap_or(999)
    }

    fn command(&mut self) -> Kind {
        let client_id = self.client();
        match self.random.below(100) {
            0..14 => {
                let keys = [self.random.below(3) as u8, 9];
                let fields = command::IdentityFields {
                    disabled: self.random.percent(10) && !client_id.contains('/'),
                    ..with_keys(keys)
                };
                let if_match = self.identity_if_match(client_id);
                put(client_id, if_match, fields)
            }
            14..18 => {
                let if_match = self.identity_if_match(client_id);
                delete(client_id, if_match)
            }
            18..50 => self.update(client_id),
            50..75 => self.report(client_id),
            75..88 => self.open(client_id),
            88..94 => observe(client_id, self.connection(client_id)),
            _ => close(client_id, self.connection(client_id)),
        }
    }

    fn update(&mut self, client_id: &str) -> Kind {
        let twin = self.whole.read_twin(client_id);
        let etag = twin.map_or(0, |twin| twin.head.etag);
        let if_match = match self.random.below(4) {
            0 => IfMatch::Absent,
            1 => IfMatch::OneOf(vec![etag + 1]),
            _ => IfMatch::OneOf(vec![etag]),
        };
        let replace = self.random.percent(30);
        let mut body = json!({"properties": {}});
        if self.random.percent(60) {
            body["tags"] = self.json(0, !replace);
        }
        if self.random.percent(60) {
            body["properties"]["desired"] = self.json(0, !replace);
        }
        update(client_id, if_match, replace, &body)
    }

    fn report(&mut self, client_id: &str) -> Kind {
        let connection = self.connection(client_id);
        let body = self.json(0, true);
        Kind::PatchReported(command::PatchReported {
            fingerprint: vec![self.random.below(4) as u8; 16].into(),
            dup: self.random.percent(30),
            remember: self.random.percent(50),
            expected_version: self.random.percent(20).then(|| self.random.below(9)),
            ..report(client_id, connection, &body)
        })
    }

    fn open(&mut self, client_id: &'static str) -> Kind {
        self.next_connection += 1;
        let connection = self.next_connection;
        self.connections.insert(client_id, connection);
        let identity = self.identity(client_id);
        let generation = identity.map_or(0, |identity| identity.generation);
        let key = self.random.below(4) as u8;
        Kind::OpenSession(match self.random.percent(10) {
            true => open(client_id, connection),
            false => hub_open(client_id, connection, generation, key),
        })
    }

    /// Now and then time passes, and what is due happens.
    fn pass(&mut self) {
        if self.random.percent(10) {
            let ms = self.random.of(&[1, 500, 30_000]);
            let outputs = self.whole.pass(ms);
            let others = self.restarted.pass(ms);
            assert_eq!(format!("{outputs:?}"), format!("{others:?}"));
        }
    }

    /// Both replicas apply the same; what the one that kept its memory asks of the outside.
    fn apply(&mut self, kind: Kind) -> Reply {
        if self.random.percent(5) {
            self.restarted.restart();
        }
        let outputs = self.whole.run(vec![kind.clone()]);
        let others = self.restarted.run(vec![kind]);
        assert_eq!(format!("{outputs:?}"), format!("{others:?}"));
        assert_eq!(self.whole.stored, self.restarted.stored);
        assert_eq!(
            hash_tables(&self.whole.stored, &mut |_| true),
            hash_tables(&self.restarted.stored, &mut |_| true)
        );
        for (key, row) in &self.whole.stored {
            for bytes in [key, row] {
                self.hash.update((bytes.len() as u64).to_be_bytes());
                self.hash.update(bytes);
            }
        }
        let reply = outputs.into_iter().find_map(|output| match output {
            Output::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        reply.expect("one reply")
    }

    /// Generation and versions of every twin there is.
    fn versions(&self) -> BTreeMap<&'static str, (u64, [u64; 4])> {
        let there = CLIENTS.iter().filter_map(|client_id| {
            let generation = self.identity(client_id)?.generation;
            Some((*client_id, (generation, self.whole.versions(client_id))))
        });
        there.collect()
    }

    fn step(&mut self) {
        self.pass();
        let kind = self.command();
        let before = (self.versions(), self.whole.without_meta());
        let reply = self.apply(kind.clone());
        let after = self.versions();
        let was_refused = matches!(
            reply,
            Reply::NotOwner | Reply::NotAuthorized | Reply::Hub(HubReply::Refused(_))
        );
        if was_refused && !matches!(kind, Kind::OpenSession(_)) {
            let timers = |rows: &[(Vec<u8>, Vec<u8>)]| -> Vec<(Vec<u8>, Vec<u8>)> {
                let rows = rows
                    .iter()
                    .filter(|(key, _)| key[0] < 0x20 || key[0] >= 0x40);
                rows.cloned().collect()
            };
            assert_eq!(
                timers(&before.1),
                timers(&self.whole.without_meta()),
                "{kind:?}"
            );
        }
        self.check(&kind, &reply, &before.0, &after);
        assert_eq!(self.whole.machine.twin_bytes(), self.section_bytes());
    }

    /// Bytes of all sections there are.
    fn section_bytes(&self) -> u64 {
        let twins = CLIENTS.iter().filter_map(|id| self.whole.read_twin(id));
        let bytes = twins.map(|twin| {
            let sections = [twin.tags, twin.desired, twin.reported];
            let bytes = sections.map(|section| section.0.len() as u64);
            bytes.into_iter().sum::<u64>()
        });
        bytes.sum()
    }

    /// How a command may move the versions.
    fn check(
        &mut self,
        kind: &Kind,
        reply: &Reply,
        before: &BTreeMap<&'static str, (u64, [u64; 4])>,
        after: &BTreeMap<&'static str, (u64, [u64; 4])>,
    ) {
        let (written, moved) = match (kind, reply) {
            (Kind::UpdateTwin(update), Reply::Hub(HubReply::Twin(twin))) => {
                let (tags, desired) = (update.tags.is_some(), update.desired.is_some());
                let any = u64::from(tags || desired);
                if let (1, IfMatch::OneOf(etags)) =
                    (any, IfMatch::of_command(update.if_match.clone()))
                {
                    let used = (twin.identity.generation, etags[0]);
                    assert!(self.used.insert(used), "one etag, one write: {used:?}");
                }
                (twin.id.to_string(), [any, any, desired.into(), 0])
            }
            (
                Kind::PatchReported(patch),
                Reply::Hub(HubReply::Reported(Reported::Patched(version))),
            ) => {
                let client_id = patch.client_id.as_str();
                let is_new =
                    before[client_id].1[3] + 1 == *version && after[client_id].1[3] == *version;
                assert!(is_new || patch.dup && *version <= before[client_id].1[3]);
                let moved = u64::from(is_new);
                (client_id.to_owned(), [moved, 0, 0, moved])
            }
            (Kind::PutIdentity(_), Reply::Hub(HubReply::Identity(identity))) => {
                let etag = identity.identity.etag;
                assert!(self.identity_etags.insert(etag), "{etag} is used again");
                (String::new(), [0; 4])
            }
            (_, Reply::Hub(HubReply::Refused(refusal))) => {
                let name = format!("{refusal:?}");
                let name = name.split('(').next().unwrap_or_default();
                self.refused.insert(name.to_owned());
                (String::new(), [0; 4])
            }
            _ => (String::new(), [0; 4]),
        };
        self.accepted += moved[0];
        for (client_id, (generation, now)) in after {
            match before.get(client_id) {
                Some((former, was)) if former == generation => {
                    let expected = match *client_id == written {
                        true => std::array::from_fn(|at| was[at] + moved[at]),
                        false => *was,
                    };
                    assert_eq!(*now, expected, "{client_id} after {kind:?}");
                }
                _ => assert_eq!(*now, [2, 1, 1, 1], "{client_id} is new"),
            }
        }
        let is_delete = matches!(reply, Reply::Hub(HubReply::Deleted));
        let lost = before
            .keys()
            .filter(|client_id| !after.contains_key(*client_id));
        assert!(is_delete || lost.count() == 0);
    }
}

#[test]
fn versions_never_skip_or_repeat_and_replicas_agree() {
    let mut refused = BTreeSet::new();
    for seed in 0..4 {
        let mut history = History::new(seed);
        for _ in 0..2_000 {
            history.step();
        }
        assert!(history.accepted > 100, "{}", history.accepted);
        assert!(history.used.len() > 50);
        refused.append(&mut history.refused);
        let twins = CLIENTS
            .iter()
            .filter(|client_id| history.identity(client_id).is_some());
        let (devices, modules) = history.whole.machine.identities();
        assert_eq!(devices + modules, twins.count() as u64);
    }
    let all = ["Exists", "NoDevice", "NoModule", "Precondition", "TooLarge"];
    assert!(
        all.iter().all(|name| refused.contains(*name)),
        "{refused:?}"
    );
}

#[test]
fn rows_on_disk_are_what_they_were() {
    let mut history = History::new(77);
    for _ in 0..600 {
        history.step();
    }
    let found = history.hash.finalize();
    let found: String = found[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(found, GOLDEN);
}

/// N loops of read, modify and write count to N, whatever order their commands come in.
#[test]
fn loops_of_read_modify_write_lose_nothing() {
    let mut replica = Replica::new();
    replica.identity(super::hub::create("a"));
    let mut random = Random(5);
    let mut read: Vec<Option<(u64, u64)>> = vec![None; 8];
    let mut counted = 0;
    while counted < 200 {
        let at = random.below(8) as usize;
        let twin = replica.read_twin("a").expect("a twin");
        let Some((etag, value)) = read[at].take() else {
            let found = twin.find(&["tags", "n"]).expect("sections");
            let value = match found {
                Some(crate::twin::Found::Integer(value)) => value as u64,
                _ => 0,
            };
            read[at] = Some((twin.head.etag, value));
            continue;
        };
        let write = update(
            "a",
            IfMatch::OneOf(vec![etag]),
            false,
            &json!({"tags": {"n": value + 1}}),
        );
        match replica.hub(write) {
            HubReply::Twin(_) => counted += 1,
            refused => assert_eq!(refused, HubReply::Refused(Refusal::Precondition)),
        }
    }
    let twin = replica.read_twin("a").expect("a twin");
    let found = twin.find(&["tags", "n"]).expect("sections");
    assert_eq!(found, Some(crate::twin::Found::Integer(200)));
}

/// What no node proposes comes out of the log all the same: nothing panics, and both replicas do the same.
#[test]
fn damaged_commands_do_no_harm() {
    let mut history = History::new(3);
    for _ in 0..200 {
        history.step();
    }
    for _ in 0..4_000 {
        let kind = history.command();
        let command = command::Command { kind: Some(kind) };
        let mut bytes = command.encode_to_vec();
        for _ in 0..=history.random.below(3) {
            let at = history.random.below(bytes.len() as u64) as usize;
            bytes[at] = history.random.next() as u8;
        }
        let Ok(command::Command { kind: Some(kind) }) = command::Command::decode(&bytes[..]) else {
            continue;
        };
        let is_of_the_hub = matches!(
            kind,
            Kind::PutIdentity(_)
                | Kind::DeleteIdentity(_)
                | Kind::UpdateTwin(_)
                | Kind::PatchReported(_)
                | Kind::OpenSession(_)
        );
        if is_of_the_hub {
            history.apply(kind);
        }
    }
}
