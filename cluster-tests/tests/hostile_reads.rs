//! P12: reads that cost much, of the state store and of the administration, beside clients that behave.

use cluster_tests::attacks;
use cluster_tests::cluster::{Cluster, Node};
use cluster_tests::connection::TIMEOUT;
use cluster_tests::hostile::{Crowd, Terms, beside, beside_on};
use cluster_tests::store::{CallOutcome, Request, StoreClient, blob};
use cluster_tests::wait::allowed;
use cluster_tests::wire::Connect;
use std::time::{Duration, Instant};

attacks![scans_of_large_values, lists_of_many_sessions];

/// How long an attack goes on.
const ATTACK: Duration = Duration::from_secs(5);

/// The longest time of a GET beside the SCANs.
const GET_WITHIN: Duration = Duration::from_secs(1);

/// What each hostile client must have been answered at least, or it was no attack: a hundredth of what was seen.
const FEWEST: usize = 20;

/// SCANs over 200 MB of values; beside them GETs of one small value.
fn scans_of_large_values(cluster: &mut Cluster) {
    const VALUES: usize = 200;
    let mut seeder = StoreClient::connected("seeder", cluster.mqtt(0));
    for number in 0..VALUES {
        let request = Request::set(format!("scanned/{number}"), vec![b'v'; 1_000_000]);
        seeder.expect(&request, "+OK\r\n");
    }
    seeder.expect(&Request::set("small", "1"), "+OK\r\n");
    let terms = Terms {
        memory_growth: 192 << 20,
        ..Terms::default()
    };
    let longest = beside_on(cluster, &terms, |cluster| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..4 {
                let address = cluster.mqtt(0);
                scope.spawn(move || {
                    let mut client = StoreClient::connected(&format!("hostile-{client}"), address);
                    let scans = scan_until(&mut client, began + ATTACK);
                    eprintln!("{scans:?} SCANs answered");
                    assert!(scans.iter().all(|scans| *scans >= FEWEST), "{scans:?}");
                });
            }
            let mut reader = StoreClient::connected("reader", cluster.mqtt(0));
            let mut longest = Duration::ZERO;
            while began.elapsed() < ATTACK {
                let asked = Instant::now();
                reader.expect(&Request::get("small"), blob(b"1"));
                longest = longest.max(asked.elapsed());
            }
            longest
        })
    });
    eprintln!("longest GET {longest:?}");
    assert!(
        longest < allowed(GET_WITHIN),
        "a GET beside the SCANs took {longest:?}"
    );
}

/// Asks for a page of keys, and for a key that is not among them, which takes a look at all; how often either was
/// answered with what is there.
fn scan_until(client: &mut StoreClient, end: Instant) -> [usize; 2] {
    let mut answered = [0; 2];
    while Instant::now() < end {
        let asked = [("scanned/*", true), ("scanned/*/none", false)];
        for ((pattern, finds), answered) in asked.into_iter().zip(&mut answered) {
            match client.try_call(&Request::of(["SCAN", pattern]), TIMEOUT) {
                CallOutcome::Answered(reply) => {
                    let text = String::from_utf8_lossy(&reply.payload);
                    // How many keys there are is the second line, whether a page follows or not.
                    let found = text.lines().nth(1).is_some_and(|line| line != "*0");
                    let is_right = text.starts_with('*') && found == finds;
                    assert!(is_right, "SCAN {pattern}: {text}");
                    *answered += 1;
                }
                other => panic!("SCAN {pattern}: {other:?}"),
            }
        }
    }
    answered
}

/// 20,000 sessions, and lists of them over HTTP in a loop.
fn lists_of_many_sessions(cluster: &mut Cluster) {
    const SESSIONS: usize = 20_000;
    Crowd::raise_limits();
    for first in (0..SESSIONS).step_by(5_000) {
        let name = |number: usize| format!("listed-{}", first + number);
        let crowd = Crowd::connect(
            &cluster.addresses(),
            5_000,
            |number| Connect::v5(&name(number)).durable(600),
            |_| None,
        );
        crowd.hang_up();
    }
    beside(cluster, |cluster| {
        let end = Instant::now() + ATTACK;
        std::thread::scope(|scope| {
            for first in 0..4 {
                let node = &cluster.nodes[0];
                scope.spawn(move || {
                    let (lists, bytes) = list_until(node, first, end);
                    eprintln!("{lists:?} lists, {bytes} bytes");
                    assert!(lists.iter().all(|lists| *lists >= FEWEST), "{lists:?}");
                });
            }
        });
    });
}

/// Asks for one list after the other, beginning with the `first`; how often each was there, and the bytes of all.
fn list_until(node: &Node, first: usize, end: Instant) -> ([usize; 3], usize) {
    // Each with what must be in it.
    const LISTS: [(&str, &str); 3] = [
        ("/v1/sessions", "listed-"),
        ("/v1/retained?filter=%23", "["),
        ("/v1/sessions?connected=true", "bystander-"),
    ];
    let (mut lists, mut bytes) = ([0; LISTS.len()], 0);
    for number in (0..LISTS.len()).cycle().skip(first) {
        if Instant::now() > end {
            break;
        }
        let (path, part) = LISTS[number];
        let Some(answer) = node.get(path) else {
            continue;
        };
        let start: String = answer.body.chars().take(200).collect();
        assert_eq!(answer.status, 200, "{path}: {start}");
        assert!(answer.body.contains(part), "no {part} in {path}: {start}");
        lists[number] += 1;
        bytes += answer.body.len();
    }
    (lists, bytes)
}
