//! Who may ask the hub for what: the cells of the table in docs/security.md.

use crate::back_end::{Hub, KEY, KEY_TEXT, token_of};
use cluster_tests::security::{Shown, of_status};
use serde_json::{Value as Json, json};

const PART: &str = "Back ends of a hub (`hub.https_listen`)";

/// Requests by the permission that they take.
const ENTRIES: [(&str, &str, &str); 6] = [
    ("`RegistryRead`", "GET", "/devices"),
    ("`RegistryRead`", "GET", "/devices/table"),
    ("`RegistryWrite`", "PUT", "/devices/table"),
    ("`RegistryWrite`", "DELETE", "/devices/absent"),
    ("`ServiceConnect`", "GET", "/twins/table"),
    ("`ServiceConnect`", "PATCH", "/twins/table"),
];

/// On every node.
pub fn a_back_end_may_what_its_policy_permits(hub: &Hub) {
    let keys = json!({ "primaryKey": KEY_TEXT, "secondaryKey": KEY_TEXT });
    let device =
        json!({ "deviceId": "table", "authentication": { "type": "sas", "symmetricKey": keys } });
    let made = hub.ask(0, "PUT", "/devices/table", "", &device);
    assert_eq!(made.status, 200, "{made:?}");
    let of = |policy| token_of("", KEY, Some(policy), 3_600);
    let rows = [
        ("nobody", String::new()),
        ("a policy with every permission", of("all")),
        ("a policy with `RegistryRead`", of("read")),
        ("a policy with `RegistryWrite`", of("write")),
        ("a policy with `ServiceConnect`", of("service")),
        ("a policy with `DeviceConnect`", of("device")),
        ("a policy that there is not", of("absent")),
        (
            "a token that another key has signed",
            token_of("", b"another key than the policy has", Some("all"), 3_600),
        ),
        ("an expired token", token_of("", KEY, Some("all"), 0)),
        (
            "a token of a policy for another device",
            token_of("/devices/other", KEY, Some("all"), 3_600),
        ),
        (
            "the token of a device",
            token_of("/devices/table", KEY, None, 3_600),
        ),
    ];
    let mut shown = Shown::by("a_back_end_may_what_its_policy_permits");
    for (who, token) in &rows {
        for (entry, method, path) in ENTRIES {
            let body = match method {
                "PUT" => device.clone(),
                "PATCH" => json!({ "tags": { "seen": who } }),
                _ => Json::Null,
            };
            for node in 0..3 {
                let status = hub.status(node, method, path, token, &body);
                shown.saw(PART, entry, who, of_status(status));
            }
        }
    }
    shown.finish();
}
