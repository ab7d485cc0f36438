//! Clients that leave: what they have sent, and the place that they had.

use super::*;
use crate::connection::places::PrincipalPlaces;
use crate::telemetry::labels::DropReason;

impl Client {
    /// Sends so much, and closes its half when it is read no more.
    async fn sends_and_leaves(&mut self, bytes: &[u8]) {
        self.send(bytes).await;
        let metrics = self.broker.metrics.clone();
        until("the client's packets", || {
            let read = bytes.len().min(limits::HELD_INPUT_BYTES);
            metrics.bytes_received.get() >= read as u64
        })
        .await;
        self.socket.shutdown().await.expect("it is open");
    }
}

/// A connection of the only one that its principal may have, and whether there may be one now.
async fn the_only_one() -> (Client, impl Fn() -> bool) {
    let mut surroundings = Surroundings::for_tests(true);
    let limits = crate::acl::Limits {
        connections: Some(1),
        ..crate::acl::Limits::default()
    };
    let (places, name) = (Arc::<PrincipalPlaces>::default(), Arc::from("ann"));
    let take = move || places.take(&name, &limits, std::time::Instant::now());
    let place = take().expect("it is free").expect("it is bounded");
    surroundings.rights.keep(place);
    (Client::of(surroundings).await, move || take().is_ok())
}

/// Who may have one connection has no other beside those that the node ends.
#[tokio::test]
async fn a_connection_that_lingers_has_the_place_of_its_principal() {
    let (mut client, is_free) = the_only_one().await;
    // Its flags are malformed.
    client.send(b"\xe3\0").await;
    client.proposed().await;
    client.commit();
    client.rest().await;
    assert!(!is_free(), "it lingers");
    drop(client.socket);
    client.task.await.expect("it ends");
    assert!(is_free());
}

#[tokio::test]
async fn whoever_leaves_may_come_again_at_once() {
    let (mut client, is_free) = the_only_one().await;
    client.send(DISCONNECT).await;
    assert!(client.proposed().await.iter().any(is_end));
    until("the place", &is_free).await;
    assert!(!client.task.is_finished(), "the log does not know yet");
}

/// The node can't write any more, and has not read yet.
#[tokio::test]
async fn mqtt_3_14_4_3_a_disconnect_counts_whose_client_has_reset_the_stream_behind_it() {
    let mut client = Client::new().await;
    let (other, _) = connected().await;
    let socket = std::mem::replace(&mut client.socket, other);
    let packet = NewPacket::of(QoS::AtLeastOnce);
    let pushed = client.mailbox.push_packet(packet, |out| {
        out.extend_from_slice(PUBLISH);
        Ok(())
    });
    pushed.expect("it fits");
    let written = socket.try_write(DISCONNECT);
    assert_eq!(written.expect("it is open"), DISCONNECT.len());
    let reset = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    reset.expect("it is open");
    drop(socket);
    client.mailbox.wake();
    client.ends_without_will().await;
}

/// What the connection can't send is no reason to overlook what its client has sent, when the session is taken over.
async fn is_heard_when_taken_over(mut client: Client) {
    client.send(&[PUBLISH, DISCONNECT].concat()).await;
    // What is read is read by then, and nothing but the request wakes the connection.
    tokio::time::sleep(A_MOMENT).await;
    client.taken_over_behind_its_end().await;
}

#[tokio::test]
async fn mqtt_3_14_4_3_a_client_above_the_rate_of_what_it_is_sent_is_handed_over() {
    let mut surroundings = Surroundings::for_tests(true);
    Arc::make_mut(&mut surroundings.options.bounds).rate_out.1 = 1;
    let mut client = Client::of(surroundings).await;
    client.push_large();
    let mut read = vec![0; LARGE];
    client
        .socket
        .read_exact(&mut read)
        .await
        .expect("all of it");
    is_heard_when_taken_over(client).await;
}

#[tokio::test]
async fn mqtt_3_14_4_3_a_client_that_does_not_read_is_handed_over() {
    let mut client = Client::new().await;
    client.push_large();
    client.socket.read_u8().await.expect("it begins");
    let mut unsent = usize::MAX;
    while unsent != client.mailbox.unsent() {
        unsent = client.mailbox.unsent();
        tokio::time::sleep(A_MOMENT).await;
    }
    assert!(unsent > 0, "the socket takes everything");
    is_heard_when_taken_over(client).await;
}

/// A client above its byte rate is not read, so what it had acknowledged before its stream broke is still there when it
/// connects anew.
#[tokio::test]
async fn what_a_client_has_acknowledged_before_its_stream_broke_is_handed_over() {
    let mut surroundings = Surroundings::for_tests(true);
    Arc::make_mut(&mut surroundings.options.bounds).rate_in.1 = 1;
    let mut client = Client::of(surroundings).await;
    client.receive().await;
    client.send(&b"\xc0\0".repeat(50)).await;
    client.socket.read_u8().await.expect("it is answered");
    client.send(b"\x40\x02\0\x01").await;
    let (other, _) = connected().await;
    let socket = std::mem::replace(&mut client.socket, other);
    let reset = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    reset.expect("it is open");
    drop(socket);
    let (broker, owner) = (client.broker.clone(), client.owner());
    let asked = tokio::spawn(async move { broker.services.hand_overs.ask(owner).await });
    let proposed = client.proposed().await;
    assert!(
        proposed.first().is_some_and(is_acknowledgement),
        "{proposed:?}"
    );
    client.commit();
    asked.abort();
}

/// Numbers of connections begin anew with each process.
#[tokio::test]
async fn a_connection_of_another_incarnation_is_not_asked() {
    let client = Client::new().await;
    let mut owner = client.owner();
    owner.incarnation.0 += 1;
    client.broker.services.hand_overs.ask(owner).await;
    assert!(!client.mailbox.is_asked_for_hand_over());
    let asked = client.broker.services.proposer.depth();
    assert_eq!(asked.queued, 0, "nothing is proposed for it");
}

/// It is not read for as long as it is above its rate, and would keep its session, and its will, for that long.
#[tokio::test]
async fn the_end_of_a_client_above_its_byte_rate_is_heard() {
    let mut surroundings = Surroundings::for_tests(true);
    Arc::make_mut(&mut surroundings.options.bounds).rate_in.1 = 1;
    let mut client = Client::of(surroundings).await;
    client.sends_and_leaves(&b"\xc0\0".repeat(50)).await;
    let proposed = client.proposed().await;
    assert!(
        matches!(&proposed[..], [Kind::CloseSession(end)] if !end.discard_will),
        "{proposed:?}"
    );
}

#[tokio::test]
async fn the_end_of_a_client_of_which_much_is_held_is_heard() {
    let mut surroundings = Surroundings::for_tests(true);
    Arc::make_mut(&mut surroundings.options.bounds).rate_in.0 = 1;
    let mut client = Client::of(surroundings).await;
    let later = elapsed_now().plus(Duration::from_secs(3_600));
    client.broker.state.routing_lease().renew(later);
    // QoS 0, 1,000 bytes and a bit.
    let mut publish = b"\x30\xec\x07\0\x01t\0".to_vec();
    publish.resize(publish.len() + 1_000, 0xFF);
    let sent = publish.repeat(limits::HELD_INPUT_BYTES / 1_000 + 40);
    client.sends_and_leaves(&sent).await;
    let mut proposed = client.proposed().await;
    while !proposed
        .iter()
        .any(|kind| matches!(kind, Kind::CloseSession(_)))
    {
        client.commit();
        proposed = client.proposed().await;
    }
    let dropped = &client.broker.metrics.messages_dropped;
    assert!(dropped.of(DropReason::Unhandled).get() > 200);
}

/// What it has published waits for something that does not come.
#[tokio::test]
async fn the_end_of_a_client_whose_messages_are_held_is_heard() {
    let mut client = Client::new().await;
    client.sends_and_leaves(PUBLISH).await;
    let proposed = client.proposed().await;
    assert!(
        matches!(&proposed[..], [Kind::CloseSession(end)] if !end.discard_will),
        "{proposed:?}"
    );
}
