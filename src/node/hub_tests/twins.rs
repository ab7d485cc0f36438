//! Twins, and what is no request.

use serde_json::{Value, json};

use super::{Hub, VERSION, error, token};

pub(super) async fn twins_are_patched_and_replaced(hub: &Hub) {
    let precondition = error(412, "PreconditionFailed");
    hub.put("/devices/t", None, json!({ "deviceId": "t" }))
        .await;
    let fresh = hub.get("/twins/t").await;
    assert_eq!(fresh.header("etag"), Some("\"AAAAAAAAAAE=\""));
    let twin = fresh.json();
    assert_eq!(
        (&twin["version"], &twin["etag"]),
        (&json!(2), &json!("AAAAAAAAAAE="))
    );
    let never = json!({ "$metadata": { "$lastUpdated": "0001-01-01T00:00:00Z" }, "$version": 1 });
    assert_eq!(
        twin["properties"],
        json!({ "desired": never, "reported": never })
    );
    let patch = json!({
        "tags": { "site": { "building": "43", "floor": "1" } },
        "properties": { "desired": { "fan": true }, "reported": { "x": 1 } }, "etag": "ignored",
    });
    let patched = hub
        .ask("PATCH", "/twins/t", None, Some(patch.clone()))
        .await;
    assert_eq!(
        (patched.status, patched.header("etag")),
        (200, Some("\"AAAAAAAAAAI=\""))
    );
    assert_eq!(
        hub.get("/twins/t").await.body,
        patched.body,
        "the whole twin as of this write"
    );
    let twin = patched.json();
    assert_eq!(twin["version"], 3);
    assert_eq!(twin["properties"]["desired"]["$version"], 2);
    assert_eq!(twin["properties"]["reported"]["$version"], 1);
    let old = hub
        .ask("PATCH", "/twins/t", Some("\"AAAAAAAAAAE=\""), Some(patch))
        .await;
    assert_eq!(old.error(), precondition);
    assert_eq!(
        hub.get("/twins/t").await.body,
        patched.body,
        "nothing moved"
    );
    let nothing = hub
        .ask("PATCH", "/twins/t", Some("*"), Some(json!({})))
        .await;
    assert_eq!((nothing.status, &nothing.body), (200, &patched.body));
    let body = json!({ "tags": { "site": { "floor": null } } });
    let one_of = "\"AAAAAAAAAAE=\", W/\"AAAAAAAAAAI=\"";
    let less = hub
        .ask("PATCH", "/twins/t", Some(one_of), Some(body))
        .await
        .json();
    assert_eq!(less["tags"], json!({ "site": { "building": "43" } }));
    let body = json!({ "properties": { "desired": { "mode": "eco" } } });
    let replaced = hub.put("/twins/t", Some("\"*\""), body).await.json();
    assert_eq!(replaced["tags"], less["tags"], "the missing section stays");
    assert!(replaced["properties"]["desired"].get("fan").is_none());
    assert_eq!(replaced["version"], 5);
    let empty = hub
        .put("/twins/t", None, json!({ "tags": {} }))
        .await
        .json();
    assert!(empty.get("tags").is_none());
    let invalid = error(400, "ArgumentInvalid");
    for body in [
        json!([]),
        json!({ "tags": 1 }),
        json!({ "properties": 1 }),
        json!({ "tags": { "a.b": 1 } }),
        json!({ "tags": { "a": "x".repeat(4097) } }),
        json!({ "tags": { "a": 4_503_599_627_370_496_i64 } }),
        json!({ "tags": { "a": [null] } }),
    ] {
        let answer = hub.ask("PATCH", "/twins/t", None, Some(body.clone())).await;
        assert_eq!(answer.error(), invalid, "{body}");
    }
    let answer = hub
        .put("/twins/t", None, json!({ "tags": { "a": null } }))
        .await;
    assert_eq!(answer.error(), invalid, "null has nothing to delete");
    let many: serde_json::Map<String, Value> = (0..3)
        .map(|at| (format!("k{at}"), json!("x".repeat(4000))))
        .collect();
    let answer = hub
        .ask("PATCH", "/twins/t", None, Some(json!({ "tags": many })))
        .await;
    assert_eq!(answer.error(), invalid, "too large a section");
    let absent = hub
        .ask("PATCH", "/twins/absent", Some("x"), Some(json!({})))
        .await;
    assert_eq!(absent.error(), error(404, "DeviceNotFound"));
}

pub(super) async fn what_is_no_request_is_refused(hub: &Hub) {
    let token = token("owner", "");
    let fields = [("Authorization", token.as_str())];
    for (method, target, expected) in [
        ("GET", "/devices/t", error(400, "InvalidProtocolVersion")),
        (
            "GET",
            "/devices/t?api-version=",
            error(400, "InvalidProtocolVersion"),
        ),
        (
            "GET",
            "/devices/t?api-version=new",
            error(400, "InvalidProtocolVersion"),
        ),
        ("GET", "/", error(404, "NotFound")),
        ("GET", "/v1/cluster/status", error(404, "NotFound")),
        ("PATCH", "/devices/t", error(405, "OperationNotAllowed")),
        ("DELETE", "/twins/t", error(405, "OperationNotAllowed")),
        ("POST", "/devices", error(501, "NotImplemented")),
        ("POST", "/twins/t/methods", error(501, "NotImplemented")),
        ("GET", "/statistics/devices", error(501, "NotImplemented")),
    ] {
        let answer = hub.ask_with(method, target, &fields, b"").await;
        assert_eq!(answer.error(), expected, "{method} {target}");
        let allowed = (answer.status == 405).then_some(match target {
            "/twins/t" => "GET, PATCH, PUT",
            _ => "GET, PUT, DELETE",
        });
        assert_eq!(answer.header("allow"), allowed, "{method} {target}");
    }
    let lines = [fields[0], ("If-Match", "\"AAA=\""), ("If-Match", "*")];
    let target = format!("/twins/t?{VERSION}");
    let answer = hub.ask_with("PATCH", &target, &lines, b"{}").await;
    assert_eq!(answer.error(), error(412, "PreconditionFailed"));
    let etag = hub.get("/twins/t").await;
    let etag = etag.header("etag").expect("an etag");
    let lines = [fields[0], ("If-Match", "\"AAA=\""), ("If-Match", etag)];
    let answer = hub.ask_with("PATCH", &target, &lines, b"{}").await;
    assert_eq!(answer.status, 200, "the lines are one list: {answer:?}");
    let large = format!("{{\"tags\":{{\"a\":\"{}\"}}}}", "x".repeat(300 << 10));
    let answer = hub
        .ask_with("PATCH", &target, &fields, large.as_bytes())
        .await;
    assert_eq!(answer.error(), error(413, "MessageTooLarge"));
    let deep = "[".repeat(200);
    let answer = hub
        .ask_with("PATCH", &target, &fields, deep.as_bytes())
        .await;
    assert_eq!(answer.error(), error(400, "IotHubFormatError"));
}
