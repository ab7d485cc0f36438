//! Whose turn it is: writing much, and packets that wait, each by itself.

use super::*;
use crate::codec::{PacketType, Property, PublishPropertiesBuf, frame};
use crate::machine::subscriptions::Queueing;
use crate::mailbox::{End, Item};

/// A PUBLISH with QoS 0 of about so many bytes.
fn large(bytes: usize) -> Vec<u8> {
    let mut packet = vec![0x30];
    let mut left = bytes + 4;
    while left >= 128 {
        packet.push((left % 128) as u8 | 0x80);
        left /= 128;
    }
    packet.push(left as u8);
    packet.extend_from_slice(b"\0\x01t\0");
    packet.resize(packet.len() + bytes, 0xFF);
    packet
}

/// A request to the state store that is answered as soon as it is read.
fn faulty_request(packet_id: u16) -> Vec<u8> {
    let mut properties = PublishPropertiesBuf::new();
    for property in [
        Property::ResponseTopic("r"),
        Property::CorrelationData(b"c"),
    ] {
        properties.push(property).expect("it is short");
    }
    let list = properties.raw();
    let mut body = crate::store::topics::INVOKE.as_bytes().to_vec();
    body.splice(..0, (body.len() as u16).to_be_bytes());
    body.extend_from_slice(&packet_id.to_be_bytes());
    body.push(list.len() as u8);
    body.extend_from_slice(list);
    body.extend_from_slice(b"*1\r\n$4\r\nNONE\r\n");
    [&[0x32, body.len() as u8], &body[..]].concat()
}

impl Client {
    /// Leaves a message of so many bytes for the client; its task has not run yet.
    fn leave(&self, bytes: usize) -> usize {
        self.leave_with(QoS::AtMostOnce, bytes)
    }

    fn leave_with(&self, qos: QoS, bytes: usize) -> usize {
        let mut packet = large(bytes);
        packet[0] |= (qos as u8) << 1;
        let pushed = self.mailbox.push_packet(NewPacket::of(qos), |out| {
            out.extend_from_slice(&packet);
            Ok(())
        });
        pushed.expect("it fits");
        self.mailbox.wake();
        packet.len()
    }

    /// Leaves messages with QoS 0 and 1,000 bytes that expire; returns how long a packet is.
    fn leave_expiring(&self, count: usize, expiry_s: u32) -> usize {
        let packet = large(1_000);
        for _ in 0..count {
            let new = NewPacket {
                expiry_s: Some(expiry_s),
                ..NewPacket::of(QoS::AtMostOnce)
            };
            let pushed = self.mailbox.push_packet(new, |out| {
                out.extend_from_slice(&packet);
                Ok(())
            });
            pushed.expect("it fits");
        }
        self.mailbox.wake();
        packet.len()
    }

    fn received(&self) -> u64 {
        let received = &self.broker.metrics.messages_received;
        received
            .of(crate::telemetry::labels::Qos::AtLeastOnce)
            .get()
    }
}

/// A PUBLISH that waits for a routing lease goes on in the first turn after it is there, however much is written.
#[tokio::test]
async fn what_is_held_goes_on_while_much_is_written() {
    let mut client = Client::new().await;
    let broker = client.broker.clone();
    // It writes no more than anybody in a turn.
    let places = &broker.settings.bulk_turns;
    let all = u32::try_from(places.available_permits()).expect("few");
    let _all = places.acquire_many(all).await.expect("it is open");
    client.send(&[PUBLISH, b"\xc0\0"].concat()).await;
    let mut answer = [0; 2];
    let answered = client.socket.read_exact(&mut answer).await;
    answered.expect("the connection is open");
    assert_eq!((answer, client.received()), (*b"\xd0\0", 0), "it is held");
    let before = broker.metrics.bytes_sent.get();
    client.leave(8 * limits::TURN_WRITTEN_BYTES);
    broker.state.routing_lease().renew(elapsed_now());
    while client.received() == 0 {
        tokio::task::yield_now().await;
    }
    let meanwhile = broker.metrics.bytes_sent.get() - before;
    let one_turn = limits::TURN_WRITTEN_BYTES as u64;
    assert_eq!(meanwhile, one_turn, "it came after other turns");
}

/// Who waits for a place among those who write much is read meanwhile, and has a turn like anybody each time.
#[tokio::test]
async fn who_waits_for_a_place_is_read() {
    let mut client = Client::new().await;
    let broker = client.broker.clone();
    broker.state.routing_lease().renew(elapsed_now());
    let places = &broker.settings.bulk_turns;
    let all = u32::try_from(places.available_permits()).expect("few");
    let others = places.acquire_many(all).await.expect("it is open");
    let mut all = vec![0; client.leave(200 << 10)];
    client.socket.readable().await.expect("it begins");
    for number in 1..4 {
        client.send(PUBLISH).await;
        while client.received() < number {
            tokio::task::yield_now().await;
        }
    }
    drop(others);
    let read = tokio::time::timeout(LONG_ENOUGH, client.socket.read_exact(&mut all)).await;
    let read = read.expect("it gets its place");
    read.expect("the connection is open");
}

/// Those who have the places may be of a thread that does not come round.
#[tokio::test]
async fn whose_place_never_comes_goes_on_without() {
    let mut client = Client::new().await;
    let broker = client.broker.clone();
    let places = &broker.settings.bulk_turns;
    let all = u32::try_from(places.available_permits()).expect("few");
    let _all = places.acquire_many(all).await.expect("it is open");
    let mut all = vec![0; client.leave(2 * limits::TURN_WRITTEN_BYTES)];
    let read = tokio::time::timeout(MOST, client.socket.read_exact(&mut all)).await;
    let read = read.expect("it goes on");
    read.expect("the connection is open");
}

/// Who writes much keeps its place until others of its thread had their turn.
#[tokio::test]
async fn who_writes_much_lets_others_come_in_between() {
    let client = Client::new().await;
    let broker = client.broker.clone();
    let places = &broker.settings.bulk_turns;
    let all = u32::try_from(places.available_permits()).expect("few");
    let _others = places.acquire_many(all - 1).await.expect("it is open");
    let sent_before = broker.metrics.bytes_sent.get();
    client.leave(limits::BULK_WRITTEN_BYTES + 4 * limits::TURN_WRITTEN_BYTES);
    let first = limits::BULK_WRITTEN_BYTES + limits::TURN_WRITTEN_BYTES;
    while broker.metrics.bytes_sent.get() - sent_before < first as u64 {
        tokio::task::yield_now().await;
    }
    assert_eq!(places.available_permits(), 0, "another one writes much");
}

/// Whose socket is full asks for no place, however many turns its packets take.
#[tokio::test]
async fn a_full_socket_takes_no_place_among_those_who_write_much() {
    let mut client = Client::new().await;
    let broker = client.broker.clone();
    let places = &broker.settings.bulk_turns;
    let sent_before = broker.metrics.bytes_sent.get();
    let left = client.leave(900_000) as u64;
    client.socket.readable().await.expect("it begins");
    let mut written = 0;
    loop {
        tokio::time::sleep(A_MOMENT).await;
        match broker.metrics.bytes_sent.get() - sent_before {
            now if now == written => break,
            now => written = now,
        }
    }
    assert!(written < left, "the socket is full");
    let all = u32::try_from(places.available_permits()).expect("few");
    let _others = places.acquire_many(all - 1).await.expect("it is open");
    let mut last = places.try_acquire().expect("there is one left");
    let mut sent = b"\xc0\0".repeat(4 * limits::TURN_WORK);
    sent.extend_from_slice(DISCONNECT);
    client.send(&sent).await;
    let proposer = broker.services.proposer.clone();
    while proposer.next(&mut client.cursor).is_none() {
        drop(last);
        // Whoever waits would have it now.
        last = places.try_acquire().expect("nobody wants it");
        tokio::task::yield_now().await;
    }
}

/// Messages of one batch expire while the socket does not take them.
#[tokio::test]
async fn mqtt_3_3_2_5_what_the_socket_does_not_take_in_time_is_dropped() {
    const MANY: usize = 900;
    let mut client = Client::new().await;
    let length = client.leave_expiring(MANY, 1);
    client.socket.readable().await.expect("it begins");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let expired = &client.broker.metrics.messages_dropped;
    let expired = expired.of(crate::telemetry::labels::DropReason::Expired);
    let mut all = Vec::new();
    while expired.get() == 0 || all.len() / length + (expired.get() as usize) < MANY {
        let read = tokio::time::timeout(MOST, client.socket.read_buf(&mut all)).await;
        let read = read.expect("what is left");
        assert!(read.expect("it is open") > 0, "{} bytes came", all.len());
    }
    assert_eq!(all.len() % length, 0, "packets are whole");
    assert!(expired.get() as usize > MANY / 4, "{}", expired.get());
}

/// All that the client gets when its connection ends for this reason, while messages wait for the socket and an answer
/// waits in the mailbox; and how many bytes the messages are.
async fn at_the_end(end: End) -> (Vec<u8>, usize) {
    const MANY: usize = 900;
    let mut client = Client::new().await;
    let owner = Some(client.owner());
    let index = client.broker.services.router.subscriptions();
    index.put(SessionId(1), owner, Queueing::default(), &["r"]);
    let length = client.leave_expiring(MANY, 600);
    client.socket.readable().await.expect("it begins");
    client.broker.state.routing_lease().renew(elapsed_now());
    client.send(&faulty_request(9)).await;
    until("the request is read", || client.received() > 0).await;
    client.mailbox.push_item(Item::End(end));
    client.mailbox.wake();
    client.proposed().await;
    client.commit();
    (client.rest().await, MANY * length)
}

/// What was taken out of the mailbox counts as sent: it comes before the reason why the connection ends, and what it
/// answers is acknowledged.
#[tokio::test]
async fn what_waits_goes_before_the_end() {
    let (all, messages) = at_the_end(End::ShuttingDown).await;
    let behind = all.get(messages..).expect("all of them");
    let mut rest = behind;
    let mut packets = Vec::new();
    while let Some(found) = frame::next(rest, u32::MAX).expect("well-formed") {
        packets.push(found.packet_type().expect("a packet"));
        rest = &rest[found.length..];
    }
    let expected = [
        PacketType::Publish,
        PacketType::PubAck,
        PacketType::Disconnect,
    ];
    assert_eq!(packets, expected, "{behind:x?}");
}

/// No answer comes, and no acknowledgement of what was asked.
#[tokio::test]
async fn what_waits_is_dropped_for_memory() {
    let (all, messages) = at_the_end(End::ConnectionMemory).await;
    assert!(all.len() < messages, "{}", all.len());
    let is_acknowledged = all.windows(4).any(|bytes| bytes == b"\x40\x02\0\x09");
    assert!(!is_acknowledged, "{}", all.len());
}

/// The mailbox of a client that is sent much is never empty: what it asks for is answered all the same.
#[tokio::test]
async fn a_ping_is_answered_while_messages_come_that_expire() {
    const BATCH: usize = 300;
    let mut client = Client::new().await;
    let mut all = Vec::new();
    let mut one = client.leave_expiring(BATCH, 600);
    client.send(b"\xc0\0").await;
    while !all.windows(2).any(|bytes| bytes == b"\xd0\0") {
        assert!(
            all.len() < 8 * BATCH * one,
            "no PINGRESP among {} bytes",
            all.len()
        );
        if !client.mailbox.is_filled() {
            one = client.leave_expiring(BATCH, 600);
        }
        let read = tokio::time::timeout(MOST, client.socket.read_buf(&mut all)).await;
        let read = read.expect("what is left").expect("it is open");
        assert!(read > 0, "{} bytes came", all.len());
    }
}

/// However long messages are held back: the client takes the connection for dead otherwise.
#[tokio::test]
async fn a_ping_is_answered_while_a_rate_holds_back_an_answer() {
    let mut surroundings = Surroundings::for_tests(true);
    Arc::make_mut(&mut surroundings.options.bounds).rate_out.1 = 100;
    let mut client = Client::of(surroundings).await;
    let mut first = vec![0; client.leave(20_000)];
    let read = client.socket.read_exact(&mut first).await;
    read.expect("the connection is open");
    // Its answer waits in the mailbox.
    client.leave(1);
    client.broker.state.routing_lease().renew(elapsed_now());
    client.send(&faulty_request(9)).await;
    until("the request is read", || client.received() > 0).await;
    client.send(b"\xc0\0").await;
    let mut answer = [0; 2];
    let read = tokio::time::timeout(MOST, client.socket.read_exact(&mut answer)).await;
    read.expect("it is answered")
        .expect("the connection is open");
    assert_eq!(answer, *b"\xd0\0");
}

/// What a rate holds back goes on when its time is over, also where a PINGREQ comes right before.
#[tokio::test]
async fn what_a_rate_holds_back_goes_on() {
    const MANY: usize = 1_000;
    /// Above this, each chunk of the output takes a pause of about 100 ms.
    const RATE: u64 = 640_000;
    let one = async |number: u64| {
        let mut surroundings = Surroundings::for_tests(true);
        Arc::make_mut(&mut surroundings.options.bounds).rate_out.1 = RATE;
        let mut client = Client::of(surroundings).await;
        let mut left = MANY * client.leave_expiring(MANY, 600);
        let mut buffer = vec![0; 64 << 10];
        // Until it is held back.
        while left > 400_000 {
            left -= client.socket.read(&mut buffer).await.expect("it is open");
        }
        tokio::time::sleep(Duration::from_millis(3 * number)).await;
        client.send(b"\xc0\0").await;
        left += 2;
        while left > 0 {
            let read = tokio::time::timeout(MOST, client.socket.read(&mut buffer)).await;
            let read = read.unwrap_or_else(|_| panic!("{number}: {left} bytes are left"));
            left -= read.expect("it is open");
        }
    };
    futures::future::join_all((0..40).map(one)).await;
}

/// More messages wait for its acknowledgements than leave room for what is held of it, if they counted: those may be
/// behind what it has sent.
#[tokio::test]
async fn messages_that_wait_for_a_client_do_not_keep_it_from_being_read() {
    const WINDOW: usize = 10;
    let mut client = Client::new().await;
    let outbox = client.broker.settings.outbox.clone();
    let leave = |client: &Client, bytes| client.leave_with(QoS::AtLeastOnce, bytes);
    let mut first = vec![0; (0..WINDOW).map(|_| leave(&client, 100)).sum()];
    let read = client.socket.read_exact(&mut first).await;
    read.expect("the connection is open");
    let mut waiting = leave(&client, outbox.bytes / 2);
    while waiting + outbox.bytes / 2 < outbox.overrun() {
        waiting += leave(&client, outbox.bytes / 2);
    }
    leave(&client, outbox.bytes);
    // Without a routing lease it is held.
    let mut sent = PUBLISH.repeat(3 * limits::HELD_INPUT_BYTES / PUBLISH.len());
    sent.extend_from_slice(b"\xc0\0");
    let mut answer = [0; 2];
    let answered = async {
        client.socket.write_all(&sent).await?;
        client.socket.read_exact(&mut answer).await
    };
    let answered = tokio::time::timeout(MOST, answered).await;
    answered.expect("it is read").expect("it is open");
    assert_eq!(answer, *b"\xd0\0");
}
