//! Sessions: who owns them, when they end, their subscriptions and wills.

use super::{Replica, close, open, wills, with_will};
use crate::base::ids::ConnectionId;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::{EndReason, Output, Reply};

#[test]
fn a_session_is_found_again_until_its_expiry() {
    let mut replica = Replica::new();
    assert!(!replica.present(open("a", 1)));
    replica.run(vec![close("a", 1)]);
    replica.pass(99_999);
    replica.restart();
    assert!(
        replica.present(open("a", 2)),
        "expiry counts from the end of the connection"
    );
    replica.pass(1_000_000);
    replica.run(vec![close("a", 2)]);
    replica.pass(100_000);
    assert!(!replica.present(open("a", 3)), "expired");
    assert!(!replica.present(command::OpenSession {
        clean_start: true,
        ..open("a", 4)
    }));
}

#[test]
fn a_second_connection_takes_the_session_over() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let outputs = replica.run(vec![Kind::OpenSession(open("a", 2))]);
    let ended = Output::End {
        connection: ConnectionId(1),
        reason: EndReason::TakenOver,
    };
    assert!(
        outputs
            .iter()
            .any(|output| format!("{output:?}") == format!("{ended:?}")),
        "{outputs:?}"
    );
    let late = replica.reply(close("a", 1));
    assert!(
        matches!(late, Reply::NotOwner),
        "the old connection has nothing to say any more"
    );
    assert!(replica.present(open("a", 3)));
}

#[test]
fn subscriptions_outlive_memory_and_end_with_their_session() {
    let mut replica = Replica::new();
    replica.present(open("a", 1));
    let subscription = command::Subscription {
        filter: "x/+".to_owned(),
        qos: 1,
        ..Default::default()
    };
    let subscribe = |connection| {
        Kind::Subscribe(command::Subscribe {
            client_id: "a".to_owned(),
            connection,
            subscriptions: vec![subscription.clone()],
            ..Default::default()
        })
    };
    assert!(
        matches!(&replica.reply(subscribe(1)), Reply::Subscribed { new, .. } if new == &[true])
    );
    assert!(
        matches!(&replica.reply(subscribe(1)), Reply::Subscribed { new, .. } if new == &[false])
    );
    assert!(matches!(replica.reply(subscribe(9)), Reply::NotOwner));
    replica.restart();
    let matches = |replica: &Replica| {
        let mut count = 0;
        replica
            .machine
            .parts
            .messaging
            .index()
            .for_each_match("x/y", |_, _| count += 1);
        count
    };
    assert_eq!(matches(&replica), 1);
    replica.run(vec![close("a", 1)]);
    replica.pass(100_000);
    assert_eq!(matches(&replica), 0);
}

#[test]
fn a_will_goes_out_once_after_an_abnormal_end() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 0));
    assert_eq!(wills(&replica.run(vec![close("a", 1)])), 1);
    assert_eq!(wills(&replica.pass(200_000)), 0);
    replica.present(with_will(open("a", 2), 0));
    let graceful = command::CloseSession {
        client_id: "a".to_owned(),
        connection: 2,
        discard_will: true,
        ..Default::default()
    };
    assert_eq!(
        wills(&replica.run(vec![Kind::CloseSession(graceful)])),
        0,
        "[MQTT-3.14.4-3]"
    );
    assert_eq!(wills(&replica.pass(200_000)), 0);
}

#[test]
fn a_delayed_will_waits_and_is_cancelled_by_a_resume() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 10));
    assert_eq!(wills(&replica.run(vec![close("a", 1)])), 0);
    replica.restart();
    assert_eq!(wills(&replica.pass(9_999)), 0);
    assert!(
        replica.present(with_will(open("a", 2), 10)),
        "[MQTT-3.1.3-9]"
    );
    assert_eq!(wills(&replica.pass(10_000)), 0);
    replica.run(vec![close("a", 2)]);
    assert_eq!(wills(&replica.pass(10_000)), 1);
}

#[test]
fn a_delayed_will_goes_out_when_its_session_ends_first() {
    let mut replica = Replica::new();
    replica.watch_wills();
    replica.present(with_will(open("a", 1), 1_000));
    replica.run(vec![close("a", 1)]);
    assert_eq!(
        wills(&replica.pass(100_000)),
        1,
        "the session expires after 100 s"
    );
    assert_eq!(wills(&replica.pass(1_000_000)), 0);
    replica.present(with_will(open("b", 2), 1_000));
    let clean = command::OpenSession {
        clean_start: true,
        ..open("b", 3)
    };
    assert_eq!(wills(&replica.run(vec![Kind::OpenSession(clean)])), 1);
}

fn opened_by(principal: &str, open: command::OpenSession) -> Kind {
    let principal = command::Principal {
        name: principal.to_owned(),
        proofs: Vec::new(),
    };
    Kind::OpenSession(command::OpenSession {
        principal: Some(principal),
        ..open
    })
}

#[test]
fn a_session_belongs_to_its_principal() {
    let mut replica = Replica::new();
    let is_opened = |reply: &Reply| matches!(reply, Reply::Opened { .. });
    let is_refused = |reply: &Reply| matches!(reply, Reply::NotAuthorized);
    assert!(is_opened(&replica.reply(opened_by("ann", open("a", 1)))));
    for (connection, clean_start) in [(2, false), (3, true)] {
        for stranger in ["bob", ""] {
            let open = command::OpenSession {
                clean_start,
                ..open("a", connection)
            };
            let outputs = replica.run(vec![opened_by(stranger, open.clone())]);
            let ends = |output: &Output| matches!(output, Output::End { .. });
            assert!(!outputs.iter().any(ends), "it is no take-over: {outputs:?}");
            assert!(is_refused(&replica.reply(opened_by(stranger, open))));
        }
    }
    assert!(
        is_opened(&replica.reply(opened_by("ann", open("a", 4)))),
        "its own"
    );
    replica.run(vec![close("a", 4)]);
    replica.restart();
    assert!(
        is_refused(&replica.reply(opened_by("bob", open("a", 5)))),
        "while it is away"
    );
    let delete = command::DeleteSession {
        client_id: "a".to_owned(),
    };
    assert!(matches!(
        replica.reply(Kind::DeleteSession(delete)),
        Reply::Done
    ));
    assert!(
        is_opened(&replica.reply(opened_by("bob", open("a", 6)))),
        "an operator lets go"
    );
}

#[test]
fn a_session_of_nobody_is_for_the_first_who_proves_a_name() {
    let mut replica = Replica::new();
    assert!(!replica.present(open("a", 1)));
    assert!(replica.present(open("a", 2)), "taken over as ever");
    assert!(matches!(
        replica.reply(opened_by("ann", open("a", 3))),
        Reply::Opened { present: true, .. }
    ));
    assert!(matches!(
        replica.reply(opened_by("bob", open("a", 4))),
        Reply::NotAuthorized
    ));
    replica.run(vec![close("a", 3)]);
    replica.pass(100_000);
    assert!(
        matches!(
            replica.reply(opened_by("bob", open("a", 5))),
            Reply::Opened { .. }
        ),
        "expired"
    );
}

#[test]
fn clients_without_a_name_share_their_sessions() {
    let mut replica = Replica::new();
    let mut open_of = |client_id: &str, principal: &str, connection| {
        let open = command::OpenSession {
            max_sessions_of_principal: 2,
            ..open(client_id, connection)
        };
        let reply = match principal {
            "" => replica.reply(Kind::OpenSession(open)),
            name => replica.reply(opened_by(name, open)),
        };
        replica.restart();
        matches!(reply, Reply::Opened { .. })
    };
    assert!(open_of("a", "", 1) && open_of("b", "", 2));
    assert!(!open_of("c", "", 3), "one more");
    assert!(open_of("b", "ann", 4), "it becomes ann's");
    assert!(open_of("c", "", 5), "and leaves its place");
    assert!(open_of("d", "ann", 6) && !open_of("e", "ann", 7));
    assert!(!open_of("c", "ann", 8), "nor by taking one that nobody has");
    assert!(open_of("b", "ann", 9), "its own goes on");
    assert!(!open_of("e", "", 10));
}

#[test]
fn a_principal_has_as_many_sessions_as_it_may() {
    let mut replica = Replica::new();
    let mut open_of = |client_id: &str, principal: &str, connection| {
        let open = command::OpenSession {
            max_sessions_of_principal: 2,
            ..open(client_id, connection)
        };
        let reply = replica.reply(opened_by(principal, open));
        replica.restart();
        matches!(reply, Reply::Opened { .. })
    };
    assert!(open_of("a", "ann", 1) && open_of("b", "ann", 2));
    assert!(!open_of("c", "ann", 3), "one more");
    assert!(open_of("a", "ann", 4), "its own goes on");
    assert!(
        open_of("c", "bob", 5) && open_of("d", "", 6),
        "others have theirs"
    );
    let end = command::DeleteSession {
        client_id: "b".to_owned(),
    };
    replica.run(vec![Kind::DeleteSession(end)]);
    let open = command::OpenSession {
        max_sessions_of_principal: 2,
        ..open("e", 7)
    };
    assert!(matches!(
        replica.reply(opened_by("ann", open)),
        Reply::Opened { .. }
    ));
}
