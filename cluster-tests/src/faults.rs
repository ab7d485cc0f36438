//! Faults of nodes and of the network between them, at random.

use crate::cluster::Cluster;
use crate::random::Random;
use std::thread::sleep;
use std::time::Duration;

/// A setting of the long hunts, in the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// One fault, and the time after which it is over. The cluster has a network ([`Plan::network`]).
///
/// [`Plan::network`]: crate::cluster::Plan::network
pub fn one(cluster: &mut Cluster, random: &mut Random) {
    let victim = random.below(cluster.nodes.len() as u64) as usize;
    let while_down = Duration::from_millis(random.below(4000));
    let fault = random.below(8);
    eprintln!(
        "chaos: fault {fault} on node {} for {while_down:?}",
        victim + 1
    );
    match fault {
        0 | 1 => {
            cluster.nodes[victim].kill();
            sleep(while_down);
            cluster.start_node(victim);
        }
        2 => {
            cluster.nodes[victim].pause();
            sleep(while_down);
            cluster.nodes[victim].resume();
        }
        3 => {
            cluster.nodes[victim].pause();
            sleep(while_down);
            cluster.nodes[victim].kill();
            cluster.start_node(victim);
        }
        5 | 6 => {
            let other = (victim + 1) % cluster.nodes.len();
            match random.below(3) {
                0 => cluster.network().isolate(victim),
                1 => cluster.network().separate(victim, other),
                _ => cluster.network().cut(victim, other),
            }
            sleep(while_down);
            cluster.network().heal();
        }
        4 => {
            cluster.nodes[victim].terminate();
            sleep(while_down);
            cluster.start_node(victim);
        }
        _ => {
            for node in &mut cluster.nodes {
                node.kill();
            }
            for index in 0..cluster.nodes.len() {
                cluster.start_node(index);
            }
        }
    }
}
