//! Queries, and their pages.

use serde_json::json;

use super::{Hub, error};

pub(super) async fn twins_are_found(hub: &Hub) {
    for (device, site, level) in [("q1", "43", 1), ("q2", "43", 2), ("q3", "44", 3)] {
        hub.put(
            &format!("/devices/{device}"),
            None,
            json!({ "deviceId": device }),
        )
        .await;
        let module = json!({ "deviceId": device, "moduleId": "m" });
        hub.put(&format!("/devices/{device}/modules/m"), None, module)
            .await;
        for path in [
            format!("/twins/{device}"),
            format!("/twins/{device}/modules/m"),
        ] {
            let body = json!({ "tags": { "site": site }, "properties": { "desired": { "level": level } } });
            assert_eq!(hub.ask("PATCH", &path, None, Some(body)).await.status, 200);
        }
    }
    let all = hub
        .query(
            "SELECT * FROM devices WHERE deviceId IN ['q2', 'q1', 'x']",
            &[],
        )
        .await;
    assert_eq!(
        (all.status, all.header("x-ms-item-type")),
        (200, Some("Twin"))
    );
    assert_eq!(all.header("x-ms-continuation"), None);
    let (one, two) = (
        hub.get("/twins/q1").await.body,
        hub.get("/twins/q2").await.body,
    );
    assert_eq!(
        all.body,
        format!("[{one},{two}]"),
        "byte for byte what GET shows"
    );
    for (query, expected) in [
        (
            "SELECT deviceId, properties.desired.level FROM devices WHERE tags.site = '43'",
            json!([{ "deviceId": "q1", "level": 1 }, { "deviceId": "q2", "level": 2 }]),
        ),
        (
            "SELECT deviceId AS d, moduleId FROM devices.modules WHERE properties.desired.level > 1",
            json!([{ "d": "q2", "moduleId": "m" }, { "d": "q3", "moduleId": "m" }]),
        ),
        (
            "SELECT tags.site, COUNT() AS n, AVG(properties.desired.level) FROM devices \
             WHERE is_defined(tags.site) GROUP BY tags.site",
            json!([{ "site": "43", "n": 2, "avg": 1.5 }, { "site": "44", "n": 1, "avg": 3 }]),
        ),
        (
            "SELECT COUNT() FROM devices WHERE false",
            json!([{ "count": 0 }]),
        ),
        (
            "SELECT TOP 1 deviceId, connectionState FROM devices WHERE connectionState = 'Disconnected' AND tags.site = '43'",
            json!([{ "deviceId": "q1", "connectionState": "Disconnected" }]),
        ),
        (
            "SELECT tags FROM devices WHERE DEVICEID = 'q3' AND properties.desired.$version = 2",
            json!([{ "tags": { "site": "44" } }]),
        ),
        (
            "SELECT * FROM devices.modules WHERE deviceId = 'absent'",
            json!([]),
        ),
    ] {
        let answer = hub.query(query, &[]).await;
        assert_eq!((answer.status, answer.json()), (200, expected), "{query}");
    }
    let invalid = error(400, "ArgumentInvalid");
    for query in [
        "",
        "SELECT",
        "SELECT * FROM devices.jobs",
        "SELECT TOP 0 * FROM devices",
    ] {
        assert_eq!(hub.query(query, &[]).await.error(), invalid, "{query}");
    }
    for (name, value) in [
        ("x-ms-max-item-count", "0"),
        ("x-ms-max-item-count", "-1"),
        ("x-ms-max-item-count", "many"),
        ("x-ms-continuation", "garbled"),
    ] {
        let answer = hub.query("SELECT * FROM devices", &[(name, value)]).await;
        assert_eq!(answer.error(), invalid, "{name}: {value}");
    }
}

pub(super) async fn pages_follow_one_another(hub: &Hub) {
    for query in [
        "SELECT deviceId FROM devices.modules",
        "SELECT deviceId FROM devices WHERE deviceId IN ['q3', 'q1', 'q2']",
        "SELECT deviceId FROM devices.modules WHERE deviceId IN ['q3', 'q1', 'q2']",
        "SELECT deviceId, COUNT() AS n FROM devices.modules GROUP BY deviceId",
    ] {
        let mut listed = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let mut fields = vec![("x-ms-max-item-count", "1")];
            fields.extend(token.as_deref().map(|token| ("x-ms-continuation", token)));
            let answer = hub.query(query, &fields).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let page = answer.json();
            let page = page.as_array().expect("a list").clone();
            assert_eq!(page.len(), 1, "{query}");
            listed.extend(
                page.iter()
                    .map(|row| row["deviceId"].as_str().unwrap_or("?").to_owned()),
            );
            token = answer.header("x-ms-continuation").map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        assert_eq!(listed, ["q1", "q2", "q3"], "{query}");
    }
}
