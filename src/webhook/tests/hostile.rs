//! Endpoints and operators that do not mean it well: what is sent, read and told stays within bounds.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::super::declared::{Declared, Told};
use super::super::files::Files;
use super::super::trial::{self, Tried, try_out};
use super::deliveries::{consenting, deliver, options};
use super::endpoint::{TestEndpoint, status};
use super::replica::Replica;
use crate::base::ids::CLUSTER;
use crate::base::limits;
use crate::base::proto::command::DeleteEventSubscription;
use crate::base::proto::command::command::Kind;
use crate::base::proto::state::{EventSettings, EventSubscriptionOptions};
use crate::base::time::wall_now;
use crate::config::Config;
use crate::events::options::{Handshake, State};

/// Who waits for an endpoint reads nothing for each event that is recorded meanwhile.
#[tokio::test]
async fn a_storm_of_events_does_not_wake_who_can_send_nothing() {
    let endpoint = TestEndpoint::new(consenting(|_| status("503 Busy"))).await;
    let replica = Replica::new();
    replica.subscribe(&options(&endpoint));
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica
        .until("it backs off", |row| !row.last_error.is_empty())
        .await;
    let before = replica.scans();
    for number in 0..300 {
        replica.connect(&number.to_string());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let scans = replica.scans() - before;
    assert!(scans < 30, "{scans}");
}

/// Nor does who wants nothing of it read everything again and again until its cursor is told.
#[tokio::test]
async fn what_is_not_wanted_is_read_once() {
    const EVENTS: u64 = 300;
    let endpoint = TestEndpoint::new(consenting(|_| status("204 No Content"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        types: vec!["Microsoft.EventGrid.MQTTClientDeleted".to_owned()],
        ..options(&endpoint)
    });
    let (_running, _) = deliver(&replica);
    replica.until_looked_at().await;
    let before = replica.visits();
    for number in 0..EVENTS {
        replica.connect(&number.to_string());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    replica
        .until("it passes them over", |row| row.through == EVENTS)
        .await;
    // The cursor is told once a second, and some are read with it.
    let visits = replica.visits() - before;
    assert!(visits < 3 * EVENTS, "{visits}");
}

/// A row whose error stays empty is not taken for an operator who has cleared it.
#[tokio::test]
async fn an_account_that_the_log_refuses_does_not_end_the_back_off() {
    let endpoint = TestEndpoint::new(consenting(|_| status("503 Busy"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        handshake: Handshake::Off.number(),
        ..options(&endpoint)
    });
    replica.refuses.store(true, SeqCst);
    let began = std::time::Instant::now();
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    // Steps of 1 and 2 seconds, less a fifth each.
    while endpoint.posts().len() < 3 {
        replica.until_looked_at().await;
    }
    let steps = began.elapsed();
    assert!(steps >= Duration::from_millis(2_400), "{steps:?}");
}

/// Scans of rows in one step: events, and parked ones.
const SCANS: u64 = 2;

/// Consent is no reason to ask without pause, either.
#[tokio::test]
async fn a_question_counts_for_the_rate() {
    let endpoint = TestEndpoint::new(|_| status("200 OK")).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        rate_per_min: 1,
        ..options(&endpoint)
    });
    let (_running, _) = deliver(&replica);
    replica.connect("a");
    replica
        .until("it is refused", |row| !row.last_error.is_empty())
        .await;
    replica.until_scanned(replica.scans() + 2 * SCANS).await;
    // Whoever clears the error ends the back-off, not the rate.
    replica.clear_error();
    replica.until_scanned(replica.scans() + 2 * SCANS).await;
    for client in ["b", "c", "d"] {
        replica.connect(client);
        replica.until_looked_at().await;
    }
    assert_eq!(
        replica.confirmations.load(SeqCst),
        1,
        "nothing is to be sent"
    );
    assert_eq!(endpoint.got().len(), 1);
}

/// A confirmation is good for the request that follows it at once, and for nothing later.
#[tokio::test]
async fn each_request_is_confirmed_after_whatever_came_before_it() {
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let replica = Replica::new();
    replica.subscribe(&EventSubscriptionOptions {
        handshake: Handshake::Off.number(),
        ..options(&endpoint)
    });
    replica.pauses.store(true, SeqCst);
    replica.connect("a");
    let (_running, _) = deliver(&replica);
    // It is confirmed, and finds nothing to be sent then.
    replica.until_asked(1).await;
    let seen = replica.scans_before_pause.load(SeqCst) + 2 * SCANS;
    replica.until_scanned(seen).await;
    replica.is_confirmed.store(false, SeqCst);
    replica.set_state(State::Active);
    replica.until_asked(3).await;
    assert!(endpoint.posts().is_empty(), "somebody else may lead");
    replica.is_confirmed.store(true, SeqCst);
    replica
        .until("it is delivered", |row| row.through == 1)
        .await;
}

/// A trial that gets no answer says nothing of what the endpoint wants: perhaps this node alone does not reach it.
#[tokio::test]
async fn consent_is_withdrawn_by_an_answer_alone() {
    // It closes the connection, or says half of something.
    for answer in ["", "HTTP/1.1 200 OK\r\n"] {
        let endpoint = TestEndpoint::new(move |_| answer.to_owned()).await;
        let tried = validate(&options(&endpoint)).await;
        assert!(!tried.is_accepted && !tried.is_refused, "{}", tried.answer);
    }
    // So does what a gateway says while the endpoint restarts.
    for busy in [
        "502 Bad Gateway",
        "503 Busy",
        "504 Late",
        "408 Late",
        "429 Wait",
    ] {
        let endpoint = TestEndpoint::new(move |_| status(busy)).await;
        let tried = validate(&options(&endpoint)).await;
        assert!(!tried.is_accepted && !tried.is_refused, "{}", tried.answer);
    }
    for refusal in [
        "200 OK",
        "403 Forbidden",
        "404 Not Found",
        "405 No",
        "500 Error",
    ] {
        let endpoint = TestEndpoint::new(move |_| status(refusal)).await;
        let tried = validate(&options(&endpoint)).await;
        assert!(tried.is_refused, "{}", tried.answer);
    }
    let endpoint = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let tried = validate(&options(&endpoint)).await;
    assert!(tried.is_accepted && !tried.is_refused, "{}", tried.answer);
}

async fn validate(options: &EventSubscriptionOptions) -> Tried {
    let settings = EventSettings::default();
    let validation = trial::Kind::Validation;
    let files = Files::default();
    try_out("ops", options, &settings, &files, validation, wall_now()).await
}

#[tokio::test]
async fn what_is_declared_and_refused_is_declared_again() {
    let endpoint = TestEndpoint::new(|_| status("200 OK")).await;
    let replica = Replica::new();
    let names = |number| format!("s-{number}");
    for number in 0..limits::EVENT_SUBSCRIPTIONS {
        replica.subscribe_as(&names(number), &options(&endpoint));
    }
    let mut config = Config::default();
    config.events.webhook_url = "https://events.example/quorumq".to_owned();
    let declared = Declared::new(&config);
    assert_eq!(declared.declare(&*replica).await, Told::Refused);
    let end = DeleteEventSubscription { name: names(3) };
    replica.run(CLUSTER, Kind::DeleteEventSubscription(end));
    replica.accounts_lost.store(1, SeqCst);
    assert_eq!(declared.declare(&*replica).await, Told::Unknown);
    assert_eq!(declared.declare(&*replica).await, Told::InForce);
    assert_eq!(declared.declare(&*replica).await, Told::InForce);
    let nothing = Declared::new(&Config::default());
    assert_eq!(nothing.declare(&*replica).await, Told::InForce);
}
