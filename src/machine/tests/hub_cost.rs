//! The commands of the hub at their worst do no more than a fixed number of row operations in one batch.

use serde_json::json;

use super::Replica;
use super::cost::{MANY, TOGETHER};
use super::events::{opened_session, outbox, set_events};
use super::hub::{create, delete, put, report, update, with_keys};
use super::hub_connections::{hub_open, observe};
use super::queues::{message, rows, subscribe};
use crate::base::limits;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::hub::{HubReply, Refusal};
use crate::machine::schema;
use crate::registry::IfMatch;

/// Devices with as many modules as there may be, all connected, each with subscriptions and messages that wait.
const DEVICES: usize = 12;

fn client_ids() -> impl Iterator<Item = String> {
    let modules = |device: usize| {
        let module = move |module| format!("d{device}/m{module:02}");
        std::iter::once(format!("d{device}")).chain((0..limits::MODULES_PER_DEVICE).map(module))
    };
    (0..DEVICES).flat_map(modules)
}

fn replica() -> Replica {
    let mut replica = Replica::new();
    for (number, client_id) in (1..).zip(client_ids()) {
        let mut kinds = vec![
            create(&client_id),
            Kind::OpenSession(command::OpenSession {
                bounds: Some(super::queues::BOUNDS),
                receive_maximum: 3,
                ..hub_open(&client_id, number, number, 1)
            }),
            observe(&client_id, number),
        ];
        let filters =
            (0..6).map(|filter| subscribe(&client_id, number, &format!("{client_id}/{filter}"), 1));
        kinds.extend(filters);
        kinds.extend((0..6).map(|filter| {
            Kind::Publish(command::Publish {
                message: Some(message(&format!("{client_id}/{filter}"), 1, "x")),
                ..Default::default()
            })
        }));
        let tags = json!({"tags": {"a": 1}, "properties": {"desired": {"b": 1}}});
        kinds.push(update(&client_id, IfMatch::Absent, false, &tags));
        kinds.push(Kind::PatchReported(report(
            &client_id,
            number,
            &json!({"c": 1}),
        )));
        replica.run(kinds);
        replica.check_cost();
    }
    assert_eq!(rows::<schema::Session>(&replica), DEVICES * 51);
    replica
}

/// Carries out one command for each device in one batch, and those that are refused as busy in the next, and so on;
/// how many batches that takes.
fn run_until_none_is_busy(replica: &mut Replica, command: impl Fn(usize) -> Kind) -> usize {
    let mut left: Vec<usize> = (0..DEVICES).collect();
    let mut batches = 0;
    while !left.is_empty() {
        let outputs = replica.run(left.iter().map(|device| command(*device)).collect());
        replica.check_cost();
        batches += 1;
        let replies = outputs.iter().filter_map(|output| match output {
            Output::Reply {
                reply: Reply::Hub(reply),
                ..
            } => Some(reply),
            _ => None,
        });
        let is_busy = replies.map(|reply| *reply == HubReply::Refused(Refusal::Busy));
        let is_busy: Vec<bool> = is_busy.collect();
        assert!(!is_busy[0], "the first of an entry has work for it");
        let mut is_busy = is_busy.into_iter();
        left.retain(|_| is_busy.next().expect("one reply per command"));
    }
    batches
}

#[test]
fn deleting_devices_with_all_their_modules_and_sessions() {
    let mut replica = replica();
    let batches = run_until_none_is_busy(&mut replica, |device| {
        delete(&format!("d{device}"), IfMatch::Any)
    });
    assert!(batches > 1, "they were too many for one");
    assert_eq!(rows::<schema::Session>(&replica), 0);
    assert_eq!(
        rows::<schema::Device>(&replica) + rows::<schema::Module>(&replica),
        0
    );
    replica.settle_cheaply();
    super::queues::assert_empty(&replica);
    assert_eq!(rows::<schema::Subscription>(&replica), 0);
}

#[test]
fn disabling_devices_whose_modules_are_all_connected() {
    let mut replica = replica();
    let disabled = || command::IdentityFields {
        disabled: true,
        ..with_keys([1, 2])
    };
    let batches = run_until_none_is_busy(&mut replica, |device| {
        put(&format!("d{device}"), IfMatch::Any, disabled())
    });
    assert!(batches > 1, "they were too many for one");
    assert_eq!(
        rows::<schema::Session>(&replica),
        DEVICES * 51,
        "sessions stay"
    );
    // Disabled already: nothing is left to be ended.
    replica.run(
        (0..DEVICES)
            .map(|device| put(&format!("d{device}"), IfMatch::Any, disabled()))
            .collect(),
    );
    replica.check_cost();
}

#[test]
fn many_small_commands_of_the_hub_together() {
    let mut replica = Replica::new();
    let creates = (0..MANY / 10).map(|device| create(&format!("d{device}")));
    let mut creates = creates.peekable();
    while creates.peek().is_some() {
        replica.run(creates.by_ref().take(TOGETHER).collect());
        replica.check_cost();
    }
    let of_each = |command: &dyn Fn(&str) -> Kind| -> Vec<Kind> {
        (0..TOGETHER)
            .map(|device| command(&format!("d{device}")))
            .collect()
    };
    let opens = (0..TOGETHER as u64).map(|device| {
        Kind::OpenSession(hub_open(&format!("d{device}"), device + 1, device + 1, 1))
    });
    replica.run(opens.collect());
    replica.check_cost();
    let body = json!({"tags": {"a": 1}, "properties": {"desired": {"b": 1}}});
    replica.run(of_each(&|id| update(id, IfMatch::Absent, true, &body)));
    replica.check_cost();
    let reports = (0..TOGETHER as u64).map(|device| {
        let patch = report(&format!("d{device}"), device + 1, &json!({"a": 1}));
        Kind::PatchReported(command::PatchReported {
            remember: true,
            fingerprint: vec![1; 16].into(),
            dup: true,
            ..patch
        })
    });
    replica.run(reports.collect());
    replica.check_cost();
    replica.run(of_each(&|id| put(id, IfMatch::Any, with_keys([3, 4]))));
    replica.check_cost();
    replica.run(of_each(&|id| delete(id, IfMatch::Any)));
    replica.check_cost();
    replica.settle_cheaply();
    assert_eq!(rows::<schema::Device>(&replica), 2 * (MANY / 10 - TOGETHER));
}

/// A body with as many members as a section may have, whose events are far longer than what is stored.
fn large() -> serde_json::Value {
    let members = (0..8_000).map(|key| (format!("{key:04x}"), json!({})));
    json!({"properties": {"desired": serde_json::Value::Object(members.collect())}})
}

/// What is done with large documents is bounded by their bytes: what an entry has no work left for comes in a later
/// one.
#[test]
fn small_writes_of_large_twins() {
    let mut replica = Replica::new();
    let devices: Vec<String> = (0..40).map(|device| format!("d{device}")).collect();
    replica.run(devices.iter().map(|device| create(device)).collect());
    let small = json!({"properties": {"desired": {"0000": {}}}});
    let (mut left, mut batches) = (devices.clone(), 0);
    for body in [large(), small] {
        (left, batches) = (devices.clone(), 0);
        while !left.is_empty() {
            let kinds = left.iter();
            let kinds = kinds.map(|device| update(device, IfMatch::Any, false, &body));
            let outputs = replica.run(kinds.collect());
            let replies = outputs.iter().filter_map(|output| match output {
                Output::Reply {
                    reply: Reply::Hub(reply),
                    ..
                } => Some(*reply == HubReply::Refused(Refusal::Busy)),
                _ => None,
            });
            let mut is_busy = replies.collect::<Vec<_>>().into_iter();
            left.retain(|_| is_busy.next().expect("one reply per command"));
            batches += 1;
        }
    }
    assert!(left.is_empty() && batches >= 8, "{batches} batches");
    assert!(batches < 40, "{batches} batches");
}

/// A patch costs every node its whole section, which its proposal weighs.
#[test]
fn the_bytes_of_a_section_are_bounded() {
    let mut replica = Replica::new();
    replica.run(vec![create("d")]);
    replica.present(hub_open("d", 1, 1, 1));
    let text = "\u{1}".repeat(4_000);
    let texts = json!({ "a": vec![text; 49] });
    let values = json!({ "b": vec![""; 8_000] });
    for body in [texts, values] {
        replica.run(vec![Kind::PatchReported(report("d", 1, &body))]);
    }
    let bytes = crate::machine::hub::reported_bytes(replica.backing(), &super::hub::id("d"));
    assert!((200_000..300_000).contains(&bytes), "{bytes} bytes");
    assert_eq!(replica.versions("d")[3], 3, "both were accepted");
}

/// Whatever devices patch before it in its entry: who is to be thrown out is.
#[test]
fn patches_leave_the_work_of_back_ends_alone() {
    for is_told in [false, true] {
        let mut replica = match is_told {
            true => super::events::recording(),
            false => Replica::new(),
        };
        replica.run(vec![create("d"), create("e"), create("e/m")]);
        replica.present(hub_open("d", 1, 1, 1));
        let members = large()["properties"]["desired"].take();
        replica.run(vec![Kind::PatchReported(report("d", 1, &members))]);
        let small = || Kind::PatchReported(report("d", 1, &json!({"0000": {}})));
        let mut kinds: Vec<Kind> = (0..10).map(|_| small()).collect();
        kinds.push(delete("e", IfMatch::Any));
        let outputs = replica.run(kinds);
        let deleted = outputs.iter().any(|output| {
            matches!(
                output,
                Output::Reply {
                    reply: Reply::Hub(HubReply::Deleted),
                    ..
                }
            )
        });
        assert!(deleted, "it is busy");
    }
}

/// An event says no more than so much, and those of one command no more together, whatever they are about.
#[test]
fn events_of_a_large_device_and_its_modules() {
    let mut replica = super::events::recording();
    replica.run(vec![create("d")]);
    let modules = (0..limits::MODULES_PER_DEVICE).map(|module| format!("d/m{module:02}"));
    let ids: Vec<String> = std::iter::once("d".to_owned()).chain(modules).collect();
    for id in &ids[1..] {
        replica.run(vec![create(id)]);
    }
    // Half of them fit into an event, the others do not.
    let members = (0..1_000).map(|key| (format!("{key:04x}"), json!({})));
    let fits = json!({"properties": {"desired": serde_json::Value::Object(members.collect())}});
    for (number, id) in ids.iter().enumerate() {
        let body = if number % 2 == 0 {
            large()
        } else {
            fits.clone()
        };
        replica.run(vec![update(id, IfMatch::Any, true, &body)]);
    }
    let before = data(&replica);
    assert_eq!(before.iter().filter(|event| is_cut(event)).count(), 26);
    assert_eq!(replica.hub(delete("d", IfMatch::Any)), HubReply::Deleted);
    let deleted = &data(&replica)[before.len()..];
    assert_eq!(deleted.len(), 51);
    let bytes: usize = deleted.iter().map(|event| event.to_string().len()).sum();
    assert!(bytes < (1 << 20) + 51 * 200, "{bytes} bytes");
    let whole = deleted.iter().filter(|event| !is_cut(event)).count();
    assert!((3..25).contains(&whole), "{whole} of them are whole");
    for event in deleted {
        assert_eq!(event.get("properties").is_some(), !is_cut(event));
        assert_eq!(event["version"], 3, "which write it was is always said");
    }
}

/// What the events of the hub say, in their order.
fn data(replica: &Replica) -> Vec<serde_json::Value> {
    let events = outbox(replica).into_iter();
    let data = events.filter(|(_, event)| !event.data.is_empty());
    data.map(|(_, event)| {
        assert!(event.data.len() <= crate::twin::limits::EVENT_BYTES);
        serde_json::from_slice(&event.data).expect("JSON")
    })
    .collect()
}

fn is_cut(event: &serde_json::Value) -> bool {
    event["truncated"] == json!(true)
}

/// Members without a size make an event that is many times as large as the report. Nobody else's events go for that.
#[test]
fn reports_of_one_device_leave_the_events_of_others_in_the_outbox() {
    let mut replica = Replica::new();
    replica.run(vec![
        set_events(|settings| {
            settings.outbox_max_bytes = 1 << 20;
            settings.keep_s = 1_000_000;
        }),
        create("d"),
    ]);
    replica.present(hub_open("d", 1, 1, 1));
    let others = (0..100).map(|other| opened_session(&format!("o{other}"), 10 + other));
    replica.run(others.collect());
    let before = outbox(&replica).len();
    assert!(before > 100, "{before}");
    let members = (0..3_000).map(|key| (format!("{key:03x}"), json!("")));
    let large = serde_json::Value::Object(members.collect());
    for _ in 0..40 {
        replica.run(vec![Kind::PatchReported(report("d", 1, &large))]);
        replica.settle();
    }
    let told = data(&replica);
    let whole = told.iter().filter(|event| !is_cut(event)).count();
    assert!((2..10).contains(&whole), "{whole} events are whole");
    assert!(told.len() >= 40);
    assert_eq!(outbox(&replica).len(), before + 40, "none has gone");
    // What back ends write is told whole.
    let tags = json!({"tags": {"a": "b".repeat(3_000)}});
    replica.run(vec![update("d", IfMatch::Any, false, &tags)]);
    assert!(!is_cut(data(&replica).last().expect("an event")));
}
