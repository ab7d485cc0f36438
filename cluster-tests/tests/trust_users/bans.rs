//! Who is kept out: by an operator, or for a while by what it does.

use super::*;

pub fn a_ban_keeps_out_and_ends(cluster: &Cluster) {
    add(cluster, 0, "loud", "p");
    for target in ["user:loud", "client:banned", "address:127.0.0.0/8"] {
        // A client id has one connection: it is on another node than the operator.
        let is_banned = |at: usize| target != "client:banned" || at == 2;
        let live = cluster.addresses().into_iter().enumerate();
        let live: Vec<(usize, Connection)> = live
            .map(|(at, node)| {
                let client_id = match (target, at) {
                    ("client:banned", 2) => "banned".to_owned(),
                    _ => format!("banned-{at}"),
                };
                (at, logged_in(node, &client_id, "loud", "p"))
            })
            .collect();
        let arguments = ["ban", "add", target, "--seconds", "600", "--reason", "loud"];
        done(cluster, 0, &arguments, "");
        let answered = Instant::now();
        for (at, mut connection) in live {
            match is_banned(at) {
                true if target.starts_with("address:") => {
                    ends(&mut connection, 0x87, answered);
                }
                true => ends(&mut connection, 0x98, answered),
                false => connection.expect_nothing(),
            }
        }
        for node in cluster.addresses() {
            let request = with_password(Connect::v5("banned"), "loud", "p");
            assert_eq!(connect(node, &request).1, 0x8A, "{target}");
        }
        let listed = run(cluster, 1, &["ban", "list"], "");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(
            listed.contains(target) && listed.contains("loud"),
            "{listed}"
        );
        done(cluster, 2, &["ban", "remove", target], "");
        for node in cluster.addresses() {
            let request = with_password(Connect::v5("banned"), "loud", "p");
            assert_eq!(connect(node, &request).1, 0, "{target}");
        }
    }
    done(
        cluster,
        0,
        &["ban", "add", "user:loud", "--seconds", "1"],
        "",
    );
    wait::until("the end of the ban", TIMEOUT, || {
        (code_at(cluster.mqtt(1), V5, "loud", "p") == 0).then_some(())
    });
}

pub fn a_name_that_fails_too_often_has_to_wait(cluster: &Cluster) {
    add(cluster, 0, "guessed", "p");
    let node = cluster.mqtt(0);
    for _ in 0..6 {
        assert_eq!(code_at(node, V5, "guessed", "guess"), 0x87);
    }
    assert_eq!(code_at(node, V5, "guessed", "p"), 0x97);
    assert_eq!(code_at(node, V5, "anna", "pencil"), 0, "others may go on");
    assert_eq!(
        code_at(cluster.mqtt(1), V5, "guessed", "p"),
        0,
        "each node counts"
    );
}

pub fn a_client_that_flaps_has_to_wait(cluster: &Cluster) {
    let request = with_password(Connect::v5("flapping"), "anna", "pencil");
    for round in 0..20 {
        assert_eq!(connect(cluster.mqtt(2), &request).1, 0, "{round}");
    }
    assert_eq!(connect(cluster.mqtt(2), &request).1, 0x97);
    assert_eq!(connect(cluster.mqtt(1), &request).1, 0, "each node counts");
}
