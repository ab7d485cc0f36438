//! The end of a connection and the hand-over of its session, with a socket and a log that is committed by hand.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner, SessionId};
use crate::base::proto::command::{self, command::Kind};
use crate::base::time::elapsed_now;
use crate::codec::QoS;
use crate::connection::context::Context as Surroundings;
use crate::connection::options::Opened;
use crate::machine::effect::Reply;
use crate::mailbox::{Mailbox, NewPacket, WakeList, Withheld};
use crate::replica::proposer::{Cursor, SequencedProposal};
use crate::session::Sequence;

const INCARNATION: Incarnation = Incarnation(1);

/// How long it is waited for what must not come.
const A_MOMENT: Duration = Duration::from_millis(50);

/// How long it is waited for what must come: less than without the rule.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// How long it is waited for what comes or the test fails.
const MOST: Duration = Duration::from_secs(30);

const DISCONNECT: &[u8] = b"\xe0\0";

/// Bytes of a PUBLISH that no socket takes at once.
const LARGE: usize = 4_000_011;

/// A client, its connection, and the log.
struct Client {
    broker: Arc<Broker>,
    mailbox: Arc<Mailbox>,
    socket: TcpStream,
    task: JoinHandle<()>,
    cursor: Cursor,
    proposed: Vec<SequencedProposal>,
}

impl Client {
    async fn new() -> Client {
        Client::of(Surroundings::for_tests(true)).await
    }

    async fn of(surroundings: Surroundings) -> Client {
        let (broker, mailbox) = (surroundings.broker, surroundings.mailbox);
        broker.state.set_registered(true);
        broker
            .state
            .contact()
            .hold_until(elapsed_now().plus(Duration::from_secs(3_600)));
        broker.services.proposer.begin(INCARNATION);
        broker.services.router.register(mailbox.clone());
        let (socket, stream) = connected().await;
        // Large packets do not vanish in the system's buffers.
        let sent = socket2::SockRef::from(&stream).set_send_buffer_size(64 << 10);
        sent.expect("it is open");
        let opened = Opened {
            session: SessionId(1),
            is_durable: true,
            receive_maximum: 10,
            received: Vec::new(),
            rights: surroundings.rights,
        };
        let connection = Connection::new(
            broker.clone(),
            mailbox.clone(),
            surroundings.options,
            opened,
            Vec::new(),
        );
        let accepted = Accepted {
            stream: Stream::of_tcp(stream),
            peer: Peer::default(),
            listener: Arc::default(),
        };
        let task = Task::new(connection, accepted, Vec::new());
        let mut client = Client {
            broker,
            mailbox,
            socket,
            task: tokio::spawn(async move { task.run().await }),
            cursor: Cursor::default(),
            proposed: Vec::new(),
        };
        assert!(client.proposed().await.is_empty(), "it registers the node");
        client.commit();
        client
    }

    /// Leaves a message of the session's queue in the mailbox, and reads it as the client.
    async fn receive(&mut self) {
        // Packet id 1 follows from number 1.
        let packet = b"\x32\x06\0\x01t\0\x01\0";
        let granted = Withheld {
            sequence: Sequence(1),
            dup: false,
        };
        let new = NewPacket::of(QoS::AtLeastOnce);
        let pushed = self.mailbox.push_granted(new, granted, |out| {
            out.extend_from_slice(packet);
            Ok(())
        });
        pushed.expect("it fits");
        self.mailbox.wake();
        let mut read = [0; 8];
        let arrived = self.socket.read_exact(&mut read).await;
        arrived.expect("the connection is open");
        assert_eq!(&read, packet);
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("it is open");
    }

    /// The commands of the next proposal.
    async fn proposed(&mut self) -> Vec<Kind> {
        let proposer = self.broker.services.proposer.clone();
        let next = async {
            loop {
                match proposer.next(&mut self.cursor) {
                    Some(proposal) => break proposal,
                    None => proposer.changed().await,
                }
            }
        };
        let next = tokio::time::timeout(MOST, next).await;
        let proposal = next.expect("nothing is proposed");
        self.proposed.push(proposal.clone());
        let mut commands = proposal.commands;
        let mut kinds = Vec::new();
        while !commands.is_empty() {
            let command = command::Command::decode_length_delimited(&mut commands);
            kinds.extend(command.expect("it was encoded").kind);
        }
        kinds
    }

    /// The next proposal is the end of the session's connection, without its will, and nothing else.
    async fn ends_without_will(&mut self) {
        let proposed = self.proposed().await;
        let is_all = matches!(&proposed[..], [end] if is_end(end));
        assert!(is_all, "{proposed:?}");
    }

    /// Another connection takes the session over, and the first that is proposed is the end without a will.
    async fn taken_over_behind_its_end(mut self) {
        let (broker, owner) = (self.broker.clone(), self.owner());
        let asked = tokio::spawn(async move { broker.services.hand_overs.ask(owner).await });
        let proposed = self.proposed().await;
        assert!(proposed.first().is_some_and(is_end), "{proposed:?}");
        self.commit();
        asked.abort();
    }

    /// Leaves a PUBLISH of [`LARGE`] bytes for the client, whose system takes less than that.
    fn push_large(&self) {
        let socket = socket2::SockRef::from(&self.socket);
        socket.set_recv_buffer_size(256 << 10).expect("it is open");
        let packet = NewPacket::of(QoS::AtLeastOnce);
        let pushed = self.mailbox.push_packet(packet, |out| {
            out.extend_from_slice(b"\x32\x86\x92\xf4\x01\0\x01t\0\0\0");
            out.resize(LARGE, 0xFF);
            Ok(())
        });
        pushed.expect("it fits");
        self.mailbox.wake();
    }

    /// Everything that was proposed is applied.
    fn commit(&mut self) {
        let proposer = &self.broker.services.proposer;
        for proposal in self.proposed.drain(..) {
            for _ in 0..proposer.depth().in_flight {
                let of = (proposal.incarnation, proposal.sequence);
                proposer.replied(of, Reply::Done, None, &mut WakeList::default());
            }
            proposer.applied(proposal.incarnation, proposal.sequence);
        }
    }

    /// Everything up to the end of the stream.
    async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let end = tokio::time::timeout(MOST, self.socket.read_to_end(&mut all));
        end.await
            .expect("the stream does not end")
            .expect("it is not reset");
        all
    }

    /// Whether the stream ends within this time.
    async fn ends_within(&mut self, time: Duration) -> bool {
        let end = async {
            let mut rest = [0; 64];
            while !matches!(self.socket.read(&mut rest).await, Ok(0) | Err(_)) {}
        };
        tokio::time::timeout(time, end).await.is_ok()
    }

    fn owner(&self) -> Owner {
        Owner {
            node: NodeId(0),
            incarnation: INCARNATION,
            connection: ConnectionId(1),
        }
    }
}

/// Two ends of a stream.
async fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (socket, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (stream, _) = accepted.expect("it connects");
    (socket.expect("it connects"), stream)
}

fn is_end(kind: &Kind) -> bool {
    matches!(kind, Kind::CloseSession(end) if end.discard_will)
}

fn is_acknowledgement(kind: &Kind) -> bool {
    matches!(kind, Kind::Acknowledge(acknowledge) if acknowledge.completed == [1])
}

/// [MQTT-3.14.4-3]: whoever sees the end of the stream finds the session closed, and no will is published.
#[tokio::test]
async fn mqtt_3_14_4_3_the_stream_ends_when_the_log_knows_of_the_disconnect() {
    let mut client = Client::new().await;
    client.send(DISCONNECT).await;
    client.ends_without_will().await;
    assert!(
        !client.ends_within(A_MOMENT).await,
        "nobody knows of the end"
    );
    client.commit();
    assert!(client.ends_within(LONG_ENOUGH).await);
    client.task.await.expect("it ends");
}

#[tokio::test]
async fn without_a_quorum_the_stream_ends_at_once() {
    let mut client = Client::new().await;
    client.broker.state.contact().end();
    client.send(DISCONNECT).await;
    assert!(client.ends_within(LONG_ENOUGH).await);
}

#[tokio::test]
async fn acknowledgements_go_before_the_end() {
    let mut client = Client::new().await;
    client.receive().await;
    client.send(b"\x40\x02\0\x01").await;
    client.send(DISCONNECT).await;
    let mut proposed = client.proposed().await;
    while !proposed.iter().any(is_end) {
        proposed.extend(client.proposed().await);
    }
    assert!(
        matches!(&proposed[..], [first, last] if is_acknowledgement(first) && is_end(last)),
        "{proposed:?}"
    );
}

/// What the socket has is proposed before the next connection opens the session.
async fn hand_over(sent: &[u8], is_expected: fn(&Kind) -> bool) {
    let mut client = Client::new().await;
    client.receive().await;
    client.send(sent).await;
    let (broker, owner) = (client.broker.clone(), client.owner());
    let asked = tokio::spawn(async move { broker.services.hand_overs.ask(owner).await });
    let mut proposed = client.proposed().await;
    while !proposed.iter().any(|kind| matches!(kind, Kind::Nothing(_))) {
        proposed.extend(client.proposed().await);
    }
    assert!(
        matches!(&proposed[..], [first, Kind::Nothing(_)] if is_expected(first)),
        "{proposed:?}"
    );
    assert!(!asked.is_finished(), "it is not committed");
    client.commit();
    asked.await.expect("it does not panic");
}

#[tokio::test]
async fn a_hand_over_proposes_acknowledgements() {
    hand_over(b"\x40\x02\0\x01", is_acknowledgement).await;
}

#[tokio::test]
async fn a_hand_over_finds_a_disconnect() {
    hand_over(DISCONNECT, is_end).await;
}

/// Without a routing lease a PUBLISH is held, and the DISCONNECT behind it.
const PUBLISH: &[u8] = b"\x32\x06\0\x01t\0\x01\0";

#[tokio::test]
async fn mqtt_3_14_4_3_a_hand_over_finds_a_disconnect_that_is_held() {
    hand_over(&[PUBLISH, DISCONNECT].concat(), is_end).await;
}

#[tokio::test]
async fn a_hand_over_takes_as_many_turns_as_it_needs() {
    let mut sent = b"\xc0\0".repeat(3 * limits::TURN_WORK);
    sent.extend_from_slice(DISCONNECT);
    hand_over(&sent, is_end).await;
}

/// What was read before the end of the client's stream is handled first.
#[tokio::test]
async fn a_hand_over_of_a_client_that_has_gone_away_finds_its_disconnect() {
    let mut client = Client::new().await;
    client.send(&[PUBLISH, DISCONNECT].concat()).await;
    client.socket.shutdown().await.expect("it is open");
    client.taken_over_behind_its_end().await;
}

/// What ends for its memory does not write what waits.
#[tokio::test]
async fn the_end_for_memory_drops_what_is_not_begun() {
    let mut client = Client::new().await;
    let packet = NewPacket::of(QoS::AtLeastOnce);
    let socket = socket2::SockRef::from(&client.socket);
    socket.set_recv_buffer_size(256 << 10).expect("it is open");
    let large = vec![0xFF; 4_000_000];
    let length = (large.len() + 6) as u32;
    let pushed = client.mailbox.push_packet(packet, |out| {
        out.extend_from_slice(b"\x32");
        let mut left = length;
        while left >= 128 {
            out.push((left % 128) as u8 | 0x80);
            left /= 128;
        }
        out.push(left as u8);
        out.extend_from_slice(b"\0\x01t\0\0\0");
        out.extend_from_slice(&large);
        Ok(())
    });
    pushed.expect("it fits");
    for _ in 0..2 {
        // Behind the packet under way.
        let packet = NewPacket::of(QoS::AtLeastOnce);
        let pushed = client.mailbox.push_packet(packet, |out| {
            out.extend_from_slice(PUBLISH);
            Ok(())
        });
        pushed.expect("it fits");
    }
    client.mailbox.wake();
    let mut all = vec![0; 1 << 10];
    client.socket.read_exact(&mut all).await.expect("it begins");
    client.mailbox.end(crate::mailbox::End::NodeMemory);
    client.mailbox.wake();
    client.proposed().await;
    client.commit();
    let end = client.socket.read_to_end(&mut all).await;
    end.expect("the packet under way, and a DISCONNECT");
    let whole = 5 + length as usize;
    let rest = all.get(whole..).expect("no packet is cut in half");
    assert_eq!(rest.get(..1), Some(&b"\xe0"[..]), "and nothing between");
}

/// Who may not connect any more ends, also if its client reads nothing, and leaves no will.
#[tokio::test]
async fn rules_end_a_connection_whose_client_does_not_read() {
    let mut client = Client::new().await;
    client.push_large();
    client.socket.readable().await.expect("it begins");
    let nobody = crate::acl::Rules::parse(br#"{"rules": []}"#, 1).expect("rules");
    client.broker.services.rules.set(nobody);
    client.broker.services.router.offer_again_to_all();
    let proposed = tokio::time::timeout(LONG_ENOUGH, client.proposed()).await;
    let proposed = proposed.expect("the connection ends");
    let [Kind::CloseSession(end)] = &proposed[..] else {
        panic!("{proposed:?}");
    };
    assert!(end.discard_will);
}

#[tokio::test]
async fn a_hand_over_of_a_connection_that_is_gone_waits_for_its_end() {
    let mut client = Client::new().await;
    client.send(DISCONNECT).await;
    assert!(client.proposed().await.iter().any(is_end));
    let (broker, owner) = (client.broker.clone(), client.owner());
    let asked = tokio::spawn(async move { broker.services.hand_overs.ask(owner).await });
    let proposed = client.proposed().await;
    assert!(matches!(&proposed[..], [Kind::Nothing(_)]), "{proposed:?}");
    assert!(!asked.is_finished(), "the end is not committed");
    client.commit();
    asked.await.expect("it does not panic");
}

/// Waits for what must come.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let came = tokio::time::timeout(MOST, waiting).await;
    assert!(came.is_ok(), "it did not come: {what}");
}

/// A DISCONNECT that is held counts, whatever ends the connection meanwhile.
#[tokio::test]
async fn mqtt_3_14_4_3_a_disconnect_that_is_held_counts_when_the_node_ends_the_connection() {
    let mut client = Client::new().await;
    let sent = [PUBLISH, DISCONNECT].concat();
    client.send(&sent).await;
    let metrics = client.broker.metrics.clone();
    until("the client's packets", || {
        metrics.bytes_received.get() >= sent.len() as u64
    })
    .await;
    client.mailbox.end(crate::mailbox::End::NodeMemory);
    client.mailbox.wake();
    client.ends_without_will().await;
}

/// Whoever never closes its half has nothing of the node's memory while the node waits for that.
#[tokio::test]
async fn a_connection_that_lingers_keeps_no_memory() {
    let mut client = Client::new().await;
    let memory = client.broker.settings.outbox.memory.clone();
    let before = memory.used();
    // A PUBLISH of 100,000 bytes and a bit, which is held.
    let mut publish = b"\x32\xa6\x8d\x06\0\x01t\0\x01\0".to_vec();
    publish.resize(publish.len() + 100_000, 0xFF);
    client.send(&publish).await;
    until("the packet", || memory.used() >= before + (64 << 10)).await;
    // Its flags are malformed.
    client.send(b"\xc1\0").await;
    client.proposed().await;
    client.commit();
    assert_eq!(client.rest().await.first(), Some(&0xE0));
    assert!(!client.task.is_finished(), "it lingers");
    assert_eq!(memory.used(), 0);
}

#[path = "leaving_tests.rs"]
mod leaving_tests;
#[path = "turns_tests.rs"]
mod turns_tests;
