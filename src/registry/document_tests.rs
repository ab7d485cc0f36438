//! Identity documents, each rule at its boundary.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::document::*;
use super::{IdentityId, fingerprint};
use crate::base::proto::{command, state};

fn device() -> IdentityId {
    IdentityId::device("d").expect("an id")
}

fn module() -> IdentityId {
    IdentityId::module("d", "m").expect("an id")
}

fn parsed(id: &IdentityId, mut body: Json) -> Result<command::IdentityFields, Invalid> {
    body["deviceId"] = id.device_id().into();
    if let Some(module) = id.module_id() {
        body["moduleId"] = module.into();
    }
    match parse(id, body.to_string().as_bytes()) {
        Ok(fields) => Ok(fields),
        Err(Refused::Invalid(invalid)) => Err(invalid),
        Err(other) => panic!("{other}"),
    }
}

fn key(bytes: usize) -> String {
    STANDARD.encode(vec![7; bytes])
}

#[test]
fn an_empty_document_is_an_enabled_device_that_needs_keys() {
    let fields = parsed(&device(), json!({})).expect("a document");
    let expected = command::IdentityFields {
        authentication: fingerprint::Authentication::Sas as u32,
        ..Default::default()
    };
    assert_eq!(fields, expected);
    assert!(needs_keys(&fields));
}

#[test]
fn the_ids_are_those_of_the_path() {
    let of = |id: &IdentityId, body: Json| parse(id, body.to_string().as_bytes());
    let other = Err(Refused::Invalid(Invalid::OtherId));
    for body in [
        json!({}),
        json!({"deviceId": "x"}),
        json!({"deviceId": "D"}),
        json!({"deviceId": "d", "moduleId": "m"}),
    ] {
        assert_eq!(of(&device(), body.clone()), other, "{body}");
    }
    for body in [
        json!({"deviceId": "d"}),
        json!({"moduleId": "m"}),
        json!({"deviceId": "d", "moduleId": "x"}),
        json!({"deviceId": "x", "moduleId": "m"}),
    ] {
        assert_eq!(of(&module(), body.clone()), other, "{body}");
    }
    assert!(of(&device(), json!({"deviceId": "d", "moduleId": null})).is_ok());
    assert!(of(&module(), json!({"deviceId": "d", "moduleId": "m"})).is_ok());
}

#[test]
fn keys_are_base64_of_16_to_64_bytes_and_both_or_neither() {
    let keys = |primary: Json, secondary: Json| {
        let keys = json!({"primaryKey": primary, "secondaryKey": secondary});
        parsed(&device(), json!({"authentication": {"symmetricKey": keys}}))
    };
    for (bytes, legal) in [
        (15, false),
        (16, true),
        (17, true),
        (63, true),
        (64, true),
        (65, false),
    ] {
        let fields = keys(key(bytes).into(), key(32).into());
        assert_eq!(fields.is_ok(), legal, "{bytes}");
        assert_eq!(
            keys(key(32).into(), key(bytes).into()).is_ok(),
            legal,
            "{bytes}"
        );
        if let Ok(fields) = fields {
            assert_eq!(fields.primary_key.len(), bytes);
            assert!(!needs_keys(&fields));
        }
    }
    for absent in [Json::Null, "".into()] {
        assert_eq!(keys(key(32).into(), absent.clone()), Err(Invalid::OneKey));
        assert_eq!(keys(absent.clone(), key(32).into()), Err(Invalid::OneKey));
        assert!(keys(absent.clone(), absent).is_ok_and(|fields| needs_keys(&fields)));
    }
    assert_eq!(keys("?".into(), key(32).into()), Err(Invalid::Key));
    assert_eq!(
        keys(key(32).trim_end_matches('=').into(), key(32).into()),
        Err(Invalid::Key)
    );
    let member = Err(Invalid::Member("primaryKey"));
    assert_eq!(keys(1.into(), key(32).into()), member);
}

#[test]
fn thumbprints_are_40_or_64_digits_and_kept_as_given() {
    let with = |primary: &str, secondary: Json| {
        let thumbprints = json!({"primaryThumbprint": primary, "secondaryThumbprint": secondary});
        let authentication = json!({"type": "selfSigned", "x509Thumbprint": thumbprints});
        parsed(&device(), json!({"authentication": authentication}))
    };
    for (digits, legal) in [
        (39, false),
        (40, true),
        (41, false),
        (63, false),
        (64, true),
        (65, false),
    ] {
        let thumbprint = "aB3".repeat(30)[..digits].to_owned();
        let fields = with(&thumbprint, Json::Null);
        assert_eq!(fields.is_ok(), legal, "{digits}");
        if let Ok(fields) = fields {
            assert_eq!(fields.primary_thumbprint, Some(thumbprint));
            assert!(fields.primary_key.is_empty() && !needs_keys(&fields));
        }
    }
    assert_eq!(with(&"g".repeat(40), Json::Null), Err(Invalid::Thumbprint));
    assert_eq!(with(&"a:".repeat(20), Json::Null), Err(Invalid::Thumbprint));
    assert_eq!(with("", Json::Null), Err(Invalid::NoThumbprint));
    assert!(with("", "a".repeat(40).into()).is_ok());
}

#[test]
fn the_ways_of_proof() {
    let way = |id: &IdentityId, name: Json| {
        let fields = parsed(id, json!({"authentication": {"type": name}}));
        fields.map(|fields| fields.authentication)
    };
    assert_eq!(way(&device(), Json::Null), Ok(1));
    assert_eq!(way(&device(), "sas".into()), Ok(1));
    assert_eq!(way(&device(), "certificateAuthority".into()), Ok(3));
    assert_eq!(way(&module(), "none".into()), Ok(1));
    let refused = Err(Invalid::Member("authentication.type"));
    for other in ["none", "SAS", "x"] {
        assert_eq!(way(&device(), other.into()), refused);
    }
}

#[test]
fn a_status_reason_has_at_most_128_characters() {
    let reason = |letters: usize| {
        let reason = "ä".repeat(letters);
        parsed(
            &device(),
            json!({"status": "disabled", "statusReason": reason}),
        )
    };
    assert!(reason(127).is_ok_and(|fields| fields.disabled) && reason(128).is_ok());
    assert_eq!(reason(129), Err(Invalid::TooLong("statusReason")));
    let status = parsed(&device(), json!({"status": "off"}));
    assert_eq!(status, Err(Invalid::Member("status")));
    // A module has no status.
    let module = parsed(&module(), json!({"status": "disabled", "managedBy": "me"}));
    assert!(module.is_ok_and(|fields| !fields.disabled && fields.managed_by.is_some()));
}

#[test]
fn what_is_shown_can_be_sent_back() {
    let identity = state::Identity {
        generation: 7,
        etag: 8,
        authentication: 1,
        primary_key: vec![1; 32].into(),
        secondary_key: vec![2; 32].into(),
        status_reason: Some("a \"reason\"".to_owned()),
        managed_by: Some("me".to_owned()),
        iot_edge: true,
        ..Default::default()
    };
    for id in [device(), module()] {
        let document = IdentityDocument {
            id: id.clone(),
            identity: identity.clone(),
            presence: Presence::default(),
        };
        let fields = parse(&id, document.render().as_bytes()).expect("a document");
        assert_eq!(fields.primary_key, identity.primary_key);
        assert_eq!(fields.secondary_key, identity.secondary_key);
        let is_module = id.is_module();
        assert_eq!(fields.managed_by.is_some(), is_module);
        assert_eq!(
            fields.status_reason.is_some() && fields.iot_edge,
            !is_module
        );
    }
}

proptest! {
    #[test]
    fn whatever_comes_is_read_or_refused(bytes: Vec<u8>) {
        let _ = parse(&device(), &bytes);
    }
}

#[test]
fn what_is_no_document_is_refused() {
    for body in ["", "x", "{\"deviceId\":\"d\"", "\u{feff}{}"] {
        assert!(matches!(
            parse(&device(), body.as_bytes()),
            Err(Refused::NotJson(_))
        ));
    }
    for body in ["[]", "1", "null"] {
        let refused = Err(Refused::Invalid(Invalid::NotAnObject));
        assert_eq!(parse(&device(), body.as_bytes()), refused);
    }
    for member in ["authentication", "capabilities"] {
        let refused = Err(Invalid::Member(member));
        assert_eq!(parsed(&device(), json!({ member: 1 })), refused);
    }
}
