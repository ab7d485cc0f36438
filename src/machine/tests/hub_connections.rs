//! Connections of identities: who is let in, who is ended, and what is heard.

use serde_json::json;

use super::hub::{create, delete, desired, id, patch, put, shown, told, update, with_keys};
use super::queues::message;
use super::{NODE, Replica, close, open, proposal, with_will};
use crate::base::ids::{Incarnation, NodeId};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{EndReason, Output, Reply};
use crate::machine::hub::{DESIRED_FILTER, HubReply, Refusal};
use crate::registry::IfMatch;
use crate::registry::fingerprint::Credential;
use crate::twin;

/// A CONNECT of an identity that has shown the key of these bytes.
pub(super) fn hub_open(
    client_id: &str,
    connection: u64,
    generation: u64,
    key: u8,
) -> command::OpenSession {
    command::OpenSession {
        generation,
        fingerprint: Credential::Key(&[key; 32]).fingerprint().to_vec().into(),
        expiry_interval_s: u32::MAX,
        ..open(client_id, connection)
    }
}

pub(super) fn observe(client_id: &str, connection: u64) -> Kind {
    Kind::Subscribe(command::Subscribe {
        client_id: client_id.to_owned(),
        connection,
        subscriptions: vec![command::Subscription {
            filter: DESIRED_FILTER.to_owned(),
            ..Default::default()
        }],
        ..Default::default()
    })
}

impl Replica {
    pub(super) fn is_admitted(&mut self, open: command::OpenSession) -> bool {
        match self.reply(Kind::OpenSession(open)) {
            Reply::Opened { .. } => true,
            Reply::NotAuthorized => false,
            other => panic!("{other:?}"),
        }
    }

    fn is_connected(&self, client_id: &str) -> bool {
        let twin = self.read_twin(client_id).expect("a twin");
        assert_eq!(
            shown(&twin)["connectionState"] == "Connected",
            twin.is_connected
        );
        twin.is_connected
    }
}

/// The connections that are ended because of their identity.
fn revoked(outputs: &[Output]) -> Vec<u64> {
    let ended = outputs.iter().filter_map(|output| match output {
        Output::End {
            connection,
            reason: EndReason::IdentityRevoked,
        } => Some(connection.0),
        _ => None,
    });
    ended.collect()
}

#[test]
fn an_identity_is_let_in_with_what_it_holds_now() {
    let mut replica = Replica::new();
    assert!(
        !replica.is_admitted(hub_open("d", 1, 1, 1)),
        "nobody is there"
    );
    replica.identity(create("d"));
    assert!(replica.is_admitted(hub_open("d", 1, 1, 1)));
    assert!(
        replica.is_admitted(hub_open("d", 2, 1, 2)),
        "by the other key"
    );
    assert!(
        !replica.is_admitted(hub_open("d", 3, 2, 1)),
        "another generation"
    );
    assert!(
        !replica.is_admitted(hub_open("d", 4, 1, 3)),
        "a key it has not"
    );
    assert!(
        !replica.is_admitted(hub_open("d/m", 5, 1, 1)),
        "no such module"
    );
    assert!(
        !replica.is_admitted(hub_open("d//m", 6, 1, 1)),
        "no id at all"
    );
    replica.identity(create("d/m"));
    assert!(replica.is_admitted(hub_open("d/m", 7, 2, 1)));
    replica.identity(put("d", IfMatch::Any, with_keys([2, 3])));
    assert!(
        !replica.is_admitted(hub_open("d", 8, 1, 1)),
        "the key has changed"
    );
    assert!(replica.is_admitted(hub_open("d", 9, 1, 3)));
    replica.hub(delete("d", IfMatch::Any));
    assert!(!replica.is_admitted(hub_open("d", 10, 1, 3)));
    replica.identity(put("d", IfMatch::Absent, with_keys([2, 3])));
    assert!(
        !replica.is_admitted(hub_open("d", 11, 1, 3)),
        "it is another identity"
    );
    assert!(replica.is_admitted(hub_open("d", 12, 3, 3)));
}

#[test]
fn ordinary_clients_keep_away_from_the_ids_of_identities() {
    let mut replica = Replica::new();
    replica.present(open("d", 1));
    replica.present(open("e", 2));
    let outputs = replica.run(vec![create("d")]);
    assert_eq!(revoked(&outputs), [1], "its connection ends");
    assert!(!replica.is_admitted(open("d", 3)));
    assert!(replica.is_admitted(open("d/m", 4)), "no identity yet");
    let outputs = replica.run(vec![create("d/m")]);
    assert_eq!(revoked(&outputs), [4]);
    assert!(!replica.is_admitted(open("d/m", 5)));
    assert!(replica.is_admitted(open("e", 6)));
    assert!(
        !replica.present(hub_open("d", 7, 1, 1)),
        "nothing of the ordinary session"
    );
    replica.hub(delete("d", IfMatch::Any));
    assert!(!replica.present(open("d", 8)), "nor of the identity's");
}

#[test]
fn a_disabled_device_and_its_modules_are_ended_and_keep_their_sessions() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m"), create("d/n"), create("e")]);
    replica.run(vec![
        Kind::OpenSession(hub_open("d", 1, 1, 1)),
        Kind::OpenSession(hub_open("d/m", 2, 2, 1)),
        Kind::OpenSession(hub_open("d/n", 3, 3, 1)),
        Kind::OpenSession(hub_open("e", 4, 4, 1)),
    ]);
    replica.run(vec![close("d/n", 3)]);
    let disabled = command::IdentityFields {
        disabled: true,
        ..with_keys([1, 2])
    };
    let outputs = replica.run(vec![put("d", IfMatch::Any, disabled.clone())]);
    assert_eq!(revoked(&outputs), [1, 2]);
    assert!(!replica.is_connected("d") && !replica.is_connected("d/m"));
    assert!(replica.is_connected("e"));
    assert!(!replica.is_admitted(hub_open("d", 5, 1, 1)));
    assert!(!replica.is_admitted(hub_open("d/m", 6, 2, 1)));
    // The API goes on.
    replica.twin(desired("d/m", json!({"a": 1})));
    replica.identity(create("d/o"));
    assert!(!replica.is_admitted(hub_open("d/o", 7, 5, 1)));
    let outputs = replica.run(vec![put("d", IfMatch::Any, with_keys([1, 2]))]);
    assert_eq!(revoked(&outputs).len(), 0);
    assert!(
        replica.present(hub_open("d", 8, 1, 1)),
        "the session is there"
    );
    assert!(replica.present(hub_open("d/m", 9, 2, 1)));
}

#[test]
fn a_connection_ends_with_the_credential_it_was_opened_with() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m")]);
    replica.run(vec![
        Kind::OpenSession(hub_open("d", 1, 1, 1)),
        Kind::OpenSession(hub_open("d/m", 2, 2, 1)),
    ]);
    for (keys, ended) in [
        ([1, 2], vec![]),
        ([2, 1], vec![]),
        ([9, 1], vec![]),
        ([9, 8], vec![1]),
        ([7, 6], vec![]),
    ] {
        let outputs = replica.run(vec![put("d", IfMatch::Any, with_keys(keys))]);
        assert_eq!(revoked(&outputs), ended, "{keys:?}");
    }
    assert!(replica.is_connected("d/m"), "a module has keys of its own");
    // A policy's token goes with the keys' way of proof.
    let policy = command::OpenSession {
        fingerprint: Credential::Policy.fingerprint().to_vec().into(),
        ..hub_open("d", 3, 1, 0)
    };
    assert!(replica.is_admitted(policy));
    let outputs = replica.run(vec![put("d", IfMatch::Any, with_keys([5, 4]))]);
    assert_eq!(revoked(&outputs).len(), 0);
    let authority = command::IdentityFields {
        authentication: 3,
        ..Default::default()
    };
    let outputs = replica.run(vec![put("d", IfMatch::Any, authority)]);
    assert_eq!(revoked(&outputs), [3]);
}

#[test]
fn deleting_ends_connections_and_sessions_of_all() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m"), create("d/n")]);
    replica.run(vec![
        Kind::OpenSession(hub_open("d", 1, 1, 1)),
        Kind::OpenSession(hub_open("d/m", 2, 2, 1)),
        observe("d/m", 2),
        Kind::OpenSession(hub_open("d/n", 3, 3, 1)),
        close("d/n", 3),
    ]);
    let outputs = replica.run(vec![delete("d/m", IfMatch::Any)]);
    assert_eq!(revoked(&outputs), [2]);
    let outputs = replica.run(vec![delete("d", IfMatch::Any)]);
    assert_eq!(revoked(&outputs), [1]);
    replica.settle();
    let left: Vec<_> = replica.stored.keys().filter(|key| key[0] >= 0x10).collect();
    assert_eq!(left.len(), 0, "{left:?}");
}

#[test]
fn presence_follows_the_session() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    let modelled = command::OpenSession {
        model_id: Some("dtmi:a;1".to_owned()),
        ..hub_open("d", 1, 1, 1)
    };
    replica.now += 5;
    replica.present(modelled);
    let connected = replica.now;
    assert!(replica.is_connected("d"));
    replica.now += 5;
    replica.run(vec![close("d", 1)]);
    assert!(!replica.is_connected("d"));
    let twin = replica.read_twin("d").expect("a twin");
    assert_eq!(twin.activity.connection_ms, replica.now);
    assert_eq!(twin.activity.model_id, "dtmi:a;1");
    assert!(twin.presence().expect("sections").active.0 > connected);
    // Neither moves what counts writes.
    assert_eq!(replica.versions("d"), [2, 1, 1, 1]);
    replica.present(hub_open("d", 2, 1, 1));
    let model = replica.read_twin("d").expect("a twin").activity.model_id;
    assert_eq!(model, "dtmi:a;1", "the last that was announced");
    replica.now += 5;
    let down = proposal(
        crate::base::ids::CLUSTER,
        Incarnation(0),
        0,
        vec![Kind::NodeDown(command::NodeDown {
            node: NODE.0,
            incarnation: super::INCARNATION.0,
        })],
    );
    replica.apply(vec![down]);
    assert!(!replica.is_connected("d"));
}

#[test]
fn the_owner_hears_of_desired_properties_and_of_nothing_else() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m"), create("d/n")]);
    replica.present(hub_open("d", 1, 1, 1));
    replica.present(hub_open("d/m", 2, 2, 1));
    replica.present(hub_open("d/n", 3, 3, 1));
    let write = |replica: &mut Replica, kind| {
        let outputs = replica.run(vec![kind]);
        let told = told(&outputs);
        let told = told
            .iter()
            .map(|told| (told.connection.0, told.version, told.body.clone()));
        told.collect::<Vec<_>>()
    };
    let first = || desired("d/m", json!({"a": {"x": 1, "y": null}}));
    assert_eq!(write(&mut replica, first()), [], "nobody observes");
    replica.run(vec![observe("d/m", 2), observe("d/n", 3), observe("d", 1)]);
    let body = r#"{"a":{"x":1,"y":null},"$version":3}"#.to_owned();
    assert_eq!(write(&mut replica, first()), [(2, 3, body)]);
    let tags = patch("d/m", &json!({"tags": {"t": 1}}));
    assert_eq!(write(&mut replica, tags), []);
    let replace = update(
        "d/m",
        IfMatch::Absent,
        true,
        &json!({"properties": {"desired": {"a": {"z": 2}}}}),
    );
    let body = r#"{"a":{"x":null,"z":2},"$version":4}"#.to_owned();
    assert_eq!(write(&mut replica, replace), [(2, 4, body)]);
    let refused = update(
        "d/m",
        IfMatch::OneOf(vec![1]),
        false,
        &json!({"properties": {"desired": {}}}),
    );
    assert_eq!(write(&mut replica, refused), []);
    // After a restart the rows say who observes.
    replica.restart();
    let body = r#"{"b":1,"$version":5}"#.to_owned();
    assert_eq!(
        write(&mut replica, desired("d/m", json!({"b": 1}))),
        [(2, 5, body)]
    );
    replica.run(vec![close("d/m", 2)]);
    assert_eq!(write(&mut replica, desired("d/m", json!({"b": 2}))), []);
    replica.present(hub_open("d/m", 4, 2, 1));
    let body = r#"{"b":3,"$version":7}"#.to_owned();
    let outputs = write(&mut replica, desired("d/m", json!({"b": 3})));
    assert_eq!(outputs, [(4, 7, body)], "the subscription is the session's");
    assert_eq!(id("d/m").module_id(), Some("m"));
}

#[test]
fn another_nodes_client_is_told_there() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    let kinds = vec![Kind::OpenSession(hub_open("d", 1, 1, 1)), observe("d", 1)];
    replica.apply(vec![proposal(NodeId(2), Incarnation(3), 1, kinds)]);
    let outputs = replica.run(vec![desired("d", json!({"a": 1}))]);
    assert_eq!(told(&outputs).len(), 0);
    assert_eq!(replica.versions("d"), [3, 2, 2, 1]);
}

#[test]
fn several_notifications_become_one() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    replica.run(vec![observe("d", 1)]);
    let outputs = replica.run(vec![
        desired("d", json!({"a": 1, "b": {"c": 1}})),
        desired("d", json!({"a": null, "d": 2})),
        desired("d", json!({"b": {"c": null}})),
    ]);
    let told = told(&outputs);
    let versions: Vec<_> = told.iter().map(|told| told.version).collect();
    assert_eq!(versions, [2, 3, 4]);
    assert!(told.windows(2).all(|two| two[0].after == two[1].before));
    let folded = twin::folded(&told[0].before, &told[2].after).expect("sections");
    assert_eq!(folded, r#"{"b":{},"d":2,"$version":4}"#);
    let folded = twin::folded(&told[1].before, &told[2].after).expect("sections");
    assert_eq!(folded, r#"{"a":null,"b":{"c":null},"d":2,"$version":4}"#);
}

#[test]
fn a_refusal_of_a_busy_entry_changes_nothing() {
    let mut replica = Replica::new();
    replica.run(vec![create("d"), create("d/m")]);
    replica.present(hub_open("d/m", 1, 2, 1));
    replica.machine.shared.hub_operations = 1;
    assert_eq!(replica.refused(delete("d", IfMatch::Any)), Refusal::Busy);
    let disabled = command::IdentityFields {
        disabled: true,
        ..with_keys([1, 2])
    };
    assert_eq!(
        replica.refused(put("d", IfMatch::Any, disabled.clone())),
        Refusal::Busy
    );
    // Publications may have done as much as an entry may: who is to be kept out is kept out.
    replica.set_budget(crate::machine::batch::Budget {
        row_operations: 0,
        ..replica.budget
    });
    replica.machine.shared.hub_operations = limits::HUB_OPERATIONS_AT_ONCE;
    replica.identity(put("d", IfMatch::Any, disabled));
    assert!(!replica.is_connected("d/m"));
    assert_eq!(replica.hub(delete("d", IfMatch::Any)), HubReply::Deleted);
}

/// How often the will of a client is published in these outputs.
fn wills(outputs: &[Output]) -> usize {
    let is_will = |output: &&Output| matches!(output, Output::Publish { message, .. } if message.topic == "will");
    outputs.iter().filter(is_will).count()
}

/// Neither at once nor after its delay: a thief of a key has no last word in the name of its device.
#[test]
fn whoever_is_revoked_leaves_no_will() {
    let disabled = || command::IdentityFields {
        disabled: true,
        ..with_keys([1, 2])
    };
    let revocations: [&dyn Fn() -> Kind; 4] = [
        &|| put("d", IfMatch::Any, disabled()),
        &|| put("d", IfMatch::Any, with_keys([8, 9])),
        &|| delete("d", IfMatch::Any),
        &|| delete("d/m", IfMatch::Any),
    ];
    for (number, revoke) in revocations.into_iter().enumerate() {
        let client_id = if number == 3 { "d/m" } else { "d" };
        for (delay_s, is_closed) in [(0, false), (60, false), (60, true)] {
            let mut replica = Replica::new();
            replica.watch_wills();
            replica.run(vec![create("d"), create("d/m")]);
            let generation = if number == 3 { 2 } else { 1 };
            let open = hub_open(client_id, 1, generation, 1);
            replica.present(with_will(open, delay_s));
            if is_closed {
                assert_eq!(wills(&replica.run(vec![close(client_id, 1)])), 0);
            }
            let mut outputs = replica.run(vec![revoke()]);
            outputs.extend(replica.pass(120_000));
            outputs.extend(replica.settle());
            assert_eq!(wills(&outputs), 0, "{number} {delay_s} {is_closed}");
        }
    }
    // Whoever is not revoked has one.
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.run(vec![create("d")]);
    replica.present(with_will(hub_open("d", 1, 1, 1), 0));
    let outputs = replica.run(vec![put("d", IfMatch::Any, with_keys([1, 2]))]);
    assert_eq!(wills(&outputs), 0, "its key is there");
    assert_eq!(wills(&replica.run(vec![close("d", 1)])), 1);
}

/// A node that knows of no hub lets its clients publish everywhere; the log does not.
#[test]
fn nothing_is_published_below_the_topics_of_the_hub() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.run(vec![
        Kind::OpenSession(hub_open("d", 1, 1, 1)),
        observe("d", 1),
    ]);
    replica.present(open("x", 2));
    let forged = "$iothub/twin/PATCH/properties/desired/?$version=99";
    for retain in [false, true] {
        let message = command::PublishedMessage {
            retain,
            ..message(forged, 1, "{}")
        };
        let publish = command::Publish {
            connection: 2,
            message: Some(message),
            max_retained: 1_000,
            ..Default::default()
        };
        let before = replica.without_meta();
        let outputs = replica.run(vec![Kind::Publish(publish)]);
        let is_answer = |output: &Output| {
            matches!(
                output,
                Output::Reply { .. } | Output::ProposalApplied { .. }
            )
        };
        assert!(outputs.iter().all(is_answer), "{outputs:?}");
        assert_eq!(before, replica.without_meta());
    }
}

/// Modules are found by one row of each, whatever their ids look like.
#[test]
fn the_modules_of_a_device_are_found_and_no_others() {
    let mut replica = Replica::new();
    let modules = ["d/a", "d/a!", "d/aa", "d/b"];
    let others = ["d!/a", "d0/a", "c/z"];
    replica.run(["d", "d!", "d0", "c"].into_iter().map(create).collect());
    replica.run(modules.into_iter().chain(others).map(create).collect());
    replica.twin(desired("d/a", json!({"a": 1})));
    let opens = (1..).zip(modules.into_iter().chain(others));
    let opens = opens.map(|(number, id)| Kind::OpenSession(hub_open(id, number, number + 4, 1)));
    replica.run(opens.collect());
    let disabled = command::IdentityFields {
        disabled: true,
        ..with_keys([1, 2])
    };
    let outputs = replica.run(vec![put("d", IfMatch::Any, disabled)]);
    assert_eq!(revoked(&outputs), [1, 2, 3, 4]);
}
