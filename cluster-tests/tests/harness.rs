//! The harness itself, on real nodes: what it says of a cluster that hangs.

use cluster_tests::cluster::Cluster;

/// The diagnosis must not need answers: one node is paused, one has ended.
#[test]
fn a_diagnosis_names_the_threads_and_the_log_of_every_node() {
    let mut cluster = Cluster::start();
    cluster.nodes[1].pause();
    cluster.nodes[2].kill();
    let text = cluster.diagnosis();
    for (index, state) in [(0, "(sleeping) in "), (1, "(stopped) in ")] {
        let id = cluster.nodes[index].id;
        let pid = cluster.nodes[index].pid().expect("it was not killed");
        let part = format!("--- node {id}: process {pid}, its threads");
        let (_, described) = text.split_once(&part).expect("every node has a part");
        let threads = described.split("---").next().unwrap_or_default();
        assert!(threads.contains(state), "{part}\n{threads}");
        // The main thread has the number of its process, and the name of the program.
        assert!(
            threads.contains(&format!("{pid} quorumq (")),
            "{part}\n{threads}"
        );
        let log = format!("--- node {id}: the last lines of ");
        let (_, log) = text.split_once(&log).expect("every node has a log");
        assert!(log.lines().nth(1).is_some_and(|line| !line.is_empty()));
    }
    assert!(text.contains("--- node 3: does not run"), "{text}");
    cluster.nodes[1].resume();
}
