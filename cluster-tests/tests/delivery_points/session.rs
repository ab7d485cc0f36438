//! The durable session of a client, before its node dies and after.

use cluster_tests::connection::Connection;
use cluster_tests::delivery::failover_client::FailoverClient;
use cluster_tests::delivery::trial::RECOVERY;
use cluster_tests::wire::Connect;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Connects a durable client again, to whichever node serves; its session must be there (S1).
#[track_caller]
pub fn resume(client_id: &str, nodes: &[SocketAddr]) -> Connection {
    let connect = Connect::v5(client_id).durable(600);
    let deadline = Instant::now() + RECOVERY;
    let never = AtomicBool::new(false);
    let (connection, connack) = FailoverClient::new(nodes, 0)
        .connect(&connect, &never)
        .expect("it is not told to stop");
    assert!(Instant::now() < deadline, "{client_id}: no node serves");
    assert!(connack.session_present, "S1: {client_id} at {nodes:?}");
    connection
}

/// Connects a durable client for the first time; its session must be new (S2).
#[track_caller]
pub fn open(client_id: &str, node: SocketAddr) -> Connection {
    let (connection, connack) = Connection::connect(node, &Connect::v5(client_id).durable(600));
    assert!(!connack.session_present, "S2: {client_id}");
    connection
}
