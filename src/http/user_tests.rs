//! The routes of users, bans, rules and tokens.

use futures::FutureExt;

use super::tests::{Node, ask, exchange, healthy};
use super::*;

impl Users for Node {
    fn list(&self, _: Page) -> AdminFuture<'_, Listed<UserStatus>> {
        async { Ok(Listed::default()) }.boxed()
    }

    fn show(&self, name: String) -> AdminFuture<'_, Option<UserStatus>> {
        let status = UserStatus {
            name,
            ..UserStatus::default()
        };
        async { Ok((status.name == "a b").then_some(status)) }.boxed()
    }

    fn add(&self, user: NewUser) -> AdminFuture<'_, UserStatus> {
        let shown = format!("{user:?}");
        let status = UserStatus {
            name: user.name,
            note: shown,
            groups: vec![user.password.expose().len().to_string()],
            ..UserStatus::default()
        };
        async { Ok(status) }.boxed()
    }

    fn change(&self, name: String, change: UserChange) -> AdminFuture<'_, Option<UserStatus>> {
        let status = UserStatus {
            name,
            disabled: change.disabled.unwrap_or_default(),
            ..UserStatus::default()
        };
        async { Ok(Some(status)) }.boxed()
    }

    fn delete(&self, name: String) -> AdminFuture<'_, bool> {
        async move { Ok(name == "a b") }.boxed()
    }

    fn import(&self, request: ImportRequest, _: Identity) -> AdminFuture<'_, ImportAnswer> {
        let added = request.text.expose().lines().count() as u64;
        let answer = ImportAnswer {
            added,
            ..ImportAnswer::default()
        };
        async move { Ok(answer) }.boxed()
    }

    fn bans(&self, _: Page) -> AdminFuture<'_, Listed<BanStatus>> {
        async { Ok(Listed::default()) }.boxed()
    }

    fn ban(&self, ban: NewBan) -> AdminFuture<'_, BanStatus> {
        let status = BanStatus {
            target: ban.target,
            expires_at_ms: ban.seconds,
            ..BanStatus::default()
        };
        async { Ok(status) }.boxed()
    }

    fn unban(&self, target: String) -> AdminFuture<'_, bool> {
        async move { Ok(target == "user:a") }.boxed()
    }
}

#[tokio::test]
async fn users_are_added_changed_and_deleted() {
    let body = r#"{"name": "anna", "password": "pencil"}"#;
    let (code, answer) = ask(true, "POST", "/v1/users", body).await;
    assert_eq!(code, 200, "{answer}");
    assert!(answer.contains(r#""groups":["6"]"#), "{answer}");
    assert!(
        !answer.contains("pencil"),
        "a password is not shown: {answer}"
    );
    for body in [
        "{}",
        r#"{"name": "anna"}"#,
        r#"{"name": "anna", "password": "x", "admin": true}"#,
    ] {
        assert_eq!(ask(true, "POST", "/v1/users", body).await.0, 400, "{body}");
    }
    let (code, answer) = ask(true, "POST", "/v1/user?name=a%20b", r#"{"disabled": true}"#).await;
    assert!(
        code == 200 && answer.contains(r#""disabled":true"#),
        "{answer}"
    );
    for (method, path, expected) in [
        ("GET", "/v1/users", 200),
        ("GET", "/v1/user?name=a%20b", 200),
        ("GET", "/v1/user?name=c", 404),
        ("GET", "/v1/user", 400),
        ("DELETE", "/v1/user?name=a%20b", 200),
        ("DELETE", "/v1/user?name=c", 404),
    ] {
        assert_eq!(
            ask(true, method, path, "").await.0,
            expected,
            "{method} {path}"
        );
    }
    let body = r#"{"format": "mosquitto", "text": "a\nb\n"}"#;
    let (code, answer) = ask(true, "POST", "/v1/users/import", body).await;
    assert!(code == 200 && answer.contains(r#""added":2"#), "{answer}");
}

#[tokio::test]
async fn bans_are_added_and_removed() {
    let body = r#"{"target": "address:10.0.0.0/8", "seconds": 60}"#;
    let (code, answer) = ask(true, "POST", "/v1/bans", body).await;
    assert!(
        code == 200 && answer.contains(r#""expires_at_ms":60"#),
        "{answer}"
    );
    for (method, path, expected) in [
        ("GET", "/v1/bans", 200),
        ("DELETE", "/v1/bans?target=user%3Aa", 200),
        ("DELETE", "/v1/bans?target=user%3Ab", 404),
    ] {
        assert_eq!(
            ask(true, method, path, "").await.0,
            expected,
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn rules_are_replaced_if_nobody_else_has() {
    let (code, body) = ask(true, "GET", "/v1/rules", "").await;
    assert_eq!(
        (code, body.as_str()),
        (200, r#"{"rules":{"rules":[]},"version":7}"#)
    );
    let put = |header: &str, body: &str| {
        let length = body.len();
        format!(
            "PUT /v1/rules HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-type: application/json\r\n{header}content-length: {length}\r\n\r\n{body}"
        )
    };
    for (header, code) in [
        ("", "200"),
        ("if-match: \"7\"\r\n", "200"),
        ("if-match: \"6\"\r\n", "412"),
        ("if-none-match: *\r\n", "412"),
        ("if-match: x\r\n", "400"),
    ] {
        let answer = exchange(healthy(true), &put(header, "{}")).await;
        assert_eq!(&answer[9..12], code, "{header}{answer}");
        let tag = match code {
            "200" => Some("etag: \"8\""),
            "412" => Some("etag: \"7\""),
            _ => None,
        };
        assert!(tag.is_none_or(|tag| answer.contains(tag)), "{answer}");
    }
    let answer = exchange(healthy(true), &put("", "[]")).await;
    assert_eq!(&answer[9..12], "400");
}

#[tokio::test]
async fn tokens_are_made_and_removed() {
    for (method, path, request, expected, part) in [
        (
            "POST",
            "/v1/tokens",
            "{\"name\":\"ops\",\"scope\":\"admin\"}",
            200,
            "ops admin",
        ),
        (
            "POST",
            "/v1/tokens",
            "{\"name\":\"a b\",\"scope\":\"admin\"}",
            400,
            "letters",
        ),
        (
            "POST",
            "/v1/tokens",
            "{\"name\":\"a\",\"scope\":\"root\"}",
            400,
            "operate",
        ),
        (
            "POST",
            "/v1/tokens",
            "{\"name\":\"a\",\"scope\":\"read\",\"expires_in_s\":0}",
            400,
            "hundred",
        ),
        ("GET", "/v1/tokens", "", 200, "entries"),
        ("DELETE", "/v1/token?name=ops", "", 200, "{}"),
        ("DELETE", "/v1/token?name=other", "", 404, "no token"),
    ] {
        let (code, body) = ask(true, method, path, request).await;
        assert_eq!(code, expected, "{method} {path} {request} {body}");
        assert!(body.contains(part), "{body}");
    }
}
