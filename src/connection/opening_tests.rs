//! What a CONNECT is refused for before its session is opened.

use std::time::Duration;

use super::opening::{Login, Opening, Place};
use super::origin::Origin;
use crate::auth::Principal;
use crate::base::ids::{LogIndex, SessionId};
use crate::base::proto::state;
use crate::base::time::Elapsed;
use crate::codec::{decode_connect, frame};
use crate::config::Listener;
use crate::connection::context::Context;
use crate::machine::subscriptions::Queueing;

/// A CONNECT with Clean Start, and with a will to the topic `t` if these are flags of one.
fn connect(will_flags: u8, payload: u8) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05".to_vec();
    body.push(2 | will_flags);
    body.extend(b"\0\0\0\0\x01c");
    if will_flags != 0 {
        body.extend(b"\0\0\x01t\0");
        body.push(payload);
        body.extend(vec![b'p'; payload.into()]);
    }
    let mut packet = vec![0x10, body.len() as u8];
    packet.extend(body);
    packet
}

#[test]
fn p12_a_will_that_would_be_stored_is_refused_while_disks_are_low() {
    const WILL: u8 = 4;
    const QOS_1: u8 = 8;
    const RETAIN: u8 = 0x20;
    let context = Context::for_tests(false);
    let broker = &context.broker;
    broker.state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    broker.state.contact().hold_until(forever);
    let listener = Listener::of_address("127.0.0.1:1883".parse().expect("an address"));
    let is_taken = |will_flags, payload| {
        let bytes = connect(will_flags, payload);
        let found = frame::next(&bytes, u32::MAX).expect("well-formed");
        let connect = decode_connect(found.expect("whole")).expect("well-formed");
        let login = Login {
            principal: Principal::anonymous(),
            origin: Origin::for_tests(),
            data: Vec::new(),
        };
        let place = Place {
            address: None,
            listener: &listener,
        };
        Opening::begin(broker, &connect, login, &place).is_ok()
    };
    assert!(is_taken(WILL | RETAIN, 1));
    broker.state.set_refuses_writes(true);
    assert!(is_taken(0, 0));
    assert!(!is_taken(WILL | RETAIN, 1));
    assert!(is_taken(WILL | RETAIN, 0), "it makes room");
    assert!(is_taken(WILL | QOS_1, 1), "nobody keeps it");
    let index = broker.services.router.subscriptions();
    let queueing = Queueing {
        durable: true,
        qos_0: false,
    };
    let row = state::Subscription {
        qos: 1,
        ..state::Subscription::default()
    };
    index.put(SessionId(2), None, queueing, &[]);
    index.put_row(SessionId(2), "t", &row, LogIndex::default());
    assert!(!is_taken(WILL | QOS_1, 1));
    assert_eq!(broker.metrics.writes_refused.get(), 2);
}
