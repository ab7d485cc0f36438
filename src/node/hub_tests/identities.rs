//! Who asks, and identities.

use serde_json::json;

use super::{HOST, Hub, KEY, VERSION, error, key, token};
use crate::base::time::wall_now;
use crate::registry::sign::sign;

pub(super) async fn who_asks_is_judged_first(hub: &Hub) {
    let unauthorized = error(401, "IotHubUnauthorizedAccess");
    let target = format!("/devices/d?{VERSION}");
    let end = wall_now().0 / 1000 + 60;
    let good = token("read", "");
    let wrong = [
        String::new(),
        "Bearer x".to_owned(),
        good.replace("sig=", "sig=A"),
        token("nobody", ""),
        token("write", ""),
        token("service", ""),
        token("device", ""),
        sign(HOST, &key(), end - 61, Some("read")),
        sign(HOST, &[7; 32], end, Some("read")),
        sign(HOST, &key(), end, None),
        sign("other.example", &key(), end, Some("read")),
        token("read", "/devices/e"),
        token("read", "/devices/d/modules"),
        token("read", "/twins"),
    ];
    for token in &wrong {
        let fields = [("Authorization", token.as_str())];
        let fields = if token.is_empty() { &[][..] } else { &fields };
        let answer = hub.ask_with("GET", &target, fields, b"").await;
        assert_eq!(answer.error(), unauthorized, "{token}");
        // Also where there is nothing, and with a version that is none.
        for (method, target) in [("GET", "/nothing"), ("PUT", "/devices/d?api-version=x")] {
            let answer = hub.ask_with(method, target, fields, b"{").await;
            let is_for_all = token.contains("write") && method == "PUT" || has_any_right(token);
            assert!(
                is_for_all || answer.error() == unauthorized,
                "{token} {target}"
            );
        }
    }
    for token in [
        good,
        token("read", "/devices/d"),
        token("read", "/DEVICES/D/"),
    ] {
        let fields = [("Authorization", token.as_str())];
        let answer = hub.ask_with("GET", &target, &fields, b"").await;
        assert_eq!(answer.error(), error(404, "DeviceNotFound"), "{token}");
    }
    let twice = [
        ("Authorization", &*token("read", "")),
        ("Authorization", &*token("read", "")),
    ];
    let answer = hub.ask_with("GET", &target, &twice, b"").await;
    assert_eq!(answer.error(), unauthorized);
}

/// Whether a token is good for what needs no permission.
fn has_any_right(token: &str) -> bool {
    ["write", "service", "device"]
        .iter()
        .any(|policy| token.ends_with(&format!("skn={policy}")))
}

pub(super) async fn identities_are_made_changed_and_deleted(hub: &Hub) {
    let document = json!({ "deviceId": "a", "status": "enabled", "unknown": [1] });
    let precondition = error(412, "PreconditionFailed");
    for any in ["*", "\"*\"", "\"MQ==\"", "MQ=="] {
        let answer = hub.put("/devices/a", Some(any), document.clone()).await;
        assert_eq!(answer.error(), error(404, "DeviceNotFound"), "{any}");
    }
    let made = hub.put("/devices/a", None, document.clone()).await;
    assert_eq!(made.status, 200, "{made:?}");
    let identity = made.json();
    let etag = identity["etag"].as_str().expect("an etag").to_owned();
    assert_eq!(made.header("etag"), Some(&*format!("\"{etag}\"")));
    assert_eq!(
        made.header("content-type"),
        Some("application/json; charset=utf-8")
    );
    let keys = &identity["authentication"]["symmetricKey"];
    assert_ne!(keys["primaryKey"], keys["secondaryKey"]);
    assert_eq!(keys["primaryKey"].as_str().map(str::len), Some(44));
    assert_eq!(identity["connectionState"], "Disconnected");
    let found = hub.get("/devices/a").await;
    assert_eq!(
        (found.status, found.body.as_str()),
        (200, made.body.as_str())
    );
    for etag in [None, Some("If it is there")] {
        let answer = hub.put("/devices/a", None, document.clone()).await;
        assert_eq!(
            answer.error(),
            error(409, "DeviceAlreadyExists"),
            "{etag:?}"
        );
    }
    for wrong in ["\"OTk5OTk5\"", "x", "\"x\""] {
        let answer = hub.put("/devices/a", Some(wrong), document.clone()).await;
        assert_eq!(answer.error(), precondition, "{wrong}");
    }
    // A missing authentication gets new keys.
    let quoted = format!("W/\"{etag}\"");
    let disabled = json!({ "deviceId": "a", "status": "disabled", "statusReason": "lost" });
    let changed = hub.put("/devices/a", Some(&quoted), disabled).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(changed.json()["status"], "disabled");
    assert_eq!(changed.json()["generationId"], identity["generationId"]);
    assert_ne!(changed.json()["authentication"], identity["authentication"]);
    let answer = hub.put("/devices/a", Some(&etag), document.clone()).await;
    assert_eq!(answer.error(), precondition, "it has another etag now");
    let listed = hub.get("/devices").await;
    assert_eq!(listed.json(), json!([changed.json()]));
    let absent = hub.ask("DELETE", "/devices/absent", None, None).await;
    assert_eq!(absent.error(), precondition, "412 before 404");
    let absent = hub.ask("DELETE", "/devices/absent", Some("*"), None).await;
    assert_eq!(absent.error(), error(404, "DeviceNotFound"));
    let without = hub.ask("DELETE", "/devices/a", None, None).await;
    assert_eq!(without.error(), precondition);
    let wrong = hub.ask("DELETE", "/devices/a", Some(&etag), None).await;
    assert_eq!(wrong.error(), precondition);
    let deleted = hub.ask("DELETE", "/devices/a", Some("\"*\""), None).await;
    assert_eq!((deleted.status, deleted.body.as_str()), (204, ""));
    assert_eq!(
        hub.get("/devices/a").await.error(),
        error(404, "DeviceNotFound")
    );
    let again = hub.put("/devices/a", None, document).await.json();
    assert_ne!(again["generationId"], identity["generationId"]);
}

pub(super) async fn modules_belong_to_their_devices(hub: &Hub) {
    let document = |module: &str| json!({ "deviceId": "a", "moduleId": module, "managedBy": "me" });
    let made = hub.put("/devices/a/modules/m", None, document("m")).await;
    assert_eq!(made.status, 200, "{made:?}");
    assert_eq!(made.json()["managedBy"], "me");
    assert!(made.json().get("status").is_none());
    let again = hub.put("/devices/a/modules/m", None, document("m")).await;
    assert_eq!(again.error(), error(409, "ModuleAlreadyExistsOnDevice"));
    let body = json!({ "deviceId": "x", "moduleId": "m" });
    let nowhere = hub.put("/devices/x/modules/m", None, body).await;
    assert_eq!(nowhere.error(), error(404, "DeviceNotFound"));
    assert_eq!(
        hub.get("/devices/a/modules/x").await.error(),
        error(404, "ModuleNotFound")
    );
    assert_eq!(
        hub.get("/devices/x/modules/x").await.error(),
        error(404, "DeviceNotFound")
    );
    assert_eq!(
        hub.get("/twins/a/modules/x").await.error(),
        error(404, "DeviceNotFound"),
        "so the service says of twins"
    );
    let listed = hub.get("/devices/a/modules").await;
    assert_eq!(listed.json(), json!([made.json()]));
    assert_eq!(
        hub.get("/devices/x/modules").await.error(),
        error(404, "DeviceNotFound")
    );
    for number in 1..50 {
        let module = format!("m{number:02}");
        let path = format!("/devices/a/modules/{module}");
        assert_eq!(hub.put(&path, None, document(&module)).await.status, 200);
    }
    let more = hub
        .put("/devices/a/modules/more", None, document("more"))
        .await;
    assert_eq!(more.error(), error(413, "TooManyModulesOnDevice"));
    let gone = hub
        .ask("DELETE", "/devices/a/modules/m", Some("*"), None)
        .await;
    assert_eq!(gone.status, 204);
    let gone = hub
        .ask("DELETE", "/devices/a/modules/m", Some("*"), None)
        .await;
    assert_eq!(gone.error(), error(404, "ModuleNotFound"));
    let listed = hub.get("/devices/a/modules").await.json();
    assert_eq!(listed.as_array().map(Vec::len), Some(49));
    assert_eq!(
        hub.ask("DELETE", "/devices/a", Some("*"), None)
            .await
            .status,
        204
    );
    assert_eq!(
        hub.get("/twins/a/modules/m01").await.error(),
        error(404, "DeviceNotFound")
    );
}

pub(super) async fn what_is_no_identity_is_refused(hub: &Hub) {
    let invalid = error(400, "ArgumentInvalid");
    for path in [
        "/devices/%24a",
        "/devices/a+b",
        "/devices/a%2Fb",
        "/devices/a%00",
        "/devices/%C3%BC",
    ] {
        assert_eq!(hub.get(path).await.error(), invalid, "{path}");
    }
    for body in [
        json!([]),
        json!({}),
        json!({ "deviceId": "other" }),
        json!({ "deviceId": "b", "moduleId": "m" }),
        json!({ "deviceId": "b", "status": "asleep" }),
        json!({ "deviceId": "b", "authentication": { "type": "none" } }),
        json!({ "deviceId": "b", "authentication": { "symmetricKey": { "primaryKey": KEY } } }),
        json!({ "deviceId": "b", "statusReason": "x".repeat(129) }),
    ] {
        let answer = hub.put("/devices/b", None, body.clone()).await;
        assert_eq!(answer.error(), invalid, "{body}");
    }
    let owner = token("owner", "");
    let fields = [("Authorization", owner.as_str())];
    for body in [&b""[..], b"{", b"\xff", b"{\"deviceId\":\"b\"}x"] {
        let target = format!("/devices/b?{VERSION}");
        let answer = hub.ask_with("PUT", &target, &fields, body).await;
        assert_eq!(answer.error(), error(400, "IotHubFormatError"), "{body:?}");
    }
    for top in ["0", "1001", "x", ""] {
        let answer = hub.get(&format!("/devices?top={top}")).await;
        assert_eq!(answer.error(), invalid, "{top}");
    }
    for number in 0..12 {
        let id = format!("n{number:02}");
        let body = json!({ "deviceId": id });
        assert_eq!(
            hub.put(&format!("/devices/{id}"), None, body).await.status,
            200
        );
    }
    let more = hub
        .put("/devices/more", None, json!({ "deviceId": "more" }))
        .await;
    assert_eq!(more.error(), error(413, "TooManyDevices"));
    let listed = hub.get("/devices?top=2").await.json();
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    for number in 0..12 {
        let path = format!("/devices/n{number:02}");
        assert_eq!(hub.ask("DELETE", &path, Some("*"), None).await.status, 204);
    }
}
