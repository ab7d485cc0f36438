//! What was answered holds, whatever dies then.

use cluster_tests::http;

use super::*;

/// A revocation that is answered holds, whatever dies then.
#[test]
fn a_revocation_outlives_the_leader() {
    let mut cluster = Cluster::start_with(plan());
    add(&cluster, 0, "anna", "pencil");
    for round in 0..3 {
        let name = format!("revoked-{round}");
        add(&cluster, 0, &name, "p");
        let mut live: Vec<(usize, Connection)> = cluster
            .addresses()
            .into_iter()
            .enumerate()
            .map(|(at, node)| (at, logged_in(node, &format!("{name}-{at}"), &name, "p")))
            .collect();
        let leader = cluster.wait_leader();
        let verb = ["disable", "delete", "disable"][round];
        done(&cluster, (leader + 1) % 3, &["user", verb, &name], "");
        cluster.nodes[leader].kill();
        let since = Instant::now();
        for (at, connection) in &mut live {
            if *at != leader {
                ends(connection, 0x87, since);
            }
        }
        cluster.wait_leader_other_than(leader);
        cluster.start_node(leader);
        cluster.wait_ready();
        for node in cluster.addresses() {
            assert_eq!(code_at(node, V5, &name, "p"), 0x87, "{name} at {node}");
            assert_eq!(code_at(node, V5, "anna", "pencil"), 0, "at {node}");
        }
    }
    cluster.assert_states_agree();
}

/// Users are on disk: they are there when all nodes were killed at once.
#[test]
fn users_and_bans_outlive_all_nodes() {
    let mut cluster = Cluster::start_with(plan());
    add(&cluster, 0, "anna", "pencil");
    add(&cluster, 1, "gone", "p");
    done(&cluster, 1, &["user", "delete", "gone"], "");
    done(&cluster, 2, &["ban", "add", "client:never"], "");
    for node in &mut cluster.nodes {
        node.kill();
    }
    for index in 0..3 {
        cluster.start_node(index);
    }
    cluster.wait_ready();
    for node in cluster.addresses() {
        assert_eq!(code_at(node, V311, "anna", "pencil"), 0);
        assert_eq!(scram(node, Algorithm::Sha256, "anna", "pencil").code, 0);
        assert_eq!(code_at(node, V5, "gone", "p"), 0x87);
        assert_eq!(connect(node, &Connect::v5("nobody")).1, 0x87);
        let banned = with_password(Connect::v5("never"), "anna", "pencil");
        assert_eq!(connect(node, &banned).1, 0x8A);
    }
}

/// A password is hashed for long before anything waits for the log. A node that is asked to stop meanwhile carries the
/// change out, and answers. What has not come by then is refused.
#[test]
fn a_change_outlives_the_stop_of_its_node() {
    let mut cluster = Cluster::start_with(Plan {
        extra: "[auth]\npassword_memory_kib = 32768\npassword_passes = 16\n".into(),
        ..Plan::default()
    });
    let pid = cluster.nodes[1].pid().expect("it runs");
    let begun = processor_ticks(pid) + 10;
    let (address, mqtt) = (cluster.nodes[1].addresses.http, cluster.mqtt(1));
    std::thread::scope(|scope| {
        let added = scope.spawn(move || run_at(address, &["user", "add", "anna"], "pencil\n"));
        wait::until("the password to be hashed", TIMEOUT, || {
            (processor_ticks(pid) >= begun).then_some(())
        });
        let head = format!(
            "POST /v1/cluster/transfer HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        );
        let late = http::Begun::new(address, &head, "{}".to_owned());
        cluster.nodes[1].ask_to_stop();
        http::wait_closed(address);
        let code = connect(mqtt, &Connect::v5("late")).1;
        assert_eq!(code, 0x88, "another node is to be asked");
        let answer = late.finish().expect("the node says that it stops");
        assert!(
            answer.status == 503 && answer.body.contains("stopping"),
            "{answer:?}"
        );
        let status = cluster.nodes[1].wait_exit(TIMEOUT);
        assert!(status.success(), "{status}");
        let output = added.join().expect("it does not panic");
        assert!(output.status.success(), "{output:?}");
    });
    assert_eq!(code_at(cluster.mqtt(0), V5, "anna", "pencil"), 0);
}

/// What a process has used so far, in ticks of 10 ms.
fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("the command's name");
    let number = |field: &str| field.parse::<u64>().expect("a number");
    let times = fields.split_whitespace().skip(11).take(2);
    times.map(number).sum()
}
