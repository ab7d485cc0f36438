//! Failover with everything on: nodes with certificates, clients over TLS with passwords, users, rules, bans, tokens,
//! and durable sessions under load. What was answered just before the leader dies holds on every node. P1, D1 to D7.

mod secure;

use cluster_tests::cluster::Cluster;
use cluster_tests::connection::{Connection, Fault, TIMEOUT};
use cluster_tests::delivery::load::Shape;
use cluster_tests::delivery::trial::{self, RECOVERY};
use cluster_tests::trial::seed;
use cluster_tests::wire::{Connect, Message, Packet};
use cluster_tests::{http, wait};
use secure::{Secure, add_user, ask, done};
use std::time::{Duration, Instant};

const NO_SUBSCRIBERS: u8 = 0x10;
const NOT_AUTHORIZED: u8 = 0x87;
const BANNED: u8 = 0x8A;
const ADMINISTRATIVE_ACTION: u8 = 0x98;

/// How long what is withdrawn may go on, anywhere, once the operator has the answer.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(1);

/// Messages acknowledged after each fault.
const SOME: usize = 100;

const PASSWORD: &str = "pencil";

fn of(name: &str, client_id: &str) -> Connect {
    Connect {
        user_name: Some(name.to_owned()),
        password: Some(PASSWORD.into()),
        ..Connect::v5(client_id)
    }
}

/// What the CONNACK says, and the connection. A node that may be behind (0x88, 0x89) is asked again.
#[track_caller]
fn connect(cluster: &Cluster, node: usize, request: &Connect) -> (u8, Connection) {
    let what = format!("node {} to judge {}", node + 1, request.client_id);
    wait::until_ok(&what, RECOVERY, || {
        match Connection::try_connect(cluster.mqtt(node), request) {
            Ok((connection, connack)) if ![0x88, 0x89].contains(&connack.code) => {
                Ok((connack.code, connection))
            }
            other => Err(format!("{:?}", other.map(|(_, connack)| connack))),
        }
    })
}

/// Something that an operator has changed, and what holds since then.
struct Change {
    what: &'static str,
    make: fn(&Cluster, usize),
    /// At one node, which knows everything that was answered.
    holds: fn(&Cluster, usize),
}

static CHANGES: [Change; 4] = [
    Change {
        what: "a ban",
        make: |cluster, node| {
            let body = "{\"target\":\"client:outcast\"}";
            done(cluster, node, "POST", "/v1/bans", body);
        },
        holds: |cluster, node| {
            assert_eq!(connect(cluster, node, &of("guest", "outcast")).0, BANNED);
            assert_eq!(
                connect(cluster, node, &of("guest", &format!("in-{node}"))).0,
                0
            );
        },
    },
    Change {
        what: "a rule",
        make: |cluster, node| {
            let rules = "{\"default\":\"allow\",\"rules\":[{\"effect\":\"deny\",\"principals\":{\"names\":[\"guest\"]},\
                         \"broker_resources\":[{\"method\":\"publish\",\"topics\":[\"closed/#\"]}]}]}";
            done(cluster, node, "PUT", "/v1/rules", rules);
        },
        holds: |cluster, node| {
            let (code, mut client) = connect(cluster, node, &of("guest", &format!("rule-{node}")));
            assert_eq!(code, 0);
            let publish = |client: &mut Connection, topic| {
                client.publish(Message {
                    qos: 1,
                    ..Message::new(topic, "1")
                })
            };
            assert_eq!(publish(&mut client, "closed/1"), NOT_AUTHORIZED);
            assert_eq!(publish(&mut client, "open/1"), NO_SUBSCRIBERS);
        },
    },
    Change {
        what: "a token",
        make: |cluster, node| {
            let body = "{\"name\":\"late\",\"scope\":\"admin\"}";
            let made = done(cluster, node, "POST", "/v1/tokens", body);
            // From now on the harness needs it.
            http::show_token(token_in(&made.body));
            done(cluster, node, "DELETE", "/v1/token?name=early", "");
        },
        holds: |cluster, node| {
            // One that has no contact with a majority yet says 503.
            wait::until_ok("who administers to be let in", RECOVERY, || {
                let answer = ask(cluster, node, "GET", "/v1/tokens", "");
                match answer.status {
                    200 => Ok(()),
                    _ => Err(format!("{answer:?}")),
                }
            });
            let address = cluster.nodes[node].http();
            let nobody = http::ask(address, "GET", "/v1/tokens", &[], "");
            assert_eq!(nobody.expect("an answer").status, 401);
        },
    },
    Change {
        what: "a disabled user",
        make: |cluster, node| {
            done(
                cluster,
                node,
                "POST",
                "/v1/user?name=leaver",
                "{\"disabled\":true}",
            );
        },
        holds: |cluster, node| {
            let request = of("leaver", &format!("leaver-{node}"));
            assert_eq!(connect(cluster, node, &request).0, NOT_AUTHORIZED);
        },
    },
];

fn token_in(body: &str) -> String {
    let made: serde_json::Value = serde_json::from_str(body).expect("JSON");
    made["token"].as_str().expect("a token").to_owned()
}

/// Live connections at every node, of those whose end the changes are.
fn live(cluster: &Cluster, what: &str) -> Vec<(usize, Connection)> {
    let name = match what {
        "a disabled user" => "leaver",
        _ => "guest",
    };
    let nodes = 0..cluster.nodes.len();
    let request = |node| of(name, &format!("{name}-{node}"));
    let connected = nodes.map(|node| {
        let (code, connection) = connect(cluster, node, &request(node));
        assert_eq!(code, 0, "{name} at node {}", node + 1);
        (node, connection)
    });
    connected.collect()
}

/// The connection ends with this code, in time from `since` on.
#[track_caller]
fn ends(connection: &mut Connection, code: u8, since: Instant) {
    let left = wait::allowed(WITHDRAWN_WITHIN).saturating_sub(since.elapsed());
    match connection.receive(left) {
        Ok(Packet::Disconnect(disconnect)) => assert_eq!(disconnect.code, code),
        other => panic!("instead of DISCONNECT {code:#04x} within {left:?}: {other:?}"),
    }
}

/// Makes the change at the leader, which dies as soon as it has answered.
fn make_and_kill(cluster: &mut Cluster, change: &Change) -> usize {
    let mut connections = live(cluster, change.what);
    let leader = cluster.wait_leader();
    let follower = (leader + 1) % cluster.nodes.len();
    let outcast = connect(cluster, follower, &of("guest", "outcast"));
    (change.make)(cluster, leader);
    cluster.nodes[leader].kill();
    let answered = Instant::now();
    if change.what == "a ban" {
        let (code, mut connection) = outcast;
        assert_eq!(code, 0, "not yet");
        ends(&mut connection, ADMINISTRATIVE_ACTION, answered);
    }
    for (node, connection) in &mut connections {
        match change.what {
            // Whether it has told the client before it died or not.
            _ if *node == leader => match connection.receive(TIMEOUT) {
                Ok(Packet::Disconnect(disconnect)) if change.what == "a disabled user" => {
                    assert_eq!(disconnect.code, NOT_AUTHORIZED);
                }
                Err(Fault::Closed) => {}
                other => panic!("the node is dead: {other:?}"),
            },
            "a disabled user" => ends(connection, NOT_AUTHORIZED, answered),
            _ => connection.expect_nothing(),
        }
    }
    leader
}

#[test]
fn what_was_answered_outlives_the_leader_with_everything_on() {
    let secure = Secure::new();
    let mut cluster = Cluster::start_with(secure.plan());
    let _doors = secure.open(&mut cluster);
    let body = "{\"name\":\"early\",\"scope\":\"admin\"}";
    let first = done(&cluster, 0, "POST", "/v1/tokens", body);
    http::show_token(token_in(&first.body));
    for name in ["guest", "leaver"] {
        add_user(&cluster, name, PASSWORD);
    }
    let shape = Shape {
        publishers: 2,
        pause: Duration::from_millis(15),
        ..Shape::new("everything", seed())
    };
    let result = trial::with(&mut cluster, &shape, |cluster, load| {
        for (made, change) in CHANGES.iter().enumerate() {
            let leader = make_and_kill(cluster, change);
            cluster.wait_leader_other_than(leader);
            for node in (0..3).filter(|node| *node != leader) {
                (change.holds)(cluster, node);
            }
            load.wait_progress(SOME, RECOVERY);
            cluster.start_node(leader);
            cluster.wait_ready();
            for change in &CHANGES[..=made] {
                for node in 0..3 {
                    eprintln!("{} at node {}", change.what, node + 1);
                    (change.holds)(cluster, node);
                }
            }
            load.wait_progress(SOME, RECOVERY);
        }
    });
    assert_eq!(result.refused, 0, "the load may do everything: {result:?}");
    assert!(result.accepted > 2 * SOME * CHANGES.len(), "{result:?}");
}
