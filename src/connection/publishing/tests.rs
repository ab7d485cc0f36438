//! PUBLISH from its arrival to its acknowledgement, without socket, log and other nodes.

use super::*;
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner, SessionId};
use crate::base::limits;
use crate::base::proto::state;
use crate::codec::{PublishProperties, Version};
use crate::machine::subscriptions::Queueing;
use crate::mailbox::back_pressure::OutboxLimits;
use crate::mailbox::{Mailbox, NewPacket, WakeList};
use crate::replica::proposer::Cursor;

const ID: PacketId = PacketId::new(7).expect("not zero");

fn publish(qos: QoS, retain: bool) -> Publish<'static> {
    Publish {
        dup: false,
        qos,
        retain,
        topic: "t",
        packet_id: Some(ID).filter(|_| qos != QoS::AtMostOnce),
        properties: PublishProperties::EMPTY,
        payload: b"payload",
    }
}

struct Client {
    context: Context,
    publishing: Publishing,
}

impl Client {
    fn new(is_durable: bool) -> Client {
        Client {
            context: Context::for_tests(is_durable),
            publishing: Publishing::new(NonZeroU16::MAX, vec![], LogIndex::default()),
        }
    }

    fn publish(&mut self, qos: QoS, retain: bool) -> Flow {
        let publish = publish(qos, retain);
        self.publishing
            .handle_publish(&mut self.context, publish.topic, &publish)
            .expect("within the receive maximum")
    }

    fn reply(&mut self, request_id: RequestId, reply: &Reply) {
        self.context.requests.applied(request_id);
        self.publishing
            .handle_reply(&mut self.context, request_id, reply)
            .expect("the connection goes on");
    }

    fn sent(&mut self) -> Vec<u8> {
        self.context.take_acknowledgements()
    }
}

#[test]
fn without_subscribers_nothing_is_waited_for() {
    let mut client = Client::new(false);
    assert_eq!(client.publish(QoS::AtMostOnce, false), Flow::Continue);
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Continue);
    assert_eq!(client.sent(), [0x40, 3, 0, 7, 0x10]);
    assert_eq!(client.publish(QoS::ExactlyOnce, false), Flow::Continue);
    assert_eq!(client.sent(), [0x50, 3, 0, 7, 0x10]);
    assert_eq!(client.context.requests.len(), 0);
}

#[test]
fn without_a_routing_lease_messages_wait() {
    let mut client = Client::new(false);
    client.context.has_routing_lease = false;
    assert_eq!(client.publish(QoS::AtMostOnce, false), Flow::Retry);
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Retry);
    assert_eq!(client.publish(QoS::AtLeastOnce, true), Flow::Retry);
    assert_eq!(client.context.requests.len(), 0, "it may be revoked");
}

#[test]
fn p5_a_message_follows_an_earlier_one_of_its_qos_into_the_log() {
    let mut client = Client::new(false);
    client.publish(QoS::AtLeastOnce, true);
    client.publish(QoS::AtLeastOnce, false);
    assert_eq!(client.context.requests.len(), 2);
    assert_eq!(client.publish(QoS::ExactlyOnce, false), Flow::Continue);
    assert_eq!(client.sent(), [0x50, 3, 0, 7, 0x10], "another QoS need not");
    // Retaining a message is a use of it, too.
    client.reply(0, &Reply::Published { matched: false });
    client.reply(1, &Reply::Published { matched: false });
    assert_eq!(client.sent(), [0x40, 2, 0, 7, 0x40, 3, 0, 7, 0x10]);
    client.publish(QoS::AtLeastOnce, false);
    assert_eq!(
        client.sent(),
        [0x40, 3, 0, 7, 0x10],
        "the log is empty again"
    );
}

#[test]
fn mqtt_4_3_3_10_a_repeated_message_is_answered_as_often_as_it_came() {
    let mut client = Client::new(true);
    client.publish(QoS::ExactlyOnce, false);
    client.publish(QoS::ExactlyOnce, false);
    assert_eq!(client.publish(QoS::ExactlyOnce, false), Flow::Retry);
    assert!(client.sent().is_empty());
    client.reply(0, &Reply::Published { matched: true });
    assert_eq!(client.sent(), [0x50, 2, 0, 7, 0x50, 2, 0, 7]);
    client.publish(QoS::ExactlyOnce, false);
    assert_eq!(client.sent(), [0x50, 2, 0, 7], "delivered once");
    assert!(client.publishing.handle_pubrel(&mut client.context, ID));
    assert!(client.sent().is_empty(), "PUBCOMP follows the commit");
    client
        .publishing
        .handle_pubrel_logged(&mut client.context, ID);
    assert_eq!(client.sent(), [0x70, 2, 0, 7]);
}

#[test]
fn a_slow_subscriber_defers_the_acknowledgement_of_a_logged_message() {
    let mut client = Client::new(true);
    client.publish(QoS::ExactlyOnce, false);
    let Client {
        context,
        publishing,
    } = &mut client;
    publishing.handle_deferred(context, 0);
    let replied = publishing.handle_reply(context, 0, &Reply::Published { matched: true });
    assert!(replied.is_ok());
    assert!(context.take_acknowledgements().is_empty());
    publishing.handle_released(context, 0);
    assert_eq!(context.take_acknowledgements(), [0x50, 2, 0, 7]);
    assert_eq!(context.requests.len(), 0);
}

/// Messages with QoS 0 on their way through the log keep others waiting, but a client does not count them.
#[test]
fn mqtt_3_3_4_7_qos_0_does_not_count_against_the_receive_maximum() {
    let mut client = Client::new(false);
    let maximum = client.context.options.bounds.receive_maximum;
    while client.publish(QoS::AtMostOnce, true) == Flow::Continue {}
    assert_eq!(client.context.requests.len(), usize::from(maximum));
    assert_eq!(client.publish(QoS::AtLeastOnce, true), Flow::Retry);
    client.reply(0, &Reply::Published { matched: true });
    assert_eq!(client.publish(QoS::AtLeastOnce, true), Flow::Continue);
}

/// Everybody's commands on the node wait behind its own.
#[test]
fn p12_a_client_whose_messages_go_into_many_queues_has_few_of_them_under_way() {
    let mut client = Client::new(false);
    let (proposer, mut cursor) = (
        client.context.broker.services.proposer.clone(),
        Cursor::default(),
    );
    proposer.begin(Incarnation(7));
    assert!(proposer.next(&mut cursor).is_some(), "the registration");
    client.context.subscribe_durably();
    let most =
        limits::CLIENT_WEIGHT_UNDER_WAY / (limits::QUEUES_AT_LEAST * limits::LOGGED_QUEUE_BYTES);
    Arc::make_mut(&mut client.context.options.bounds).receive_maximum = u16::MAX;
    for _ in 0..most {
        assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Continue);
    }
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce] {
        assert_eq!(client.publish(qos, true), Flow::Retry, "it has much");
    }
    // It is applied, and waits for a subscriber that reads slowly.
    client.publishing.handle_deferred(&mut client.context, 0);
    client.reply(0, &Reply::Published { matched: true });
    assert_eq!(client.context.requests.len(), most);
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Continue);
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Retry);
    // All of it leaves in one proposal: nobody waits behind it any more.
    assert!(proposer.next(&mut cursor).is_some());
    let others_wait = most * limits::CROWDED_BYTES / limits::CLIENT_WEIGHT_UNDER_WAY;
    for _ in 0..others_wait {
        assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Continue);
    }
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Retry);
}

#[test]
fn topics_of_the_broker_are_refused() {
    for topic in ["$SYS/broker/uptime", "$events/v1/clients/a/deleted"] {
        let mut client = Client::new(false);
        let acknowledged = publish(QoS::AtLeastOnce, false);
        let publishing = &mut client.publishing;
        let flow = publishing.handle_publish(&mut client.context, topic, &acknowledged);
        assert_eq!(flow, Ok(Flow::Continue));
        // Packet id, reason code, and the properties with a reason string.
        let length = 2 + 1 + 1 + 3 + "the topic is the broker's own".len() as u8;
        assert_eq!(client.sent()[..5], [0x40, length, 0, 7, 0x87], "{topic}");
        let unacknowledged = publish(QoS::AtMostOnce, true);
        let publishing = &mut client.publishing;
        let flow = publishing.handle_publish(&mut client.context, topic, &unacknowledged);
        assert_eq!(flow, Ok(Flow::Continue));
        assert!(client.context.requests.len() == 0, "nothing is proposed");
    }
}

#[test]
fn topics_of_the_hub_are_refused_while_there_is_one() {
    for has_hub in [true, false] {
        let mut client = Client::new(false);
        let broker = Arc::get_mut(&mut client.context.broker).expect("no other connection");
        broker.services.hub = has_hub.then(crate::connection::hub::shared::Hub::for_tests);
        for topic in ["$iothub/twin/GET/", "devices/d/messages/events/"] {
            let publish = publish(QoS::AtLeastOnce, false);
            let flow = client
                .publishing
                .handle_publish(&mut client.context, topic, &publish);
            assert_eq!(flow, Ok(Flow::Continue));
            let is_of_hub = has_hub || topic.starts_with("$iothub/");
            let code = if is_of_hub { 0x87 } else { 0x10 };
            assert_eq!(client.sent()[4], code, "{topic}");
        }
    }
}

/// Disks are nearly full: what would be stored is refused, the rest goes on.
#[test]
fn p12_a_message_that_would_be_stored_is_refused_while_disks_are_low() {
    let mut client = Client::new(false);
    client.context.broker.state.set_refuses_writes(true);
    assert_eq!(client.publish(QoS::AtLeastOnce, true), Flow::Continue);
    let sent = client.sent();
    assert_eq!((sent[0], &sent[2..5]), (0x40, &[0, 7, 0x97][..]));
    assert_eq!(client.publish(QoS::ExactlyOnce, true), Flow::Continue);
    let sent = client.sent();
    assert_eq!((sent[0], &sent[2..5]), (0x50, &[0, 7, 0x97][..]));
    assert_eq!(client.publish(QoS::AtMostOnce, true), Flow::Continue);
    assert_eq!(client.context.requests.len(), 0, "nothing is proposed");
    let metrics = &client.context.broker.metrics;
    assert_eq!(metrics.writes_refused.get(), 3);
    assert_eq!(metrics.messages_dropped.of(DropReason::DiskLow).get(), 1);
    // Past the log nothing is stored.
    assert_eq!(client.publish(QoS::AtLeastOnce, false), Flow::Continue);
    assert_eq!(client.sent(), [0x40, 3, 0, 7, 0x10]);
    let mut deletion = publish(QoS::AtLeastOnce, true);
    deletion.payload = b"";
    let topic = deletion.topic;
    let flow = client
        .publishing
        .handle_publish(&mut client.context, topic, &deletion);
    assert!(matches!(flow, Ok(Flow::Continue)));
    assert_eq!(client.context.requests.len(), 1, "it makes room");
    client.context.broker.state.set_refuses_writes(false);
    client.publish(QoS::AtLeastOnce, true);
    assert_eq!(client.context.requests.len(), 2);
}

/// MQTT 3 has no reason to give with an acknowledgement, and a plain one would say that the message is stored.
#[test]
fn p1_before_mqtt_5_a_message_that_is_refused_ends_the_connection() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut client = Client::new(false);
        client.context.options.version = crate::codec::Version::V311;
        client.publish(qos, true);
        let refused = client
            .publishing
            .handle_reply(&mut client.context, 0, &Reply::QuotaExceeded);
        assert!(refused.is_err());
        assert_eq!(client.sent(), [0; 0]);
    }
}

/// The client may publish to `t` with QoS 1 at most, and nothing that is retained.
const RULES: &str = r#"{"rules": [{"broker_resources": [
    {"method": "publish", "topics": ["t"], "max_qos": 1, "retain": false}]}]}"#;

fn with_rules(client: &Client) {
    let rules = crate::acl::Rules::parse(RULES.as_bytes(), 1).expect("rules");
    client.context.broker.services.rules.set(rules);
}

#[test]
fn what_the_rules_do_not_allow_is_refused_and_counted() {
    let mut client = Client::new(true);
    with_rules(&client);
    client.publish(QoS::AtLeastOnce, false);
    assert_eq!(client.sent(), [0x40, 3, 0, 7, 0x10], "it may");
    for (qos, retain, first) in [
        (QoS::AtLeastOnce, true, 0x40),
        (QoS::ExactlyOnce, false, 0x50),
    ] {
        assert_eq!(client.publish(qos, retain), Flow::Continue);
        let sent = client.sent();
        assert_eq!((sent[0], &sent[2..5]), (first, &[0, 7, 0x87][..]));
    }
    assert_eq!(client.publish(QoS::AtMostOnce, true), Flow::Continue);
    assert_eq!(client.context.requests.len(), 0, "nothing is proposed");
    let metrics = &client.context.broker.metrics;
    let action = crate::telemetry::labels::Action::Publish;
    assert_eq!(metrics.not_authorized.of(action).get(), 3);
    let dropped = &metrics.messages_dropped;
    assert_eq!(dropped.of(DropReason::NotAuthorized).get(), 3);
    // The rules change, and so does what it may.
    let open = crate::acl::Rules::open();
    client.context.broker.services.rules.set(open);
    client.publish(QoS::AtLeastOnce, true);
    assert_eq!(client.context.requests.len(), 1);
}

#[test]
fn mqtt311_3_3_5_2_a_refused_message_is_acknowledged_or_ends_the_connection() {
    let mut client = Client::new(false);
    client.context.options.version = crate::codec::Version::V311;
    with_rules(&client);
    client.publish(QoS::AtLeastOnce, true);
    assert_eq!(client.sent(), [0x40, 2, 0, 7]);
    assert_eq!(client.context.requests.len(), 0, "and dropped");
    let broker = Arc::get_mut(&mut client.context.broker).expect("no other connection");
    broker.settings.mqtt.refused_publish = RefusedPublish::Disconnect;
    let publish = publish(QoS::AtLeastOnce, true);
    let ended = client
        .publishing
        .handle_publish(&mut client.context, publish.topic, &publish);
    let reason = ended.expect_err("as it is configured").reason;
    assert_eq!(reason, Some(ReasonCode::NotAuthorized));
}

/// A subscriber of this node gets messages from the log straight, whoever else they are queued for.
#[test]
fn a_slow_subscriber_slows_down_whose_messages_go_through_the_log() {
    let mut client = Client::new(false);
    let router = client.context.broker.services.router.clone();
    let connection = ConnectionId(2);
    let subscriber = Mailbox::new(connection, Version::V5, u32::MAX, 0, OutboxLimits::of(100));
    router.register(subscriber.clone());
    let owner = Owner {
        node: NodeId(0),
        incarnation: Incarnation::default(),
        connection,
    };
    let row = state::Subscription {
        qos: 1,
        ..state::Subscription::default()
    };
    let index = router.subscriptions();
    index.put(SessionId(2), Some(owner), Queueing::default(), &[]);
    index.put_row(SessionId(2), "t", &row, LogIndex::default());

    let payload = vec![0; limits::PUBLISHER_UNACKNOWLEDGED_BYTES / 2];
    let mut large = publish(QoS::AtLeastOnce, true);
    large.payload = &payload;
    let publish = |client: &mut Client| {
        let Client {
            context,
            publishing,
        } = client;
        let flow = publishing.handle_publish(context, "t", &large);
        flow.expect("within the receive maximum")
    };
    assert_eq!(publish(&mut client), Flow::Continue);
    assert_eq!(publish(&mut client), Flow::Continue);
    assert_eq!(publish(&mut client), Flow::Retry, "enough is in the log");
    client.reply(0, &Reply::Published { matched: true });
    assert_eq!(publish(&mut client), Flow::Continue);
    for request_id in [1, 0] {
        client.reply(request_id, &Reply::Published { matched: true });
    }
    let full = subscriber.push_packet(NewPacket::of(QoS::AtLeastOnce), |out| {
        out.extend([0; 100]);
        Ok(())
    });
    assert!(full.is_ok());
    assert_eq!(publish(&mut client), Flow::Retry, "there is no room");
    assert!(client.publishing.awaits_room());
    assert!(!client.context.mailbox.take_offer());
    subscriber.close(&mut WakeList::default());
    assert!(client.context.mailbox.take_offer(), "it is read again");
    assert_eq!(publish(&mut client), Flow::Continue);
    assert!(!client.publishing.awaits_room());
}
