//! A connection whose client's packets have to wait, because the node has no routing lease.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::base::ids::SessionId;
use crate::base::time::elapsed_now;
use crate::codec::ReasonCode;
use crate::connection::broker::Broker;
use crate::connection::context::Context;
use crate::connection::options::Opened;
use crate::connection::publish_rate::LEAVING_TIMEOUT;
use crate::connection::rate::ClientRate;
use crate::telemetry::labels::DisconnectReason;

const PINGREQ: &[u8] = b"\xc0\0";
const PINGRESP: &[u8] = b"\xd0\0";
const DISCONNECT: &[u8] = b"\xe0\0";

/// Packet id 5, filter `a`.
const SUBSCRIBE: &[u8] = b"\x82\x07\0\x05\0\0\x01a\x01";

/// QoS 1, topic `t`.
fn publish(packet_id: u8) -> Vec<u8> {
    vec![0x32, 6, 0, 1, b't', 0, packet_id, 0]
}

/// Nobody is subscribed.
fn puback(packet_id: u8) -> Vec<u8> {
    vec![0x40, 3, 0, packet_id, 0x10]
}

struct Client {
    broker: Arc<Broker>,
    connection: Connection,
    input: Input,
}

impl Client {
    fn new() -> Client {
        let context = Context::for_tests(false);
        let broker = context.broker.clone();
        let day = Duration::from_secs(86_400);
        broker.state.set_registered(true);
        broker.state.contact().hold_until(elapsed_now().plus(day));
        let opened = Opened {
            session: SessionId(1),
            is_durable: false,
            receive_maximum: 10,
            received: Vec::new(),
            rights: context.rights,
        };
        let connection = Connection::new(
            broker.clone(),
            context.mailbox,
            context.options,
            opened,
            Vec::new(),
        );
        Client {
            broker,
            connection,
            input: Input::default(),
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let received = self.input.receive(&mut self.connection, bytes);
        received.expect("the connection goes on");
    }

    fn offer_again(&mut self) -> Result<Turn, Ended> {
        self.input.offer_again(&mut self.connection)
    }

    /// From now on PUBLISH packets are taken.
    fn renew_lease(&self) {
        self.broker.state.routing_lease().renew(elapsed_now());
    }

    fn answers(&mut self) -> Vec<u8> {
        self.connection.context_mut().take_acknowledgements()
    }
}

#[test]
fn a_publisher_that_is_held_back_is_heard() {
    let mut client = Client::new();
    client.send(&[&publish(1)[..], PINGREQ].concat());
    assert_eq!(client.answers(), PINGRESP);
    client.send(&[PINGREQ, &publish(2)[..], PINGREQ, &[0x32, 6, 0]].concat());
    assert_eq!(client.answers(), [PINGRESP, PINGRESP].concat());
    let held = 2 * publish(1).len();
    assert_eq!(
        (client.input.incomplete_bytes(), client.input.bytes()),
        (3, held + 3)
    );
    assert!(client.input.is_waiting() && client.input.holds_messages());
    assert_eq!(client.input.packets(), 5);
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert!(client.answers().is_empty(), "they wait");
    client.renew_lease();
    assert!(
        client.connection.context().mailbox.take_offer(),
        "it is told that there is a lease"
    );
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.answers(), [puback(1), puback(2)].concat());
    assert!(!client.input.is_waiting());
    client.send(&publish(3)[3..]);
    assert_eq!(client.answers(), puback(3));
}

#[test]
fn a_subscribe_is_not_held_and_a_publish_waits_for_it() {
    let mut client = Client::new();
    client.renew_lease();
    client.send(&[SUBSCRIBE, &publish(1)[..], SUBSCRIBE].concat());
    let proposed = client.connection.context().requests.len();
    assert_eq!(proposed, 2, "it overtakes the PUBLISH");
    client.renew_lease();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert!(client.answers().is_empty(), "they are not applied");
    assert!(client.input.is_waiting());
}

/// A node that is behind judges nobody: a client that is revoked, as the others know, gets nothing into the log.
#[test]
fn nothing_is_proposed_without_a_lease() {
    let mut client = Client::new();
    let retained = b"\x33\x06\0\x01t\0\x01\0";
    client.send(&[SUBSCRIBE, &retained[..]].concat());
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.connection.context().requests.len(), 0);
    let nobody = r#"{"rules": []}"#;
    let rules = crate::acl::Rules::parse(nobody.as_bytes(), 1).expect("rules");
    client.broker.services.rules.set(rules);
    client.renew_lease();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.connection.context().requests.len(), 0, "refused");
    let answers = client.answers();
    assert!(
        answers.starts_with(b"\x90\x04\0\x05\0\x87\x40"),
        "{answers:x?}"
    );
}

#[test]
fn a_disconnect_waits_for_what_the_client_has_published() {
    let mut client = Client::new();
    client.send(&[&publish(1)[..], DISCONNECT, PINGREQ].concat());
    assert!(client.answers().is_empty(), "nothing follows a DISCONNECT");
    assert!(!client.input.takes_more());
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    client.renew_lease();
    let ended = client.offer_again().expect_err("the DISCONNECT");
    assert_eq!(ended.cause, DisconnectReason::Client);
    assert_eq!(client.answers(), puback(1));
}

#[test]
fn what_was_published_before_the_end_of_the_stream_is_handled() {
    let mut client = Client::new();
    client.send(&publish(1));
    client
        .input
        .close(StreamEnd::Lost)
        .expect("something is left");
    assert!(!client.input.takes_more());
    client.renew_lease();
    let ended = client.offer_again().expect_err("nothing is left");
    assert_eq!(ended.cause, DisconnectReason::Network);
    assert_eq!(client.answers(), puback(1));
}

#[test]
fn what_is_held_is_bounded() {
    let mut client = Client::new();
    let many = publish(1).repeat(4096);
    let mut sent = 0;
    while client.input.has_room() {
        client.send(&many);
        sent += many.len();
        assert!(sent <= limits::HELD_INPUT_BYTES + many.len());
    }
    assert_eq!(client.input.bytes(), sent);
    assert!(client.input.takes_more(), "its acknowledgements may follow");
    client.send(DISCONNECT);
    assert!(!client.input.takes_more(), "nothing follows");
}

/// However much one read brings, other connections have their turn.
#[test]
fn a_turn_is_bounded() {
    let mut client = Client::new();
    let count = 3 * limits::TURN_WORK;
    client.send(&PINGREQ.repeat(count));
    assert_eq!(client.answers().len(), limits::TURN_WORK * PINGRESP.len());
    assert!(client.input.is_waiting() && !client.input.takes_more());
    assert_eq!(client.offer_again(), Ok(Turn::Over));
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(
        client.answers().len(),
        2 * limits::TURN_WORK * PINGRESP.len()
    );
    assert!(!client.input.is_waiting() && client.input.takes_more());
}

#[test]
fn a_malformed_packet_behind_a_held_one_ends_the_connection() {
    let mut client = Client::new();
    client.send(&publish(1));
    let ended = client.input.receive(&mut client.connection, b"\xc1\0");
    let reason = ended.expect_err("flags of a PINGREQ").reason;
    assert_eq!(reason, Some(ReasonCode::MalformedPacket));
}

impl Client {
    /// How it ends when the node ends its connection.
    fn ends(&mut self) -> Option<Ended> {
        self.input.disconnected(&mut self.connection)
    }
}

fn is_clean(ended: Option<Ended>) -> bool {
    ended.is_some_and(|ended| ended.cause == DisconnectReason::Client && ended.discard_will)
}

/// Its will is not published although nobody has come to handle the DISCONNECT.
#[test]
fn mqtt_3_14_4_3_a_disconnect_counts_as_soon_as_it_has_arrived() {
    let mut client = Client::new();
    client.send(&[&publish(1)[..], DISCONNECT].concat());
    // Other packets of this turn were much work.
    client.connection.context_mut().work = limits::TURN_WORK;
    assert!(is_clean(client.ends()), "it is held");
    let mut client = Client::new();
    client.send(&[&PINGREQ.repeat(limits::TURN_WORK + 1)[..], DISCONNECT].concat());
    assert!(is_clean(client.ends()), "it is left for the next turn");
    let mut client = Client::new();
    client.input = Input::new(DISCONNECT.to_vec(), 0);
    assert!(is_clean(client.ends()), "it came with the CONNECT");
    let mut client = Client::new();
    client.send(&[PINGREQ, &DISCONNECT[..1]].concat());
    assert_eq!(client.ends(), None, "it has not arrived whole");
}

#[test]
fn a_disconnect_does_not_count_behind_a_packet_that_has_ended_the_connection() {
    let mut client = Client::new();
    let malformed = b"\x36\x04\0\x01t\0";
    client.send(&[&publish(1)[..], malformed, DISCONNECT].concat());
    client.renew_lease();
    let ended = client.offer_again().expect_err("QoS 3");
    assert_eq!(ended.reason, Some(ReasonCode::MalformedPacket));
    assert_eq!(client.ends(), None);
}

/// It has arrived all the same.
#[test]
fn mqtt_3_14_4_3_a_disconnect_counts_that_a_node_reads_which_does_not_serve() {
    let mut client = Client::new();
    client.broker.state.contact().end();
    let received = client.input.receive(&mut client.connection, DISCONNECT);
    assert!(received.is_err());
    assert!(is_clean(client.ends()));
}

/// The node's own reason for the end stays.
#[test]
fn a_malformed_disconnect_that_is_held_is_none() {
    let mut client = Client::new();
    client.send(&[&publish(1)[..], b"\xe1\0"].concat());
    assert!(client.ends().is_none());
}

impl Client {
    /// It may publish two messages a second.
    fn paced() -> Client {
        let mut client = Client::new();
        client.input = Input::new(Vec::new(), 2);
        client.renew_lease();
        client
    }
}

/// Four messages: a second's worth, the one that is too many, and one that waits for it.
fn four() -> Vec<u8> {
    (1..=4).flat_map(publish).collect()
}

#[test]
fn messages_above_the_rate_wait_and_nothing_else_does() {
    let mut client = Client::paced();
    client.send(&[&four()[..], PINGREQ].concat());
    let passed = [puback(1), puback(2), puback(3)].concat();
    assert_eq!(client.answers(), [&passed[..], PINGRESP].concat());
    assert!(client.input.takes_more());
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert!(client.answers().is_empty(), "it is too early");
    let until = client.input.paused_until().expect("one waits");
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    client.renew_lease();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.answers(), puback(4));
    assert!(client.input.paused_until().is_none(), "nobody waits");
}

impl Client {
    fn rate(&mut self) -> &mut PublishRate {
        self.input.rate.as_mut().expect("it has one")
    }

    /// The client is above its rate, for longer than the test takes.
    fn pause(&mut self) {
        self.rate().rate.passed(1_000, 0, Instant::now());
    }

    /// It may publish again.
    fn resume(&mut self) {
        self.rate().rate = ClientRate::new((2, 0)).expect("it is a bound");
        self.renew_lease();
    }

    fn lost(&self) -> u64 {
        let dropped = &self.broker.metrics.messages_dropped;
        dropped.of(DropReason::Unhandled).get()
    }
}

/// QoS 0, topic `t`.
const QOS_0: &[u8] = b"\x30\x04\0\x01t\0";

#[test]
fn what_a_client_that_leaves_has_published_waits_for_its_rate() {
    let mut client = Client::paced();
    client.send(&[&four()[..], DISCONNECT].concat());
    client.pause();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert!(client.answers().ends_with(&puback(3)), "one waits");
    client.resume();
    let ended = client.offer_again().expect_err("the DISCONNECT");
    assert_eq!(ended.cause, DisconnectReason::Client);
    assert_eq!(client.answers(), puback(4));
    let mut client = Client::paced();
    client.send(&four());
    let more = client.input.close(StreamEnd::Lost);
    more.expect("something is left");
    client.pause();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    client.resume();
    let ended = client.offer_again().expect_err("nothing is left");
    assert_eq!(ended.cause, DisconnectReason::Network);
    assert!(client.answers().ends_with(&puback(4)));
    assert_eq!(client.lost(), 0);
}

/// Its will would wait for it, and the connection would take memory for as long as it likes.
#[test]
fn what_a_client_that_leaves_has_published_waits_for_a_while() {
    let rest = [&four()[..], QOS_0, &publish(5)[..], QOS_0].concat();
    let mut client = Client::paced();
    client.send(&[&rest[..], DISCONNECT, QOS_0].concat());
    client.pause();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    let leaves_by = client.rate().leaves_by.replace(Instant::now());
    assert!(leaves_by.is_some_and(|by| by > Instant::now() + LEAVING_TIMEOUT / 2));
    let ended = client.offer_again().expect_err("the DISCONNECT");
    assert_eq!(ended.cause, DisconnectReason::Client);
    assert!(client.answers().ends_with(&puback(3)), "no other is taken");
    assert_eq!(client.lost(), 2);
}

/// What it has sent may be in the socket yet.
#[test]
fn whoever_has_closed_its_half_has_as_long_as_whoever_says_so() {
    let mut client = Client::paced();
    client.send(&[&four()[..], QOS_0].concat());
    client.pause();
    client.input.leave();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.lost(), 0);
    let leaves_by = client.rate().leaves_by.replace(Instant::now());
    assert!(leaves_by.is_some_and(|by| by > Instant::now() + LEAVING_TIMEOUT / 2));
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.lost(), 1);
    assert!(client.input.takes_more(), "its DISCONNECT may follow");
}

/// The connection's task comes round when the next packet may be taken.
#[test]
fn what_has_waited_long_enough_does_not_go_on_at_its_rate() {
    let mut client = Client::paced();
    client.send(&[&four()[..], QOS_0, QOS_0, QOS_0, QOS_0].concat());
    client.input.leave();
    client.rate().leaves_by = Some(Instant::now());
    client.resume();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    assert_eq!(client.lost(), 4);
}

#[test]
fn what_is_held_takes_no_more_memory_than_it_counts() {
    let mut client = Client::paced();
    client.pause();
    let mut large = b"\x30\xa4\x8d\x06\0\x01t\0".to_vec();
    large.resize(large.len() + 100_000, 0xFF);
    client.send(&[&large[..], &QOS_0.repeat(1_000)].concat());
    assert!(client.input.bytes() > 100_000);
    client.resume();
    assert_eq!(client.offer_again(), Ok(Turn::Done));
    let left = client.input.bytes();
    assert!((1_000..10_000).contains(&left), "{left} bytes wait");
    let held = client.input.held.as_ref().expect("some wait");
    let capacity = held.publishes.bytes.capacity();
    assert!(capacity <= 4 * left + KEPT_BYTES, "{capacity} for {left}");
}

#[test]
fn a_hand_over_does_not_wait_for_a_rate() {
    let mut client = Client::paced();
    client.send(&[&four()[..], QOS_0].concat());
    client.pause();
    let (done, _handed_over) = tokio::sync::oneshot::channel();
    let context = client.connection.context();
    context.mailbox.ask_for_hand_over(done);
    assert!(client.connection.is_handing_over());
    assert_eq!(client.offer_again(), Ok(Turn::Done), "nothing more is done");
    assert!(client.input.is_waiting());
    client.input.clear(&client.connection);
    assert_eq!(client.lost(), 1);
}

#[path = "input_weight_tests.rs"]
mod weight;
