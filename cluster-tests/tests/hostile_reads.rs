//! P12: reads that cost much, of the state store and of the administration, beside clients that behave.

use cluster_tests::attacks;
use cluster_tests::cluster::Cluster;
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
                    let mut scans = 0;
                    while began.elapsed() < ATTACK {
                        for request in [
                            // A page, and a look at all keys for one that is not there.
                            Request::of(["SCAN", "scanned/*"]),
                            Request::of(["SCAN", "scanned/*/none"]),
                        ] {
                            let outcome = client.try_call(&request, TIMEOUT);
                            scans += usize::from(matches!(outcome, CallOutcome::Answered(_)));
                        }
                    }
                    eprintln!("{scans} SCANs answered");
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
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let node = &cluster.nodes[0];
                let paths = [
                    "/v1/sessions",
                    "/v1/retained?filter=%23",
                    "/v1/sessions?connected=true",
                ];
                scope.spawn(move || {
                    let (mut lists, mut bytes) = (0, 0);
                    while began.elapsed() < ATTACK {
                        if let Some(answer) = node.get(paths[(thread + lists) % paths.len()]) {
                            bytes += answer.body.len();
                        }
                        lists += 1;
                    }
                    eprintln!("{lists} lists, {bytes} bytes");
                });
            }
        });
    });
}
