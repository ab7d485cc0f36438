//! Modes with one event for each request: many deliveries share an entry of the log, and nothing is lost or out of
//! order for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::deliveries::{consenting, deliver, options};
use super::endpoint::{Got, TestEndpoint, status};
use super::replica::Replica;
use crate::base::proto::state::EventSubscriptionOptions;
use crate::events::options::{Handshake, Mode, State};
use crate::events::run::{CONFIRMED_MS, RUN_EVENTS};
use crate::machine::read_events;

fn singly(endpoint: &TestEndpoint) -> EventSubscriptionOptions {
    EventSubscriptionOptions {
        mode: Mode::Structured.number(),
        handshake: Handshake::Off.number(),
        ..options(endpoint)
    }
}

/// Events wait for an endpoint that is made now; it answers as is said, and can reach the replica.
async fn waiting(
    events: u64,
    mut post: impl FnMut(&Replica, usize, &Got) -> String + Send + 'static,
) -> (Arc<Replica>, TestEndpoint) {
    let replica = Replica::new();
    let reached = replica.clone();
    let mut posts = 0;
    let endpoint = TestEndpoint::new(consenting(move |got| {
        posts += 1;
        post(&reached, posts, got)
    }))
    .await;
    replica.subscribe(&singly(&endpoint));
    for number in 1..=events {
        replica.connect(&number.to_string());
    }
    (replica, endpoint)
}

/// The sessions of requests, in the order in which they came.
fn sessions(endpoint: &TestEndpoint) -> Vec<String> {
    endpoint.posts().iter().flat_map(Got::sessions).collect()
}

fn numbers(numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers.into_iter().map(|one| one.to_string()).collect()
}

#[tokio::test]
async fn many_deliveries_share_an_entry_of_the_log() {
    let (replica, endpoint) = waiting(300, |_, _, _| status("200 OK")).await;
    let (_running, _) = deliver(&replica);
    replica
        .until("all are delivered", |row| row.through == 300)
        .await;
    assert_eq!(sessions(&endpoint), numbers(1..=300));
    assert_eq!(replica.row().delivered, 300);
    // As few as three; a slow machine ends runs by their time.
    let accounts = replica.accounts.load(SeqCst);
    assert!((300 / RUN_EVENTS..=150).contains(&accounts), "{accounts}");
}

#[tokio::test]
async fn one_alone_is_told_at_once() {
    let (replica, endpoint) = waiting(1, |_, _, _| status("200 OK")).await;
    let (_running, _) = deliver(&replica);
    replica.until("the first", |row| row.delivered == 1).await;
    replica.connect("2");
    replica.until("the second", |row| row.delivered == 2).await;
    assert_eq!(sessions(&endpoint), numbers(1..=2));
}

#[tokio::test]
async fn a_run_that_the_log_was_not_told_of_comes_again_with_the_same_ids() {
    let (replica, endpoint) = waiting(20, |_, _, _| status("200 OK")).await;
    replica.accounts_lost.store(1, SeqCst);
    let (_running, _) = deliver(&replica);
    replica.until("all", |row| row.through == 20).await;
    assert_eq!(replica.row().delivered, 20);
    let posts = endpoint.posts();
    let again = posts.len() - 20;
    assert!((1..=20).contains(&again), "{again}");
    for (first, second) in posts.iter().zip(&posts[again..]).take(again) {
        assert_eq!(first.body, second.body);
    }
    assert_eq!(sessions(&endpoint)[again..], numbers(1..=20));
}

#[tokio::test]
async fn an_operator_who_pauses_it_ends_a_run() {
    let (replica, endpoint) = waiting(20, |replica, posts, _| {
        if posts == 3 {
            replica.set_state(State::Paused);
        }
        status("200 OK")
    })
    .await;
    let (_running, _) = deliver(&replica);
    replica.until("it is told", |row| row.through == 3).await;
    let row = replica.row();
    assert_eq!((row.delivered, row.state), (3, State::Paused.number()));
    replica.set_state(State::Active);
    replica.until("it goes on", |row| row.through == 20).await;
    assert_eq!(sessions(&endpoint), numbers(1..=20));
}

#[tokio::test]
async fn what_is_asked_for_anew_gets_again_what_was_not_told() {
    let other = TestEndpoint::new(consenting(|_| status("200 OK"))).await;
    let anew = singly(&other);
    let (replica, endpoint) = waiting(20, move |replica, posts, _| {
        if posts == 3 {
            replica.subscribe(&anew);
        }
        status("200 OK")
    })
    .await;
    let (_running, _) = deliver(&replica);
    replica.until("all", |row| row.through == 20).await;
    let first = sessions(&endpoint);
    let told = 20 - sessions(&other).len() as u64;
    assert_eq!(first, numbers(1..=3));
    assert!(told < 3, "{told} were told by a run of the former revision");
    assert_eq!(sessions(&other), numbers(told + 1..=20));
}

/// What the endpoint takes for an answer, ms.
const POST_MS: u64 = 5;

#[tokio::test]
async fn who_is_not_confirmed_any_more_goes_on_with_no_run() {
    let (replica, endpoint) = waiting(RUN_EVENTS, |replica, posts, _| {
        if posts == 1 {
            replica.is_confirmed.store(false, SeqCst);
        }
        std::thread::sleep(Duration::from_millis(POST_MS));
        status("200 OK")
    })
    .await;
    let (_running, _) = deliver(&replica);
    replica.until_asked(4).await;
    let sent = endpoint.posts().len() as u64;
    let most = CONFIRMED_MS / POST_MS + 1;
    assert!(sent <= most, "{sent} for one confirmation");
    replica
        .until("they are told", |row| row.through == sent)
        .await;
    replica.is_confirmed.store(true, SeqCst);
    replica
        .until("it leads", |row| row.through == RUN_EVENTS)
        .await;
    assert_eq!(sessions(&endpoint), numbers(1..=RUN_EVENTS));
}

#[tokio::test]
async fn a_poisonous_event_is_parked_within_a_run() {
    let (replica, endpoint) = waiting(20, |_, _, got| match got.sessions()[0].as_str() {
        "5" => status("500 No"),
        "6" => status("413 Large"),
        _ => status("200 OK"),
    })
    .await;
    let (_running, _) = deliver(&replica);
    replica.until("all", |row| row.through == 20).await;
    let row = replica.row();
    assert_eq!((row.delivered, row.parked, row.dead), (18, 1, 1));
    let backing = crate::webhook::leader::Leader::backing(&*replica);
    let parked = read_events::parked(&*backing, "ops", 9);
    assert_eq!(parked[0].1, 5);
    assert_eq!(sessions(&endpoint), numbers(1..=20));
}
