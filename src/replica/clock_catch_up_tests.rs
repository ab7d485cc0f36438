//! An operator moves log time.

use super::*;

#[test]
fn an_operator_moves_log_time_to_clocks_that_were_all_set_forward() {
    let mut cluster = Cluster::new(machines([0, 0, 0]), 11);
    cluster.run(5);
    for machine in &mut cluster.machines {
        machine.wall_off_us = 7_200 * S;
    }
    // Log time that is far behind runs a twentieth faster: leases that are given from then on are judged.
    for _ in 0..30 {
        cluster.lowest = None;
        cluster.run(1);
    }
    assert!(cluster.ahead() < 5 * S, "nothing jumps by itself");
    let (leader, term) = (cluster.leader, cluster.term);
    let at = cluster.at(leader);
    let follower = cluster.nodes[(leader + 1) % 3].catch_up(term, at);
    assert_eq!(follower, Err(CatchUpError::NotLeading));
    let other_term = cluster.nodes[leader].catch_up(term + 1, at);
    assert_eq!(other_term, Err(CatchUpError::NotLeading));
    let moved = cluster.nodes[leader].catch_up(term, at).expect("it leads");
    assert!(moved > Duration::from_secs(7_190), "{moved:?}");
    cluster.lowest = None;
    cluster.run(1);
    assert!((cluster.ahead() - 7_200 * S).abs() < S);
    let at = cluster.at(leader);
    let again = cluster.nodes[leader].catch_up(term, at);
    assert!(again.expect("it leads") < Duration::from_secs(1));
    // Clocks that are behind move nothing back.
    for machine in &mut cluster.machines {
        machine.wall_off_us = 0;
    }
    cluster.run(30);
    let at = cluster.at(leader);
    let back = cluster.nodes[leader].catch_up(term, at);
    assert_eq!(back, Ok(Duration::ZERO));
}

#[test]
fn log_time_does_not_jump_to_the_middle_of_clocks_that_differ() {
    let mut cluster = Cluster::new(machines([0, 0, 0]), 13);
    cluster.run(5);
    let set_forward = |cluster: &mut Cluster, machine: usize, seconds: i64| {
        cluster.machines[machine].wall_off_us = seconds * S;
        for _ in 0..5 {
            cluster.lowest = None;
            cluster.run(1);
        }
        let (leader, term) = (cluster.leader, cluster.term);
        let at = cluster.at(leader);
        cluster.nodes[leader].catch_up(term, at)
    };
    // An operator has set one clock, then another one wrongly.
    let moved = set_forward(&mut cluster, 1, 3_600).expect("two agree");
    assert!(moved < Duration::from_secs(1), "{moved:?}");
    let moved = set_forward(&mut cluster, 2, 40_000_000);
    assert_eq!(moved, Err(CatchUpError::NoMajority));
}
