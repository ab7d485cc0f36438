//! Identities as back ends write them: what is judged and in which order, and what is answered.

use serde_json::{Value as Json, json};

use super::Replica;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{Output, Reply};
use crate::machine::hub::{DesiredChanged, HubReply, Refusal, TwinParts, read};
use crate::machine::tables::Backing;
use crate::registry::document::IdentityDocument;
use crate::registry::{IdentityId, IfMatch, document};
use crate::twin::encoding::encode_patch;
use crate::twin::{Twin, request};

pub(super) fn id(client_id: &str) -> IdentityId {
    IdentityId::of_client_id(client_id).expect("an id")
}

/// What a back end says of an identity whose keys are these bytes.
pub(super) fn with_keys(keys: [u8; 2]) -> command::IdentityFields {
    let [primary_key, secondary_key] = keys.map(|key| vec![key; 32].into());
    command::IdentityFields {
        authentication: 1,
        primary_key,
        secondary_key,
        ..Default::default()
    }
}

pub(super) fn put(client_id: &str, if_match: IfMatch, fields: command::IdentityFields) -> Kind {
    let id = id(client_id);
    let (device, module) = id.parts();
    Kind::PutIdentity(command::PutIdentity {
        device: device.to_owned(),
        module: module.to_owned(),
        if_match: Some(if_match.into_command()),
        fields: Some(fields),
        max_devices: 0,
    })
}

pub(super) fn create(client_id: &str) -> Kind {
    put(client_id, IfMatch::Absent, with_keys([1, 2]))
}

pub(super) fn delete(client_id: &str, if_match: IfMatch) -> Kind {
    let id = id(client_id);
    let (device, module) = id.parts();
    Kind::DeleteIdentity(command::DeleteIdentity {
        device: device.to_owned(),
        module: module.to_owned(),
        if_match: Some(if_match.into_command()),
    })
}

pub(super) fn update(client_id: &str, if_match: IfMatch, replace: bool, body: &Json) -> Kind {
    let id = id(client_id);
    let (device, module) = id.parts();
    let update = request::twin_update(body.to_string().as_bytes(), replace).expect("a body");
    Kind::UpdateTwin(command::UpdateTwin {
        device: device.to_owned(),
        module: module.to_owned(),
        if_match: Some(if_match.into_command()),
        replace,
        tags: update.tags.as_ref().map(encode_patch),
        desired: update.desired.as_ref().map(encode_patch),
    })
}

pub(super) fn patch(client_id: &str, body: &Json) -> Kind {
    update(client_id, IfMatch::Absent, false, body)
}

pub(super) fn desired(client_id: &str, body: Json) -> Kind {
    patch(client_id, &json!({"properties": {"desired": body}}))
}

pub(super) fn report(client_id: &str, connection: u64, body: &Json) -> command::PatchReported {
    let patch = request::reported_patch(body.to_string().as_bytes()).expect("a patch");
    command::PatchReported {
        client_id: client_id.to_owned(),
        connection,
        patch: encode_patch(&patch),
        ..Default::default()
    }
}

impl Replica {
    pub(super) fn hub(&mut self, kind: Kind) -> HubReply {
        match self.reply(kind) {
            Reply::Hub(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn identity(&mut self, kind: Kind) -> IdentityDocument {
        match self.hub(kind) {
            HubReply::Identity(identity) => *identity,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn twin(&mut self, kind: Kind) -> Twin {
        match self.hub(kind) {
            HubReply::Twin(twin) => *twin,
            other => panic!("{other:?}"),
        }
    }

    /// A command that is refused changes nothing.
    pub(super) fn refused(&mut self, kind: Kind) -> Refusal {
        let before = self.without_meta();
        match self.hub(kind) {
            HubReply::Refused(refusal) => {
                assert_eq!(before, self.without_meta(), "{refusal:?} changes nothing");
                refusal
            }
            other => panic!("{other:?}"),
        }
    }

    /// What is stored, but for what counts proposals.
    pub(super) fn without_meta(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let counts = |key: &[u8]| key[0] == 1 || key[0] == 2;
        let rows = self.stored.iter().filter(|(key, _)| !counts(key));
        rows.map(|(key, row)| (key.clone(), row.clone())).collect()
    }

    pub(super) fn backing(&self) -> &dyn Backing {
        &self.stored
    }

    pub(super) fn read_twin(&self, client_id: &str) -> Option<Twin> {
        read::twin(self.backing(), &id(client_id))
    }

    /// `version`, etag, and the versions of desired and reported properties.
    pub(super) fn versions(&self, client_id: &str) -> [u64; 4] {
        let twin = self.read_twin(client_id).expect("a twin");
        let (desired, _) = twin.desired.head().expect("a section");
        let (reported, _) = twin.reported.head().expect("a section");
        [twin.head.version, twin.head.etag, desired, reported]
    }
}

pub(super) fn shown(twin: &Twin) -> Json {
    serde_json::from_str(&twin.render().expect("sections")).expect("JSON")
}

pub(super) fn told(outputs: &[Output]) -> Vec<&DesiredChanged> {
    let told = outputs.iter().filter_map(|output| match output {
        Output::Desired(changed) => Some(&**changed),
        _ => None,
    });
    told.collect()
}

#[test]
fn the_table_of_puts() {
    let mut replica = Replica::new();
    let put = |if_match| put("d", if_match, with_keys([1, 2]));
    for if_match in [IfMatch::Any, IfMatch::OneOf(vec![1])] {
        assert_eq!(replica.refused(put(if_match)), Refusal::NoDevice);
    }
    let created = replica.identity(put(IfMatch::Absent));
    assert_eq!((created.identity.generation, created.identity.etag), (1, 1));
    assert_eq!(replica.refused(put(IfMatch::Absent)), Refusal::Exists);
    assert_eq!(
        replica.refused(put(IfMatch::OneOf(vec![2]))),
        Refusal::Precondition
    );
    assert_eq!(
        replica.refused(put(IfMatch::OneOf(vec![]))),
        Refusal::Precondition
    );
    let updated = replica.identity(put(IfMatch::OneOf(vec![7, 1])));
    assert_eq!((updated.identity.generation, updated.identity.etag), (1, 2));
    let updated = replica.identity(put(IfMatch::Any));
    assert_eq!(updated.identity.etag, 3);
    assert_eq!(updated.identity.created_ms, created.identity.created_ms);
    // The twin has not moved.
    assert_eq!(replica.versions("d"), [2, 1, 1, 1]);
    let read = read::document(replica.backing(), &id("d"));
    assert_eq!(read.as_ref(), Some(&updated));
}

#[test]
fn the_table_of_deletes() {
    let mut replica = Replica::new();
    // Without If-Match it is refused before anything is looked up.
    assert_eq!(
        replica.refused(delete("d", IfMatch::Absent)),
        Refusal::Precondition
    );
    for if_match in [IfMatch::Any, IfMatch::OneOf(vec![1])] {
        assert_eq!(
            replica.refused(delete("d", if_match.clone())),
            Refusal::NoDevice
        );
        assert_eq!(replica.refused(delete("d/m", if_match)), Refusal::NoDevice);
    }
    replica.identity(create("d"));
    assert_eq!(
        replica.refused(delete("d", IfMatch::Absent)),
        Refusal::Precondition
    );
    assert_eq!(
        replica.refused(delete("d", IfMatch::OneOf(vec![2]))),
        Refusal::Precondition
    );
    assert_eq!(
        replica.refused(delete("d/m", IfMatch::Any)),
        Refusal::NoModule
    );
    assert_eq!(
        replica.hub(delete("d", IfMatch::OneOf(vec![1]))),
        HubReply::Deleted
    );
    assert_eq!(replica.read_twin("d"), None);
    assert_eq!(replica.machine.identities(), (0, 0));
}

#[test]
fn a_new_identity_has_nothing_of_the_former_one() {
    let mut replica = Replica::new();
    let first = replica.identity(create("d"));
    replica.twin(patch("d", &json!({"tags": {"a": 1}})));
    replica.hub(delete("d", IfMatch::Any));
    let second = replica.identity(create("d"));
    assert_eq!(second.identity.generation, first.identity.generation + 1);
    assert!(second.identity.etag > first.identity.etag);
    assert_eq!(replica.versions("d"), [2, 1, 1, 1]);
    assert_eq!(
        shown(&replica.read_twin("d").expect("a twin")).get("tags"),
        None
    );
}

#[test]
fn a_device_has_at_most_fifty_modules_and_takes_them_along() {
    let mut replica = Replica::new();
    assert_eq!(replica.refused(create("d/m")), Refusal::NoDevice);
    replica.identity(create("d"));
    replica.identity(create("e"));
    replica.identity(create("e/m"));
    for module in 0..50 {
        replica.identity(create(&format!("d/{module:02}")));
    }
    assert_eq!(replica.refused(create("d/50")), Refusal::TooManyModules);
    assert_eq!(replica.refused(create("d/49")), Refusal::Exists);
    replica.hub(delete("d/49", IfMatch::Any));
    replica.identity(create("d/50"));
    assert_eq!(replica.machine.identities(), (2, 51));
    let modules = read::modules(replica.backing(), &id("d")).expect("a device");
    let modules: Vec<_> = modules.iter().map(|module| module.id.to_string()).collect();
    assert!(modules.is_sorted() && modules.len() == 50, "{modules:?}");
    assert_eq!(read::modules(replica.backing(), &id("x")), None);
    assert_eq!(replica.hub(delete("d", IfMatch::Any)), HubReply::Deleted);
    assert_eq!(replica.machine.identities(), (1, 1));
    let left: Vec<_> = replica.stored.keys().filter(|key| key[0] >= 0x40).collect();
    assert_eq!(left.len(), 4, "two rows of each identity: {left:?}");
}

#[test]
fn there_are_as_many_devices_as_there_may_be() {
    let mut replica = Replica::new();
    let bounded = |client_id: &str, if_match| match put(client_id, if_match, with_keys([1, 2])) {
        Kind::PutIdentity(put) => Kind::PutIdentity(command::PutIdentity {
            max_devices: 2,
            ..put
        }),
        other => other,
    };
    replica.identity(bounded("a", IfMatch::Absent));
    replica.identity(bounded("b", IfMatch::Absent));
    assert_eq!(
        replica.refused(bounded("c", IfMatch::Absent)),
        Refusal::TooManyDevices
    );
    assert_eq!(
        replica.refused(bounded("a", IfMatch::Absent)),
        Refusal::Exists
    );
    replica.identity(bounded("a", IfMatch::Any));
    replica.identity(bounded("a/m", IfMatch::Absent));
    replica.hub(delete("b", IfMatch::Any));
    replica.identity(bounded("c", IfMatch::Absent));
    let devices = |most| {
        let found = read::devices(replica.backing(), most, || true).expect("it went on");
        let ids = found.iter().map(|device| device.id.to_string());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(devices(2), ["a", "c"]);
    assert_eq!(devices(1), ["a"]);
}

#[test]
fn the_time_of_the_status_moves_with_the_status_alone() {
    let mut replica = Replica::new();
    let status = |disabled| command::IdentityFields {
        disabled,
        status_reason: Some("r".to_owned()),
        ..with_keys([1, 2])
    };
    let created = replica.identity(put("d", IfMatch::Absent, status(false)));
    assert_eq!(created.identity.status_updated_ms, 0);
    replica.now += 10;
    let disabled = replica.identity(put("d", IfMatch::Any, status(true)));
    assert_eq!(disabled.identity.status_updated_ms, replica.now);
    let at = replica.now;
    replica.now += 10;
    let again = replica.identity(put("d", IfMatch::Any, status(true)));
    assert_eq!(again.identity.status_updated_ms, at);
    assert_eq!(again.identity.written_ms, replica.now);
    // The module's twin shows the device's status.
    replica.identity(create("d/m"));
    let twin = shown(&replica.read_twin("d/m").expect("a twin"));
    assert_eq!(twin["status"], "disabled");
    assert_eq!(twin["statusReason"], "r");
}

#[test]
fn an_identity_is_shown_as_it_was_sent() {
    let mut replica = Replica::new();
    let thumbprint = "ab".repeat(32);
    let body = json!({
        "deviceId": "d",
        "status": "disabled",
        "statusReason": "moved",
        "authentication": {"type": "selfSigned", "x509Thumbprint": {"primaryThumbprint": thumbprint}},
        "capabilities": {"iotEdge": true},
        "etag": "ignored",
        "unknown": [1],
    });
    let fields = document::parse(&id("d"), body.to_string().as_bytes()).expect("a document");
    let identity = replica.identity(put("d", IfMatch::Absent, fields));
    let shown: Json = serde_json::from_str(&identity.render()).expect("JSON");
    let expected = json!({
        "deviceId": "d",
        "generationId": "1",
        "etag": "MQ==",
        "connectionState": "Disconnected",
        "connectionStateUpdatedTime": "0001-01-01T00:00:00Z",
        "status": "disabled",
        "statusReason": "moved",
        "statusUpdatedTime": "1970-01-01T00:16:40.000Z",
        "lastActivityTime": "0001-01-01T00:00:00Z",
        "cloudToDeviceMessageCount": 0,
        "authentication": {
            "type": "selfSigned",
            "symmetricKey": {"primaryKey": null, "secondaryKey": null},
            "x509Thumbprint": {"primaryThumbprint": thumbprint, "secondaryThumbprint": null},
        },
        "capabilities": {"iotEdge": true},
    });
    assert_eq!(shown, expected);
    assert_eq!(identity.etag(), "MQ==");
}

#[test]
fn pages_of_twins_go_on_after_an_id_whatever_came_or_went() {
    let mut replica = Replica::new();
    for device in ["a", "b", "b!", "ba", "c"] {
        replica.identity(create(device));
        for module in ["m", "m-", "n"] {
            replica.identity(create(&format!("{device}/{module}")));
            replica.twin(patch(
                &format!("{device}/{module}"),
                &json!({"tags": {"t": device}}),
            ));
        }
    }
    let all = |replica: &Replica, collection, after: Option<&str>, most: usize| {
        let mut found = Vec::new();
        let after = after.map(id);
        read::scan(
            replica.backing(),
            collection,
            after.as_ref(),
            TwinParts::ALL,
            |twin| {
                assert_eq!(twin.device.is_some(), twin.id.is_module());
                found.push(twin.id.to_string());
                found.len() < most
            },
        );
        found
    };
    use read::Collection::{Devices, Modules};
    assert_eq!(
        all(&replica, Devices, None, 100),
        ["a", "b", "b!", "ba", "c"]
    );
    assert_eq!(all(&replica, Devices, Some("b"), 2), ["b!", "ba"]);
    assert_eq!(all(&replica, Devices, Some("b"), 1), ["b!"]);
    assert_eq!(all(&replica, Devices, Some("aa"), 1), ["b"]);
    assert_eq!(all(&replica, Devices, Some("c"), 9).len(), 0);
    assert_eq!(all(&replica, Modules, None, 100).len(), 15);
    assert_eq!(all(&replica, Modules, Some("b/m"), 2), ["b/m-", "b/n"]);
    assert_eq!(all(&replica, Modules, Some("b/n"), 1), ["b!/m"]);
    replica.hub(delete("b", IfMatch::Any));
    assert_eq!(all(&replica, Modules, Some("b/m"), 1), ["b!/m"]);
}
