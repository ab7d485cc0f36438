//! What is sent, byte for byte.

use super::*;

fn settings() -> state::EventSettings {
    let cluster = Uuid::new_v5(&Uuid::NAMESPACE_OID, b"quorumq-cluster:quorumq");
    state::EventSettings {
        namespace: "quorumq".to_owned(),
        source: "/namespaces/quorumq".to_owned(),
        cluster_id: cluster.as_bytes().to_vec().into(),
        ..Default::default()
    }
}

fn of_session(kind: Kind, time_ms: u64) -> state::Event {
    state::Event {
        kind: kind as u32,
        time_ms,
        name: "devA".to_owned(),
        session: "devA".to_owned(),
        sequence: 1,
        ..Default::default()
    }
}

/// Four events of one client, with the numbers 1 to 4.
fn examples() -> [state::Event; 4] {
    [
        state::Event {
            kind: Kind::ClientUpdated as u32,
            time_ms: 1_767_607_146_001,
            name: "devA".to_owned(),
            created_ms: 1_767_607_140_000,
            updated_ms: 1_767_607_143_500,
            ..Default::default()
        },
        of_session(Kind::Connected, 1_767_607_201_234),
        state::Event {
            reason: DisconnectionReason::ConnectionLost as u32,
            ..of_session(Kind::Disconnected, 1_767_607_400_050)
        },
        state::Event {
            kind: Kind::ClientDeleted as u32,
            time_ms: 1_767_610_806_000,
            name: "devA".to_owned(),
            ..Default::default()
        },
    ]
}

#[test]
fn cloud_events_are_these_bytes() {
    let expected = [
        r#"{"specversion":"1.0","id":"ae7211cc-0421-55c3-9cb9-e1952000c788","time":"2026-01-05T09:59:06.0010000Z","type":"Microsoft.EventGrid.MQTTClientCreatedOrUpdated","source":"/namespaces/quorumq","subject":"clients/devA","data":{"createdOn":"2026-01-05T09:59:00.0000000Z","updatedOn":"2026-01-05T09:59:03.5000000Z","namespaceName":"quorumq","clientName":"devA","clientAuthenticationName":"devA","state":"Enabled","attributes":{}}}"#,
        r#"{"specversion":"1.0","id":"2d1bd13a-fd47-561d-8413-48715eb0b567","time":"2026-01-05T10:00:01.2340000Z","type":"Microsoft.EventGrid.MQTTClientSessionConnected","source":"/namespaces/quorumq","subject":"clients/devA/sessions/devA","data":{"namespaceName":"quorumq","clientAuthenticationName":"devA","clientSessionName":"devA","sequenceNumber":1}}"#,
        r#"{"specversion":"1.0","id":"3d49211f-c115-594a-84df-fcf6296613ee","time":"2026-01-05T10:03:20.0500000Z","type":"Microsoft.EventGrid.MQTTClientSessionDisconnected","source":"/namespaces/quorumq","subject":"clients/devA/sessions/devA","data":{"namespaceName":"quorumq","clientAuthenticationName":"devA","clientSessionName":"devA","sequenceNumber":1,"disconnectionReason":"ConnectionLost"}}"#,
        r#"{"specversion":"1.0","id":"c204728f-caa7-5b0d-ade0-0961a518bf71","time":"2026-01-05T11:00:06.0000000Z","type":"Microsoft.EventGrid.MQTTClientDeleted","source":"/namespaces/quorumq","subject":"clients/devA","data":{"namespaceName":"quorumq","clientName":"devA","clientAuthenticationName":"devA"}}"#,
    ];
    let settings = settings();
    for ((number, event), expected) in (1..).zip(examples()).zip(expected) {
        assert_eq!(cloud_event(&settings, number, &event), expected);
    }
}

#[test]
fn an_event_in_the_event_grid_schema_is_these_bytes() {
    let expected = r#"{"id":"3d49211f-c115-594a-84df-fcf6296613ee","eventTime":"2026-01-05T10:03:20.0500000Z","eventType":"Microsoft.EventGrid.MQTTClientSessionDisconnected","topic":"/namespaces/quorumq","subject":"clients/devA/sessions/devA","dataVersion":"1","metadataVersion":"1","data":{"namespaceName":"quorumq","clientAuthenticationName":"devA","clientSessionName":"devA","sequenceNumber":1,"disconnectionReason":"ConnectionLost"}}"#;
    assert_eq!(grid_event(&settings(), 3, &examples()[2]), expected);
}

#[test]
fn an_event_of_the_hub_has_its_attributes() {
    let event = state::Event {
        kind: Kind::Hub as u32,
        time_ms: 1_767_607_201_234,
        name: "devA".to_owned(),
        session: "m1".to_owned(),
        operation: HubOperation::UpdateTwin as u32,
        data: r#"{"version":7}"#.into(),
        hub: "quorumq".to_owned(),
        ..Default::default()
    };
    let expected = r#""type":"Quorumq.Hub.updateTwin","source":"/namespaces/quorumq","subject":"devices/devA/modules/m1","hubname":"quorumq","deviceid":"devA","moduleid":"m1","optype":"updateTwin","operationtimestamp":"2026-01-05T10:00:01.2340000Z","messageschema":"twinChangeNotification","data":{"version":7}}"#;
    let text = cloud_event(&settings(), 9, &event);
    assert!(text.ends_with(expected), "{text}");
}

/// Names are the clients' choice.
#[test]
fn whatever_a_name_is_the_event_is_json() {
    let name = "a\"\\\n\u{1}ü/\u{10ffff}";
    let event = state::Event {
        name: name.to_owned(),
        ..of_session(Kind::Connected, 0)
    };
    for text in [
        cloud_event(&settings(), 1, &event),
        grid_event(&settings(), 1, &event),
    ] {
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(parsed["data"]["clientAuthenticationName"], name);
        assert_eq!(parsed["subject"], format!("clients/{name}/sessions/devA"));
    }
    // What a newer version has written does no harm.
    let newer = cloud_event(&settings(), 1, &state::Event::default());
    assert!(serde_json::from_str::<serde_json::Value>(&newer).is_ok());
}
