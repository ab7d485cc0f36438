//! Who is added to the cluster, and who was removed from it.

use quorumq::base::ids::NodeId;
use quorumq::base::proto::raft as pb;
use quorumq::base::proto::raft::change_request::Change;
use quorumq::base::proto::raft::raft_client::RaftClient;
use quorumq::testing::{ChangeError, Peer};
use tonic::Code;

use crate::authority::{Authority, Subject};
use crate::proved::{Metadata, NAME, Proved, append, code, vote};
use crate::raft_support::{eventually, insist};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_asks_only_for_itself_and_only_members_ask_for_others() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let change = |change, forwarded| pb::ChangeRequest {
        group: 0,
        change: Some(change),
        forwarded,
        by_operator: true,
    };
    let node = |id, address: &str, directory: &str| {
        Change::Join(pb::Node {
            id,
            address: address.to_owned(),
            directory: directory.to_owned(),
        })
    };
    let attack = async {
        let here = "127.0.0.1:9";
        let long = format!("{}:1", "a".repeat(1 << 20));
        for (id, request) in [
            (4, change(node(5, here, "d"), false)),
            (4, change(node(4, here, "another"), false)),
            (4, change(node(voter, here, "d"), false)),
            (4, change(node(5, here, "d"), true)),
            (4, change(Change::Remove(voter), false)),
            (4, change(Change::Remove(voter), true)),
            (4, change(Change::Transfer(voter), true)),
            (voter, change(Change::Remove(other), false)),
            (voter, change(node(5, here, "d"), false)),
            // Nobody could reach it, or it could never be taken out again.
            (4, change(node(4, "nowhere", "d"), false)),
            (4, change(node(4, &long, "d"), false)),
            (4, change(node(0, here, "d"), false)),
            (voter, change(node(u64::MAX, here, "d"), true)),
            (voter, change(node(5, here, &long), true)),
        ] {
            for to in [leader, other] {
                let code = code(proved.peer(to, id).change(request.clone()).await);
                assert!(
                    matches!(code, Code::PermissionDenied | Code::InvalidArgument),
                    "node {id}: {request:?}: {code:?}"
                );
            }
        }
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(proved.peer(leader, 4).read_index(read).await.is_err());
        // Under another one's name, whatever is asked.
        for says in [leader, other] {
            let mut peer = proved.peer_that_says(leader, voter, says);
            assert_eq!(code(peer.read_index(read).await), Code::FailedPrecondition);
            let hello = pb::HelloRequest { group: 0 };
            assert_eq!(code(peer.hello(hello).await), Code::FailedPrecondition);
        }
    };
    proved.withstand(attack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_foreign_certificate_is_not_added_and_one_with_a_good_one_is() {
    let mut proved = Proved::start().await;
    let via = proved.cluster.addresses[&1].to_string();
    // It trusts the cluster, which does not trust it.
    let foreign = Authority::new("nodes");
    let directory = proved.directory.path().join("4");
    let files = foreign.files(&directory, NAME, 4);
    files.put_authorities(&[&proved.authority, &foreign]);
    proved.cluster.run(4).await;
    let before = proved.state();
    for _ in 0..3 {
        let joined = proved.cluster.nodes[&4].raft.join(&via).await;
        assert!(joined.is_err(), "{joined:?}");
    }
    assert_eq!(proved.state(), before);
    let trust = proved.cluster.nodes[&4].raft.status();
    assert!(trust.members.is_empty(), "it has learned nothing");
    proved.cluster.kill(4).await;
    files.put_certificate(&proved.authority, &Subject::node(NAME, 4));
    files.put_authorities(&[&proved.authority]);
    proved.cluster.run(4).await;
    insist("a join", || proved.cluster.nodes[&4].raft.join(&via)).await;
    proved.cluster.write("after", "1").await;
    proved.cluster.everywhere("after", "1").await;
}

/// A removed node does not know it, and goes on campaigning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_disturbs_nobody() {
    let proved = Proved::start().await;
    let (leader, voter, other) = proved.followers().await;
    let directory = proved.directory_of(voter);
    let asked = &proved.cluster.nodes[&leader].raft;
    insist("a removal", || asked.remove(NodeId(voter))).await;
    let gone = || (proved.cluster.nodes[&other].raft.status().members.len() == 2).then_some(());
    eventually("the removal", gone).await;
    let term = asked.status().term;
    for to in [leader, other] {
        let metadata = Metadata {
            from: voter,
            directory: directory.clone(),
        };
        let mut peer = RaftClient::with_interceptor(proved.channel(to, voter), metadata);
        let request = pb::VoteRequest {
            vote: vote(term + 1, voter, false),
            last: Some(pb::LogId { term, index: 3 }),
            transfer: true,
            ..pb::VoteRequest::default()
        };
        assert_eq!(code(peer.vote(request).await), Code::PermissionDenied);
        let heartbeat = append(vote(term + 1, voter, true));
        assert_eq!(
            code(peer.heartbeat(heartbeat).await),
            Code::PermissionDenied
        );
        let read = pb::ReadIndexRequest { group: 0 };
        assert!(peer.read_index(read).await.is_err());
    }
    assert_eq!(asked.status().term, term);
}

/// Its certificate is still good, so whoever has that may say that it wants to be added.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_node_is_added_again_by_an_operator_alone() {
    let mut proved = Proved::start().await;
    let (leader, gone, other) = proved.followers().await;
    let asked = &proved.cluster.nodes[&leader].raft;
    insist("a removal", || asked.remove(NodeId(gone))).await;
    proved.cluster.kill(gone).await;
    proved.cluster.run_wiped(gone).await;
    let join = |by_operator| pb::ChangeRequest {
        group: 0,
        change: Some(Change::Join(pb::Node {
            id: gone,
            address: "127.0.0.1:9".to_owned(),
            directory: "d".to_owned(),
        })),
        forwarded: false,
        by_operator,
    };
    // Also after the others have forgotten everything that is not on their disks, and one has got it in a snapshot.
    for round in 0..3 {
        for (to, by_operator) in [(leader, false), (other, false), (leader, true)] {
            let metadata = Metadata {
                from: gone,
                directory: "d".to_owned(),
            };
            let mut peer = RaftClient::with_interceptor(proved.channel(to, gone), metadata);
            let refused = || {
                let mut peer = peer.clone();
                async move {
                    let reply = peer.change(join(by_operator)).await.unwrap();
                    match reply.into_inner().result {
                        // Nobody leads for a moment after a restart.
                        Some(pb::change_reply::Result::Refused(why)) if why.reason != 1 => Ok(why),
                        other => Err(other),
                    }
                }
            };
            let why = insist("a refusal", refused).await;
            assert_eq!((why.reason, why.node), (6, gone), "round {round}: {why:?}");
            let lead = peer.heartbeat(append(vote(1 << 20, gone, true))).await;
            assert_eq!(code(lead), Code::PermissionDenied);
        }
        let via = proved.cluster.addresses[&other].to_string();
        let back = insist("a refusal", || async {
            match proved.cluster.nodes[&gone].raft.join(&via).await {
                Err(ChangeError::Removed(id)) => Ok(id),
                other => Err(other),
            }
        });
        assert_eq!(back.await, NodeId(gone));
        match round {
            0 => {
                for id in [other, leader] {
                    proved.cluster.kill(id).await;
                    proved.cluster.run(id).await;
                }
            }
            1 => {
                let nodes = &proved.cluster.nodes;
                for id in [leader, other] {
                    nodes[&id].raft.snapshot().await.unwrap();
                }
                proved.cluster.run(4).await;
                let joins = || proved.cluster.nodes[&4].raft.join(&via);
                insist("a join", joins).await;
                // Of those who remember, only the new one may lead.
                let raft = &proved.cluster.nodes[&leader].raft;
                insist("a transfer", || raft.transfer_leader(Some(NodeId(4)))).await;
            }
            _ => {}
        }
    }
    let peer = Peer {
        node: NodeId(gone),
        address: proved.cluster.addresses[&gone].to_string(),
    };
    let asked = &proved.cluster.nodes[&other].raft;
    insist("to be named again", || asked.add(peer.clone())).await;
    proved.cluster.write("after", "1").await;
    proved.cluster.everywhere("after", "1").await;
}
