//! Requests of every mode, byte for byte where they are fixed, and who has consented.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::kind::Kind;
use super::*;

fn settings() -> EventSettings {
    let cluster: Uuid = "c10d02db-7b08-5db2-9567-c8f511cca2f6"
        .parse()
        .expect("a UUID");
    EventSettings {
        namespace: "quorumq".to_owned(),
        source: "/namespaces/quorumq".to_owned(),
        cluster_id: cluster.as_bytes().to_vec().into(),
        ..EventSettings::default()
    }
}

fn form(schema: Schema, mode: Mode) -> Form<'static> {
    Form {
        name: "config",
        schema,
        mode,
        origin: "quorumq",
        most_events: 100,
        most_bytes: 1_000,
    }
}

fn event(session: &str) -> Event {
    Event {
        kind: Kind::Connected as u32,
        time_ms: 1_767_607_201_234,
        name: "devA".to_owned(),
        session: session.to_owned(),
        sequence: 1,
        ..Event::default()
    }
}

/// The headers and the body of a request with the second event.
fn one(schema: Schema, mode: Mode, event: &Event) -> (BTreeMap<&'static str, String>, String) {
    let settings = settings();
    let mut parcel = Parcel::new(form(schema, mode), &settings);
    assert!(parcel.push(2, event));
    let request = parcel.request(3);
    assert!(!request.is_options);
    let body = String::from_utf8(request.body).expect("JSON is UTF-8");
    (request.headers.into_iter().collect(), body)
}

#[test]
fn a_batch_is_a_list_also_of_one_event() {
    let event = event("devA");
    let (headers, body) = one(Schema::CloudEvents, Mode::Batch, &event);
    assert_eq!(body.len(), 346, "as the vector of the signature has it");
    assert!(body.starts_with("[{\"specversion\":\"1.0\"") && body.ends_with("}]"));
    assert_eq!(
        headers["content-type"],
        "application/cloudevents-batch+json; charset=utf-8"
    );
    assert_eq!(headers["webhook-request-origin"], "quorumq");
    let (headers, structured) = one(Schema::CloudEvents, Mode::Structured, &event);
    assert_eq!(format!("[{structured}]"), body);
    assert_eq!(
        headers["content-type"],
        "application/cloudevents+json; charset=utf-8"
    );
}

#[test]
fn in_binary_mode_attributes_are_headers() {
    let (headers, body) = one(Schema::CloudEvents, Mode::Binary, &event("a b\"%ü\u{7f}/~"));
    assert!(body.starts_with("{\"namespaceName\":\"quorumq\""), "{body}");
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "2d1bd13a-fd47-561d-8413-48715eb0b567"),
        ("ce-time", "2026-01-05T10:00:01.2340000Z"),
        ("ce-type", "Microsoft.EventGrid.MQTTClientSessionConnected"),
        ("ce-source", "/namespaces/quorumq"),
        ("ce-subject", "clients/devA/sessions/a%20b%22%25%C3%BC%7F/~"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(headers[name], value);
    }
}

#[test]
fn event_grid_has_headers_of_its_own_and_always_a_list() {
    for mode in [Mode::Batch, Mode::Structured, Mode::Binary] {
        let (headers, body) = one(Schema::EventGrid, mode, &event("devA"));
        assert!(
            body.starts_with("[{\"id\":") && body.ends_with("}]"),
            "{body}"
        );
        for (name, value) in [
            ("content-type", "application/json; charset=utf-8"),
            ("aeg-event-type", "Notification"),
            ("aeg-subscription-name", "config"),
            ("aeg-delivery-count", "3"),
            ("aeg-data-version", "1"),
            ("aeg-metadata-version", "1"),
        ] {
            assert_eq!(headers[name], value);
        }
        assert!(!headers.contains_key("webhook-request-origin"));
    }
}

#[test]
fn one_large_event_goes_alone() {
    let large = "x".repeat(2_000);
    let settings = settings();
    let mut parcel = Parcel::new(form(Schema::CloudEvents, Mode::Batch), &settings);
    assert!(parcel.push(1, &event(&large)));
    assert!(!parcel.push(2, &event("devA")));
    assert_eq!(parcel.numbers(), [1]);
    let mut parcel = Parcel::new(form(Schema::CloudEvents, Mode::Batch), &settings);
    assert!(parcel.push(1, &event("devA")) && !parcel.push(2, &event(&large)));
    assert_eq!(parcel.id(), "ae7211cc-0421-55c3-9cb9-e1952000c788-1");
}

#[test]
fn consent_is_the_origin_or_the_code_and_never_a_status() {
    let code = Uuid::from_u128(7);
    let judge = |schema, status, headers: &[(&str, &'static str)], body: &str| {
        let header = |name: &str| {
            let found = headers.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value)
        };
        consent(
            &form(schema, Mode::Batch),
            code,
            status,
            header,
            body.as_bytes(),
        )
    };
    let origin = |value| ("webhook-allowed-origin", value);
    let rate = |value| ("webhook-allowed-rate", value);
    for (headers, expected) in [
        (vec![], Consent::Refused),
        (vec![origin("quorumq")], Consent::Given(None)),
        (vec![origin("*")], Consent::Given(None)),
        (vec![origin("other")], Consent::Refused),
        (vec![origin("*"), rate("*")], Consent::Given(None)),
        (vec![origin("*"), rate("120")], Consent::Given(Some(120))),
        (vec![origin("*"), rate("0")], Consent::Refused),
        (vec![origin("*"), rate("many")], Consent::Refused),
    ] {
        for status in [200, 204, 404, 405, 500] {
            let judged = judge(Schema::CloudEvents, status, &headers, "");
            assert_eq!(judged, expected, "{status} {headers:?}");
        }
    }
    let same = format!("{{\"validationResponse\":\"{code}\"}}");
    for (status, body, expected) in [
        (200, same.as_str(), Consent::Given(None)),
        (202, &same, Consent::Refused),
        (200, "{\"validationResponse\":\"other\"}", Consent::Refused),
        (200, "{}", Consent::Refused),
        (200, "[", Consent::Refused),
        (200, "", Consent::Refused),
    ] {
        assert_eq!(
            judge(Schema::EventGrid, status, &[origin("*")], body),
            expected
        );
    }
}

#[test]
fn an_endpoint_is_asked_in_the_way_of_its_schema() {
    let code = Uuid::from_u128(7);
    let at = Millis(1_767_607_201_234);
    let asked = handshake(
        &form(Schema::CloudEvents, Mode::Batch),
        &settings(),
        600,
        code,
        at,
    );
    assert!(asked.is_options && asked.body.is_empty());
    let expected = [
        ("webhook-request-origin", "quorumq".to_owned()),
        ("webhook-request-rate", "600".to_owned()),
    ];
    assert_eq!(asked.headers, expected);
    let asked = handshake(
        &form(Schema::EventGrid, Mode::Batch),
        &settings(),
        600,
        code,
        at,
    );
    let body = concat!(
        r#"[{"id":"00000000-0000-0000-0000-000000000007","topic":"/namespaces/quorumq","subject":"","#,
        r#""data":{"validationCode":"00000000-0000-0000-0000-000000000007"},"#,
        r#""eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","#,
        r#""eventTime":"2026-01-05T10:00:01.2340000Z","metadataVersion":"1","dataVersion":"1"}]"#
    );
    assert_eq!(String::from_utf8(asked.body).expect("JSON is UTF-8"), body);
    let kind = ("aeg-event-type", "SubscriptionValidation".to_owned());
    assert!(!asked.is_options && asked.headers.contains(&kind));
}

#[test]
fn a_test_says_that_it_is_one_in_every_mode() {
    let (id, at) = (Uuid::from_u128(7), Millis(1_767_607_201_234));
    let made = |schema, mode| trial(&form(schema, mode), &settings(), id, at);
    let body = |request: &Request| String::from_utf8(request.body.clone()).expect("it is UTF-8");
    let structured = concat!(
        r#"{"specversion":"1.0","id":"00000000-0000-0000-0000-000000000007","#,
        r#""time":"2026-01-05T10:00:01.2340000Z","type":"Quorumq.EventSubscriptionTest","#,
        r#""source":"/namespaces/quorumq","subject":"test","data":{"namespaceName":"quorumq"}}"#
    );
    let request = made(Schema::CloudEvents, Mode::Structured);
    assert_eq!(body(&request), structured);
    let request = made(Schema::CloudEvents, Mode::Batch);
    assert_eq!(body(&request), format!("[{structured}]"));
    let request = made(Schema::CloudEvents, Mode::Binary);
    assert_eq!(body(&request), "{\"namespaceName\":\"quorumq\"}");
    let kind = ("ce-type", "Quorumq.EventSubscriptionTest".to_owned());
    assert!(request.headers.contains(&kind));
    let request = made(Schema::EventGrid, Mode::Batch);
    assert!(
        body(&request).starts_with("[{\"id\":"),
        "{}",
        body(&request)
    );
}

proptest! {
    #[test]
    fn a_parcel_keeps_its_bounds_and_is_json(
        sizes in prop::collection::vec(0usize..1_200, 1..20),
        most_events in 1usize..6,
        grid in any::<bool>(),
    ) {
        let schema = if grid { Schema::EventGrid } else { Schema::CloudEvents };
        let form = Form { most_events, ..form(schema, Mode::Batch) };
        let settings = settings();
        let mut parcel = Parcel::new(form, &settings);
        let names: Vec<String> = sizes.iter().map(|size| "x".repeat(*size)).collect();
        let mut taken = 0;
        for (number, name) in (1..).zip(&names) {
            if !parcel.push(number, &event(name)) {
                break;
            }
            taken += 1;
        }
        let body = parcel.request(0).body;
        let value: serde_json::Value = serde_json::from_slice(&body).expect("it is JSON");
        let listed = value.as_array().expect("a list").len();
        prop_assert!(taken >= 1 && taken <= most_events && listed == taken);
        prop_assert!(taken == 1 || body.len() <= 1_000);
        prop_assert_eq!(parcel.numbers().len(), taken);
    }

    #[test]
    fn a_header_is_printable_ascii(text in "\\PC{0,40}|[\\x00-\\xff]{0,40}") {
        prop_assert!(escaped(&text).bytes().all(|byte| (0x21..0x7f).contains(&byte)));
    }
}
