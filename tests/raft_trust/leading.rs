//! Who is no voter, or was one, and would lead or vouch for who does.

use std::time::{Duration, Instant};

use bytes::Bytes;
use quorumq::base::ids::NodeId;
use quorumq::base::proto::raft::{self as pb, snapshot_part::Part};
use quorumq::testing::RaftConfig;
use tonic::Code;

use crate::liar::Liar;
use crate::proved::{
    NAME, PATIENT, Proved, append, append_answer, code, snapshot_code, trust, vote,
};
use crate::raft_support::{self, eventually, insist};

/// Node 4, which is no voter, tries everything that a leader or a candidate may do at `left`.
async fn tries_to_lead(proved: &Proved, left: u64, term: u64) {
    let mut peer = proved.peer(left, 4);
    let mut request = append(vote(term + 1, 4, true));
    let refused = peer.heartbeat(request.clone()).await;
    assert_eq!(code(refused), Code::PermissionDenied);
    let index = proved.cluster.nodes[&left].raft.status().last_log;
    request.previous = Some(pb::LogId { term, index });
    request.entries = vec![pb::Entry {
        term: term + 1,
        index: index + 1,
        kind: 1,
        payload: Bytes::from_static(b"forged=1"),
    }];
    assert_eq!(append_answer(&mut peer, request).await, None);
    let begin = Part::Begin(pb::SnapshotBegin {
        vote: vote(term + 1, 4, true),
        ..pb::SnapshotBegin::default()
    });
    let refused = snapshot_code(proved.peer(left, 4), vec![begin]).await;
    assert_eq!(refused, Code::PermissionDenied);
    let request = pb::VoteRequest {
        vote: vote(term + 1, 4, false),
        last: Some(pb::LogId {
            term,
            index: 1 << 40,
        }),
        ..pb::VoteRequest::default()
    };
    assert_eq!(code(peer.vote(request).await), Code::PermissionDenied);
}

/// Nobody is there whose leadership would speak against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_no_voter_leads_nobody_while_no_leader_is_heard() {
    let mut proved = Proved::start().await;
    let (leader, voter, left) = proved.followers().await;
    for id in [leader, voter] {
        proved.cluster.kill(id).await;
    }
    // Also one that was started just now, and has heard nobody yet.
    for restarts in [false, true] {
        if restarts {
            proved.cluster.kill(left).await;
            proved.cluster.run(left).await;
        } else {
            // The leader's lease is over then. That is a matter of time alone, which no status tells.
            tokio::time::sleep(Duration::from_millis(PATIENT.election_max_ms)).await;
        }
        // A node that was started just now says nothing of itself until it has read its log.
        let told = || Some(proved.state()).filter(|all| !all[0].2.is_empty());
        let before = eventually("the members as the node knows them", told).await;
        let term = before[0].0;
        for _ in 0..3 {
            // It is answered when those who are asked have answered, or could have.
            tries_to_lead(&proved, left, term).await;
        }
        assert_eq!(proved.state(), before);
    }
    for id in [leader, voter] {
        proved.cluster.run(id).await;
    }
    proved.cluster.write("after", "1").await;
    proved.cluster.everywhere("after", "1").await;
}

/// The addresses of removed nodes are still named; who holds their certificates answers there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_removed_vouches_neither_for_itself_nor_for_another_that_was() {
    let mut proved = Proved::start().await;
    let (leader, voter, left) = proved.followers().await;
    let via = proved.cluster.addresses[&left].to_string();
    for id in [4, 5] {
        proved.cluster.run(id).await;
        let joins = || proved.cluster.nodes[&id].raft.join(&via);
        insist("a join", joins).await;
        let asked = &proved.cluster.nodes[&leader].raft;
        insist("a removal", || asked.remove(NodeId(id))).await;
        proved.cluster.kill(id).await;
        proved.cluster.addresses.remove(&id);
    }
    proved.cluster.write("removed", "1").await;
    proved.cluster.everywhere("removed", "1").await;
    for id in [leader, voter, left] {
        proved.cluster.kill(id).await;
    }
    let mut liars = Vec::new();
    for (id, says) in [(4, leader), (4, left), (4, 4), (5, 5), (5, voter)] {
        let directory = proved.directory.path().join(format!("liar{id}"));
        let trust = trust(&proved.authority.files(&directory, NAME, id), id);
        let says = pb::HelloReply {
            node: says,
            membership: Some(pb::LogId {
                term: 1 << 20,
                index: 1 << 40,
            }),
            voters: vec![4],
            ..pb::HelloReply::default()
        };
        liars.push(Liar::start(trust, says).await);
    }
    let named = liars.iter().map(|liar| liar.address.to_string()).collect();
    let change = |config: &mut RaftConfig| config.named = named;
    proved.cluster.run_with(left, change).await;
    let told = || Some(proved.state()).filter(|all| !all[0].2.is_empty());
    let before = eventually("the members as the node knows them", told).await;
    // What they have said counts once all have been asked again since.
    for _ in 0..3 {
        let asked: Vec<_> = liars.iter().map(Liar::asked).collect();
        let deadline = Instant::now() + Duration::from_secs(30);
        while liars
            .iter()
            .zip(&asked)
            .any(|(liar, asked)| liar.asked() == *asked)
        {
            assert!(Instant::now() < deadline, "they are asked");
            tries_to_lead(&proved, left, before[0].0).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(proved.state(), before);
    for id in [leader, voter] {
        proved.cluster.run(id).await;
    }
    proved.cluster.write("after", "1").await;
    proved.cluster.everywhere("after", "1").await;
}

/// A node that was away for all changes: others that it knows, or its operator, vouch for who leads now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_learns_from_those_it_knows_who_votes() {
    let mut proved = Proved::start().await;
    let (leader, other, away) = proved.followers().await;
    proved.cluster.kill(away).await;
    let via = proved.cluster.addresses[&leader].to_string();
    for id in [4, 5] {
        proved.cluster.run(id).await;
        let joins = || proved.cluster.nodes[&id].raft.join(&via);
        insist("a join", joins).await;
    }
    let lead = |asked: u64, id| {
        let raft = proved.cluster.nodes[&asked].raft.clone();
        async move { insist("a transfer", || raft.transfer_leader(Some(NodeId(id)))).await }
    };
    lead(leader, 4).await;
    proved.cluster.write("of four", "1").await;
    proved.cluster.run(away).await;
    proved.cluster.everywhere("of four", "1").await;
    // Now nobody is left that it knew when it went.
    proved.cluster.kill(away).await;
    for id in [6, 7] {
        proved.cluster.run(id).await;
        let joins = || proved.cluster.nodes[&id].raft.join(&via);
        insist("a join", joins).await;
    }
    for id in [leader, other, 4, 5] {
        let asked = &proved.cluster.nodes[&7].raft;
        insist("a removal", || asked.remove(NodeId(id))).await;
        proved.cluster.kill(id).await;
        proved.cluster.addresses.remove(&id);
    }
    proved.cluster.run(away).await;
    // With the third voter away the two others have the majority, and it does not follow them.
    proved.cluster.write("of seven", "1").await;
    let leads = proved.cluster.leader().await;
    assert!([6, 7].contains(&leads), "node {leads} leads");
    let term = proved.cluster.nodes[&leads].raft.status().term;
    for _ in 0..3 {
        // As the leader says it. It is answered when those have answered whom the node asks.
        let mut peer = proved.peer(away, leads);
        let refused = peer.heartbeat(append(vote(term, leads, true))).await;
        assert_eq!(code(refused), Code::PermissionDenied);
    }
    let behind = &proved.cluster.nodes[&away].raft;
    assert_eq!(raft_support::row(&*behind.backing(), "of seven"), None);
    assert!(behind.status().member(NodeId(6)).is_none());
    proved.cluster.kill(away).await;
    // Nobody vouches for itself, so the one that leads is vouched for by the other.
    let named = [6, 7].map(|id| proved.cluster.addresses[&id].to_string());
    proved
        .cluster
        .run_with(away, |config| config.named = named.to_vec())
        .await;
    proved.cluster.everywhere("of seven", "1").await;
}

/// One that was removed runs on, with a membership that is newer than that of the node that was away, and older than the
/// present one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_voter_keeps_no_node_from_asking_at_the_named_addresses() {
    let mut proved = Proved::start().await;
    let (leader, other, away) = proved.followers().await;
    let via = proved.cluster.addresses[&leader].to_string();
    for id in [4, 5] {
        proved.cluster.run(id).await;
        let joins = || proved.cluster.nodes[&id].raft.join(&via);
        insist("a join", joins).await;
    }
    proved.cluster.write("of five", "1").await;
    proved.cluster.everywhere("of five", "1").await;
    proved.cluster.kill(away).await;
    for id in [5, 4] {
        // The fourth learns that the fifth is gone, and is removed then.
        proved.cluster.write("of fewer", &id.to_string()).await;
        eventually("the fourth to have applied it", || {
            let row = raft_support::row(&*proved.cluster.nodes[&4].raft.backing(), "of fewer");
            (row == Some(id.to_string().into())).then_some(())
        })
        .await;
        let asked = &proved.cluster.nodes[&other].raft;
        insist("a removal", || asked.remove(NodeId(id))).await;
    }
    for id in [6, 7] {
        proved.cluster.run(id).await;
        let joins = || proved.cluster.nodes[&id].raft.join(&via);
        insist("a join", joins).await;
    }
    for id in [leader, other] {
        let asked = &proved.cluster.nodes[&7].raft;
        insist("a removal", || asked.remove(NodeId(id))).await;
    }
    for id in [leader, other, 5] {
        proved.cluster.kill(id).await;
        proved.cluster.addresses.remove(&id);
    }
    // Nobody vouches for itself, so the one that leads is vouched for by the other.
    let named = [6, 7].map(|id| proved.cluster.addresses[&id].to_string());
    proved
        .cluster
        .run_with(away, |config| config.named = named.to_vec())
        .await;
    proved.cluster.write("of seven", "1").await;
    eventually("who was away to follow", || {
        let row = raft_support::row(&*proved.cluster.nodes[&away].raft.backing(), "of seven");
        (row.as_deref() == Some(b"1")).then_some(())
    })
    .await;
}
