//! The routes about events, asked over a real socket.

use std::sync::Arc;

use axum::extract::{Query, State};
use futures::FutureExt as _;
use serde_json::Value;

use super::tests::{Node, ask};
use super::*;

impl Events for Node {
    fn pull(&self, pull: Pull) -> AdminFuture<'_, Pulled> {
        async move {
            if pull.r#type == "large" {
                return Ok(Pulled {
                    events: vec!["1".repeat(4 << 20)],
                    ..Pulled::default()
                });
            }
            Ok(Pulled {
                events: vec![
                    format!("{{\"after\":\"{}\",\"size\":{}}}", pull.after, pull.size()),
                    format!(
                        "{{\"type\":\"{}\",\"subject\":\"{}\"}}",
                        pull.r#type, pull.subject
                    ),
                ],
                next: "7\"".to_owned(),
                is_lost: pull.wait_s == 3,
            })
        }
        .boxed()
    }
}

fn named(name: &str) -> Option<EventSubscriptionStatus> {
    (name == "a").then(|| EventSubscriptionStatus {
        name: name.to_owned(),
        ..EventSubscriptionStatus::default()
    })
}

impl EventSubscriptions for Node {
    fn list(&self) -> AdminFuture<'_, Vec<EventSubscriptionStatus>> {
        async { Ok(named("a").into_iter().collect()) }.boxed()
    }

    fn show(&self, name: String) -> AdminFuture<'_, Option<EventSubscriptionStatus>> {
        async move { Ok(named(&name)) }.boxed()
    }

    fn put(
        &self,
        name: String,
        new: NewEventSubscription,
    ) -> AdminFuture<'_, EventSubscriptionStatus> {
        async move {
            named(&name).map_or_else(
                || Err(AdminError::Invalid("a name".to_owned())),
                |status| {
                    Ok(EventSubscriptionStatus {
                        url: new.url,
                        ..status
                    })
                },
            )
        }
        .boxed()
    }

    fn delete(&self, name: String) -> AdminFuture<'_, bool> {
        async move { Ok(name == "a") }.boxed()
    }

    fn set_paused(&self, name: String, _: bool) -> AdminFuture<'_, bool> {
        async move { Ok(name == "a") }.boxed()
    }

    fn test(&self, name: String, request: TestRequest) -> AdminFuture<'_, Option<TestAnswer>> {
        async move {
            Ok(named(&name).map(|_| TestAnswer {
                accepted: request.event,
                ..TestAnswer::default()
            }))
        }
        .boxed()
    }

    fn dead_letters(
        &self,
        name: String,
        page: DeadLetterPage,
    ) -> AdminFuture<'_, Option<DeadLetters>> {
        async move {
            Ok(named(&name).map(|_| DeadLetters {
                letters: vec![(page.after + 1, "{\"id\":\"x\"}".to_owned())],
                next: Some(page.size() as u64),
            }))
        }
        .boxed()
    }

    fn settle_dead_letters(
        &self,
        name: String,
        range: DeadLetterRange,
        fate: DeadLetterFate,
    ) -> AdminFuture<'_, bool> {
        async move {
            match (fate, range.from) {
                (DeadLetterFate::Purged, Some(_)) => Err(AdminError::Conflict("busy".to_owned())),
                _ => Ok(name == "a"),
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn events_are_pulled_after_a_token() {
    let path = "/v1/events?after=5&limit=5000&wait_s=3&type=t&subject=clients%2Fa";
    let (code, body) = ask(true, "GET", path, "").await;
    assert_eq!(code, 200, "{body}");
    let expected = concat!(
        r#"{"events":[{"after":"5","size":1000},{"type":"t","subject":"clients/a"}],"#,
        r#""next":"7\"","lost":true}"#
    );
    assert_eq!(body, expected);
    for (path, expected) in [
        ("/v1/events", 200),
        ("/v1/events?wait_s=31", 400),
        ("/v1/events?limit=x", 400),
        ("/v1/events?other=1", 400),
    ] {
        let (code, body) = ask(true, "GET", path, "").await;
        assert_eq!(code, expected, "{path} {body}");
    }
}

#[tokio::test]
async fn event_subscriptions_are_resources() {
    let all = "/v1/events/subscriptions";
    for (method, path, request, expected, part) in [
        ("GET", "", "", 200, "\"name\":\"a\""),
        ("GET", "/a", "", 200, "\"name\":\"a\""),
        ("GET", "/b", "", 404, "absent"),
        ("PUT", "/a", "{\"url\":\"https://x/\"}", 200, "https://x/"),
        ("PUT", "/b", "{}", 400, "a name"),
        ("PUT", "/a", "{\"urll\":1}", 400, "unknown field"),
        ("DELETE", "/a", "", 200, "{}"),
        ("DELETE", "/b", "", 404, "absent"),
        ("POST", "/a/pause", "{}", 200, "{}"),
        ("POST", "/b/resume", "{}", 404, "absent"),
        (
            "POST",
            "/a/test",
            "{\"event\":true}",
            200,
            "\"accepted\":true",
        ),
        ("POST", "/b/test", "{}", 404, "absent"),
        ("POST", "/a/dead-letters/replay", "{}", 200, "{}"),
        ("POST", "/a/dead-letters/purge", "{\"from\":1}", 409, "busy"),
        ("GET", "/b/dead-letters", "", 404, "absent"),
    ] {
        let (code, body) = ask(true, method, &format!("{all}{path}"), request).await;
        assert_eq!(code, expected, "{method} {path} {body}");
        assert!(body.contains(part), "{method} {path} {body}");
    }
    let (_, body) = ask(
        true,
        "GET",
        &format!("{all}/a/dead-letters?after=4&limit=2"),
        "",
    )
    .await;
    let body: Value = serde_json::from_str(&body).expect("it is JSON");
    assert_eq!(
        (&body["next"], &body["entries"][0]["number"]),
        (&2.into(), &5.into())
    );
    assert_eq!(body["entries"][0]["letter"]["id"], "x");
}

#[tokio::test]
async fn whoever_does_not_read_events_keeps_nobody_from_looking_at_sessions() {
    let node = Arc::new(Node::default());
    let large = Pull {
        r#type: "large".to_owned(),
        ..Pull::default()
    };
    let mut unread = Vec::new();
    loop {
        let events: Arc<dyn Events> = node.clone();
        match super::events::pull(State(events), Query(large.clone())).await {
            Ok(answer) => unread.push(answer),
            Err(error) => {
                assert!(matches!(error, AdminError::Overloaded(_)), "{error}");
                break;
            }
        }
        assert!(unread.len() < 100, "the memory has an end");
    }
    let page = Page {
        after: "large".to_owned(),
        ..Page::default()
    };
    let sessions: Arc<dyn Sessions> = node;
    let listed = super::sessions::list(State(sessions), Query(page)).await;
    assert!(listed.is_ok(), "{:?}", listed.err());
}
