//! Events of identities and twins: clients that are made, changed and deleted, and what back ends are told.

use serde_json::{Value, json};

use super::events::{opened_session, outbox, recording, set_events, words};
use super::events_subscriptions::{options, put};
use super::{Replica, close};
use crate::base::proto::command::{self, command::Kind};
use crate::base::proto::state;
use crate::events::Kind as EventKind;
use crate::events::kind::event_type;
use crate::machine::effect::Reply;
use crate::machine::hub::HubReply;
use crate::registry::IfMatch;
use crate::twin::encoding::encode_patch;
use crate::twin::{Members, Patch, Value as TwinValue};

fn put_identity(device: &str, module: &str, if_match: IfMatch, disabled: bool) -> Kind {
    Kind::PutIdentity(command::PutIdentity {
        device: device.to_owned(),
        module: module.to_owned(),
        if_match: Some(if_match.into_command()),
        fields: Some(command::IdentityFields {
            disabled,
            authentication: 1,
            ..Default::default()
        }),
        max_devices: 0,
    })
}

fn delete_identity(device: &str) -> Kind {
    Kind::DeleteIdentity(command::DeleteIdentity {
        device: device.to_owned(),
        module: String::new(),
        if_match: Some(IfMatch::Any.into_command()),
    })
}

fn update(replace: bool, tag: Option<i64>) -> Kind {
    let change = match tag {
        Some(tag) => Patch::Leaf(TwinValue::Integer(tag)),
        None => Patch::Delete,
    };
    let patch = Members::from([("site".to_owned(), change)]);
    Kind::UpdateTwin(command::UpdateTwin {
        device: "devA".to_owned(),
        module: String::new(),
        if_match: None,
        replace,
        tags: Some(encode_patch(&patch)),
        desired: Some(encode_patch(&patch)),
    })
}

/// The events of the outbox that are not the hub's.
fn of_clients(replica: &Replica) -> Vec<state::Event> {
    let all = outbox(replica).into_iter().map(|(_, event)| event);
    all.filter(|event| EventKind::of(event) != Some(EventKind::Hub))
        .collect()
}

fn told_of_clients(replica: &Replica) -> Vec<String> {
    of_clients(replica).iter().map(words).collect()
}

impl Replica {
    fn accepts(&mut self, kind: Kind) {
        let reply = self.reply(kind);
        let is_refused = matches!(reply, Reply::Hub(HubReply::Refused(_)));
        assert!(!is_refused, "{reply:?}");
    }
}

/// Both examples of the specification, with the machine's own timers and restarts within the window.
#[test]
fn changes_of_an_identity_are_one_event_with_the_final_state() {
    let mut replica = recording();
    let made = replica.now;
    replica.accepts(put_identity("devA", "", IfMatch::Absent, false));
    for disabled in [true, true] {
        replica.now += 1_500;
        replica.restart();
        replica.accepts(put_identity("devA", "", IfMatch::Any, disabled));
    }
    replica.pass(2_999);
    replica.settle();
    // Settling takes a millisecond for each step.
    replica.now = made + 6_000;
    replica.settle();
    assert_eq!(told_of_clients(&replica), ["devA ClientUpdated"]);
    let event = &of_clients(&replica)[0];
    assert_eq!((event.created_ms, event.updated_ms), (made, made + 3_000));
    assert!(event.disabled);
    // Made and deleted within five seconds.
    replica.accepts(put_identity("devB", "", IfMatch::Absent, false));
    replica.now += 5_000;
    replica.restart();
    replica.accepts(delete_identity("devB"));
    replica.pass(2_000);
    replica.settle();
    assert_eq!(
        told_of_clients(&replica),
        ["devA ClientUpdated", "devB ClientDeleted"]
    );
}

#[test]
fn a_deleted_device_is_an_event_for_it_and_for_each_module() {
    let mut replica = recording();
    replica.accepts(put_identity("devA", "", IfMatch::Absent, true));
    for module in ["m1", "m2"] {
        replica.accepts(put_identity("devA", module, IfMatch::Absent, false));
    }
    replica.pass(7_000);
    replica.settle();
    let all = of_clients(&replica);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|event| event.disabled), "as the device is");
    replica.accepts(delete_identity("devA"));
    replica.pass(7_000);
    replica.settle();
    assert_eq!(
        told_of_clients(&replica)[3..],
        [
            "devA ClientDeleted",
            "devA/m1 ClientDeleted",
            "devA/m2 ClientDeleted"
        ]
    );
}

/// Who keeps a list of clients from their events learns of modules that are disabled and enabled with their device.
#[test]
fn a_device_that_is_disabled_or_enabled_is_an_event_for_it_and_for_each_module() {
    let mut replica = recording();
    replica.accepts(put_identity("devA", "", IfMatch::Absent, false));
    replica.accepts(put_identity("devA", "m1", IfMatch::Absent, false));
    replica.pass(7_000);
    replica.settle();
    let mut known = of_clients(&replica).len();
    assert_eq!(known, 2);
    for disabled in [true, false] {
        let changed = replica.now;
        replica.accepts(put_identity("devA", "", IfMatch::Any, disabled));
        replica.pass(7_000);
        replica.settle();
        let all = of_clients(&replica);
        let names: Vec<String> = all[known..].iter().map(words).collect();
        assert_eq!(names, ["devA ClientUpdated", "devA/m1 ClientUpdated"]);
        for event in &all[known..] {
            assert_eq!((event.disabled, event.updated_ms), (disabled, changed));
            assert!(event.created_ms < changed);
        }
        known = all.len();
    }
    // What leaves the status as it is, is about the device alone.
    replica.accepts(put_identity("devA", "", IfMatch::Any, false));
    replica.pass(7_000);
    replica.settle();
    assert_eq!(of_clients(&replica).len(), known + 1);
}

#[test]
fn an_identity_that_is_made_ends_the_ordinary_session_of_its_name() {
    let mut replica = recording();
    replica.run(vec![opened_session("devA", 1)]);
    replica.accepts(put_identity("devA", "", IfMatch::Absent, false));
    assert_eq!(
        told_of_clients(&replica),
        ["devA +1", "devA -1 ClientAuthenticationError"]
    );
    assert!(matches!(replica.reply(close("devA", 1)), Reply::NotOwner));
}

#[test]
fn back_ends_are_told_what_they_ask_for() {
    use prost::Message as _;
    let mut replica = Replica::new();
    replica.run(vec![
        set_events(|settings| settings.hub = "quorumq".to_owned()),
        Kind::PutEventSubscription(put("clients")),
    ]);
    replica.accepts(put_identity("devZ", "", IfMatch::Absent, false));
    assert!(outbox(&replica).is_empty(), "nobody asks for the hub's");
    let hub = command::PutEventSubscription {
        options: state::EventSubscriptionOptions {
            types: vec!["Quorumq.Hub.updateTwin".to_owned()],
            ..options()
        }
        .encode_to_vec()
        .into(),
        ..put("hub")
    };
    replica.run(vec![Kind::PutEventSubscription(hub)]);
    replica.accepts(put_identity("devA", "", IfMatch::Absent, false));
    replica.accepts(update(false, Some(1)));
    replica.accepts(update(true, Some(2)));
    replica.accepts(update(false, None));
    replica.accepts(delete_identity("devA"));
    let all = outbox(&replica);
    let types: Vec<&str> = all
        .iter()
        .filter_map(|(_, event)| event_type(event))
        .collect();
    assert_eq!(
        types,
        [
            "Quorumq.Hub.createDeviceIdentity",
            "Quorumq.Hub.updateTwin",
            "Quorumq.Hub.replaceTwin",
            "Quorumq.Hub.updateTwin",
            "Quorumq.Hub.deleteDeviceIdentity",
        ]
    );
    let bodies: Vec<Value> = all
        .iter()
        .map(|(_, event)| serde_json::from_slice(&event.data).expect("JSON"))
        .collect();
    assert_eq!(bodies[0]["etag"], "AAAAAAAAAAE=");
    assert_eq!(bodies[0]["version"], 2);
    assert_eq!(bodies[0]["properties"]["desired"]["$version"], 1);
    assert_eq!(bodies[1]["tags"], json!({"site": 1}));
    assert_eq!(bodies[1]["properties"]["desired"]["$version"], 2);
    assert!(bodies[1]["properties"].get("reported").is_none());
    assert_eq!(bodies[2]["tags"], json!({"site": 2}));
    assert_eq!(bodies[2]["deviceId"], "devA");
    assert_eq!(bodies[3]["properties"]["desired"]["site"], Value::Null);
    assert_eq!(bodies[4]["version"], bodies[3]["version"], "the last");
    assert!(all.iter().all(|(_, event)| event.hub == "quorumq"));
}
