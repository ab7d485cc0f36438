//! The client against a scripted server on a real socket: what it does when servers refuse, vanish or forget.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::codec::{
    self, Ack, ConnAck, MAX_PACKET_SIZE, Packet, PeerLimits, Property, PublishHeader,
    PublishPropertiesBuf, QoS, ReasonCode, SubAck, UserProperties, Version, encode, frame,
};

/// How a server treats its clients.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Answers every request with `+OK` and version 7.
    Answer,
    /// Refuses CONNECT: server unavailable.
    NoLeader,
    /// Refuses CONNECT: not authorized.
    Forbid,
    /// Closes the connection when a request comes.
    Vanish,
    /// Acknowledges requests and never answers.
    Silent,
    /// Refuses requests in PUBACK.
    RefuseRequests,
}

/// Correlation data of every request that any server got.
type Requests = Arc<Mutex<Vec<Vec<u8>>>>;

async fn server(manner: Manner, requests: &Requests) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let requests = requests.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, manner, requests.clone()));
        }
    });
    address.parse().expect("an address")
}

async fn serve(mut stream: TcpStream, manner: Manner, requests: Requests) {
    let mut input = BytesMut::new();
    let mut greeted = false;
    while stream
        .read_buf(&mut input)
        .await
        .is_ok_and(|count| count > 0)
    {
        let mut output = Vec::new();
        let mut open = true;
        while let Some(frame) = frame::next(&input, MAX_PACKET_SIZE).expect("the client sends MQTT")
        {
            let length = frame.length;
            if greeted {
                let packet = codec::decode(Version::V5, frame).expect("the client sends MQTT");
                open &= handle(packet, manner, &requests, &mut output);
            } else {
                greeted = true;
                open &= greet(manner, &mut output);
            }
            input.advance(length);
        }
        if stream.write_all(&output).await.is_err() || !open {
            return;
        }
    }
}

fn greet(manner: Manner, output: &mut Vec<u8>) -> bool {
    let ack = match manner {
        Manner::NoLeader => ConnAck::refused(ReasonCode::ServerUnavailable),
        Manner::Forbid => ConnAck::refused(ReasonCode::NotAuthorized),
        _ => ConnAck::accepted(false),
    };
    let accepted = ack.reason == ReasonCode::Success;
    encode::connack(output, Version::V5, &ack, PeerLimits::NONE).expect("a small packet");
    accepted
}

fn handle(packet: Packet<'_>, manner: Manner, requests: &Requests, output: &mut Vec<u8>) -> bool {
    let none = PeerLimits::NONE;
    match packet {
        Packet::Subscribe(packet) => {
            let ack = SubAck {
                packet_id: packet.packet_id,
                reasons: vec![ReasonCode::GrantedQos1].into(),
                reason_string: None,
                user_properties: UserProperties::NONE,
            };
            encode::suback(output, Version::V5, &ack, none).expect("a small packet");
        }
        Packet::Publish(packet) => {
            let correlation = packet.properties.correlation_data().expect("a request");
            requests.lock().push(correlation.to_vec());
            let id = packet.packet_id.expect("QoS 1");
            let reason = match manner {
                Manner::Vanish => return false,
                Manner::RefuseRequests => ReasonCode::QuotaExceeded,
                _ => ReasonCode::Success,
            };
            let ack = Ack::with_reason(id, reason);
            encode::puback(output, Version::V5, &ack, none).expect("a small packet");
            if manner == Manner::Answer {
                let topic = packet.properties.response_topic().expect("a request");
                answer(topic, correlation, output);
            }
        }
        _ => {}
    }
    true
}

fn answer(topic: &str, correlation: &[u8], output: &mut Vec<u8>) {
    let mut properties = PublishPropertiesBuf::new();
    let list = properties
        .push(Property::CorrelationData(correlation))
        .and_then(|list| list.push_user("__stat", "200"))
        .and_then(|list| list.push_user("__ts", "7"))
        .expect("small properties");
    let delivery = PublishHeader {
        qos: QoS::AtLeastOnce,
        packet_id: Some(NonZeroU16::MIN),
        ..PublishHeader::plain(Version::V5)
    };
    codec::encode_publish(output, topic, list.raw(), b"+OK\r\n", &delivery)
        .expect("a small packet");
}

/// Sends one SET over servers of these manners; returns the outcome and the requests that were seen.
async fn set_over(
    manners: &[Manner],
    timeout_ms: u64,
) -> (Result<(Answer, Option<String>), ClientError>, Vec<Vec<u8>>) {
    let requests = Requests::default();
    let mut servers = Vec::new();
    for manner in manners {
        servers.push(server(*manner, &requests).await);
    }
    let options = Options::new(servers, "test".into());
    let mut store = StateStore::new(options, Duration::from_millis(timeout_ms));
    let outcome = store.call(&[b"SET", b"k", b"v"], None).await;
    store.close().await;
    let seen = requests.lock().clone();
    (outcome, seen)
}

#[tokio::test]
async fn an_answer_comes_with_its_version() {
    let (outcome, seen) = set_over(&[Manner::Answer], 5_000).await;
    assert_eq!(outcome.expect("an answer"), (Answer::Ok, Some("7".into())));
    assert_eq!((seen.len(), seen[0].len()), (1, 16));
}

#[tokio::test]
async fn a_request_whose_server_vanished_is_sent_again_under_the_same_correlation_data() {
    let (outcome, seen) = set_over(&[Manner::Vanish, Manner::Answer], 5_000).await;
    assert_eq!(outcome.expect("an answer").0, Answer::Ok);
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1], "the store must recognise the request");
}

#[tokio::test]
async fn a_server_without_leader_is_passed_over() {
    let (outcome, _) = set_over(&[Manner::NoLeader, Manner::Answer], 5_000).await;
    assert_eq!(outcome.expect("an answer").0, Answer::Ok);
}

#[tokio::test]
async fn no_leader_anywhere_is_told_from_no_server() {
    let (outcome, _) = set_over(&[Manner::NoLeader], 300).await;
    assert!(
        matches!(outcome, Err(ClientError::NoLeader(_))),
        "{outcome:?}"
    );
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = closed.local_addr().expect("bound").to_string();
    drop(closed);
    let options = Options::new(vec![address.parse().expect("a server")], "test".into());
    let mut store = StateStore::new(options, Duration::from_millis(300));
    let outcome = store.call(&[b"GET", b"k"], None).await;
    assert!(
        matches!(outcome, Err(ClientError::Unreachable(_))),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn silence_ends_with_a_time_out() {
    let (outcome, _) = set_over(&[Manner::Silent], 300).await;
    assert!(
        matches!(outcome, Err(ClientError::TimedOut(_))),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_refusal_is_final() {
    for manner in [Manner::Forbid, Manner::RefuseRequests] {
        let (outcome, seen) = set_over(&[manner, Manner::Answer], 5_000).await;
        assert!(
            matches!(outcome, Err(ClientError::Refused { .. })),
            "{outcome:?}"
        );
        assert!(seen.len() <= 1, "a refused request is not tried elsewhere");
    }
}
