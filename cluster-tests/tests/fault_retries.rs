//! K11 over leader changes: NX, DEL and VDEL that are sent again after a lost answer are applied once and answered as
//! the first time.

use cluster_tests::cluster::Cluster;
use cluster_tests::store::{Request, StoreClient, blob};
use cluster_tests::trial::RECOVERY;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn requests_resent_over_a_leader_change_are_applied_once() {
    let mut cluster = Cluster::start();
    let addresses = cluster.addresses();
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    let resent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|number| {
                let (stop, rounds, resent, addresses) = (&stop, &rounds, &resent, &addresses);
                scope.spawn(move || {
                    let mut client = StoreClient::new(&format!("once-{number}"), addresses, number);
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        one_round(&mut client, number, round);
                        round += 1;
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                    resent.fetch_add(client.connects as u64 - 1, Ordering::Relaxed);
                })
            })
            .collect();
        let progress = |count: u64| {
            let goal = rounds.load(Ordering::Relaxed) + count;
            cluster_tests::wait::until("rounds to go on", RECOVERY, || {
                let failed = workers.iter().any(|worker| worker.is_finished());
                (failed || rounds.load(Ordering::Relaxed) >= goal).then_some(())
            });
        };
        progress(20);
        for round in 0..4 {
            let leader = cluster.wait_leader();
            if round % 2 == 0 {
                cluster.nodes[leader].kill();
                progress(20);
                cluster.start_node(leader);
            } else {
                cluster.nodes[leader].pause();
                progress(20);
                cluster.nodes[leader].resume();
            }
            cluster.wait_ready();
            progress(20);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let resent = resent.load(Ordering::Relaxed);
    assert!(
        resent > 0,
        "no request was sent twice: the test showed nothing"
    );
}

/// Every answer is known beforehand, because nobody else uses these keys.
fn one_round(client: &mut StoreClient, number: usize, round: usize) {
    let within = Duration::from_secs(40);
    let key = format!("once/{number}/{round}");
    let steps: [(Request, &[u8]); 8] = [
        (Request::of(["SET", &key, "a", "NX"]), b"+OK\r\n"),
        (Request::get(&key), &blob(b"a")),
        (Request::vdel(&key, "a"), b":1\r\n"),
        (Request::of(["SET", &key, "b", "NX"]), b"+OK\r\n"),
        (Request::of(["SET", &key, "c", "NX"]), b":-1\r\n"),
        (Request::vdel(&key, "a"), b":-1\r\n"),
        (Request::del(&key), b":1\r\n"),
        (Request::del(&key), b":0\r\n"),
    ];
    for (request, wanted) in steps {
        let reply = client.call_until_answered(&request, within);
        assert_eq!(
            String::from_utf8_lossy(&reply.payload),
            String::from_utf8_lossy(wanted),
            "K11: {:?}",
            String::from_utf8_lossy(&request.payload)
        );
    }
}
