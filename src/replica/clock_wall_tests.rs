//! The wall time of a majority, as each node knows it.

use super::*;

#[test]
fn whoever_leads_knows_the_wall_time_of_the_majority() {
    let mut cluster = Cluster::new(machines([0, 600, 0]), 3);
    let assert_right = |cluster: &Cluster, when: &str| {
        let (node, at) = (&cluster.nodes[1], cluster.at(1));
        let wall = cluster.machines[1].wall(cluster.real_us);
        let wrong_by = us(node.wall(wall, at)) - cluster.real_us;
        assert!(wrong_by.abs() < 2 * S, "{when}: wrong by {wrong_by} us");
    };
    cluster.run(5);
    assert_right(&cluster, "a follower");
    // The leader dies. The wrong clock's node leads beside one that differs: no majority agrees.
    cluster.away[0] = true;
    (cluster.leader, cluster.term) = (1, cluster.term + 1);
    for second in 0..30 {
        cluster.run(1);
        assert_eq!(cluster.nodes[1].clocks.agreed(cluster.at(1)), None);
        assert_right(&cluster, &format!("leading for {second} s"));
    }
    // Its clock is set right, and wrong again.
    for off_s in [0, -3_600] {
        cluster.machines[1].wall_off_us = off_s * S;
        for second in 0..30 {
            cluster.run(1);
            assert_right(&cluster, &format!("set to {off_s} s for {second} s"));
        }
        cluster.away[0] = false;
    }
}

#[test]
fn a_node_that_was_told_nothing_goes_by_log_time_and_then_by_its_own_clock() {
    let (own, at) = (Millis(1_000_000), Elapsed::default());
    let mut node = LogTime::default();
    assert_eq!(node.wall(own, at), own);
    node.follow(1, Millis(2_000_000), at);
    assert_eq!(node.wall(own, at), Millis(2_000_000));
    for (ahead_ms, expected) in [(400_000, 600_000), (-400_000, 1_400_000), (i64::MAX, 0)] {
        node.told_ahead(Some(ahead_ms), own, at);
        node.told_ahead(None, Millis(5), at);
        assert_eq!(node.wall(own, at), Millis(expected), "{ahead_ms}");
    }
}
