//! The wall time of a majority, as each node knows it.

use super::*;

fn assert_right(cluster: &Cluster, node: usize, when: &str) {
    let wall = cluster.machines[node].wall(cluster.real_us);
    let told = cluster.nodes[node].wall(wall, cluster.at(node));
    let wrong_by = us(told) - cluster.real_us;
    assert!(wrong_by.abs() < 2 * S, "{when}: wrong by {wrong_by} us");
}

/// Log time of a cluster whose log time is ahead by a minute: it goes back by a fiftieth.
fn with_log_time_ahead(cluster: &mut Cluster) {
    let ahead = millis(cluster.real_us + 60 * S);
    for node in 0..cluster.nodes.len() {
        let at = cluster.at(node);
        cluster.nodes[node].applied(ahead, at);
    }
    (cluster.log, cluster.lowest) = (ahead, None);
}

#[test]
fn whoever_leads_knows_the_wall_time_of_the_majority() {
    let mut cluster = Cluster::new(machines([0, 600, 0]), 3);
    with_log_time_ahead(&mut cluster);
    cluster.run(5);
    assert_right(&cluster, 1, "a follower");
    // The leader dies. The wrong clock's node leads beside one that differs: no majority agrees.
    cluster.away[0] = true;
    (cluster.leader, cluster.term) = (1, cluster.term + 1);
    for second in 0..30 {
        cluster.run(1);
        assert_eq!(cluster.nodes[1].clocks.agreed(cluster.at(1)), None);
        assert_right(&cluster, 1, &format!("leading for {second} s"));
    }
    assert!(
        cluster.ahead() > 30 * S,
        "log time would not be right instead"
    );
    // Its clock is set right, and wrong again.
    for off_s in [0, -3_600] {
        cluster.machines[1].wall_off_us = off_s * S;
        for second in 0..30 {
            cluster.run(1);
            assert_right(&cluster, 1, &format!("set to {off_s} s for {second} s"));
        }
        cluster.away[0] = false;
    }
}

#[test]
fn a_follower_whose_clock_is_set_knows_the_wall_time_all_the_while() {
    let mut cluster = Cluster::new(machines([0, 600, 0]), 4);
    cluster.run(5);
    for off_s in [0, -600, 0, 3_600, 0] {
        cluster.machines[1].wall_off_us = off_s * S;
        for second in 0..15 {
            cluster.run(1);
            assert_right(&cluster, 1, &format!("set to {off_s} s for {second} s"));
        }
    }
}

/// One node, and all nodes of a cluster at once: there is nothing else to go by, and what is signed with a time of the
/// past is refused.
#[test]
fn clocks_that_are_all_set_right_are_right_at_once() {
    for machines in [vec![right(0)], machines([0, 0, 0])] {
        let mut cluster = Cluster::new(machines, 5);
        cluster.run(5);
        for off_s in [600, 0] {
            for machine in &mut cluster.machines {
                machine.wall_off_us = off_s * S;
            }
            cluster.lowest = None;
            cluster.run(1);
            cluster.lowest = None;
            if off_s == 0 {
                (0..cluster.nodes.len()).for_each(|node| assert_right(&cluster, node, "set back"));
            }
        }
    }
}

#[test]
fn a_node_that_was_told_nothing_goes_by_log_time_and_then_by_its_own_clock() {
    let (own, at) = (Millis(1_000_000), Elapsed::default());
    let mut node = LogTime::default();
    assert_eq!(node.wall(own, at), own);
    node.follow(1, Millis(2_000_000), at);
    assert_eq!(node.wall(own, at), Millis(2_000_000));
    for told in [600_000, 1_400_000, 0] {
        node.told_wall(Some(Millis(told)), at);
        node.told_wall(None, at);
        assert_eq!(node.wall(own, at), Millis(told));
    }
}
