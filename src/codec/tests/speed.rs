//! How long a packet takes, in a table; not a pass or fail.
//!
//! `cargo test --release --lib codec::tests::speed -- --ignored --nocapture`

use std::hint::black_box;
use std::time::Instant;

use super::super::*;
use super::*;

/// Calls per round: short enough that on a busy machine some rounds are not interrupted.
const CALLS: u32 = 5_000;

/// Nanoseconds per call: the best of many rounds, because the others were disturbed.
fn measure(mut call: impl FnMut() -> usize) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..400).map(round).fold(f64::MAX, f64::min)
}

fn row(what: &str, call: impl FnMut() -> usize) {
    println!("{what:58} {:7.1} ns", measure(call));
}

/// Empties the output before it grows.
fn bounded(out: &mut Vec<u8>) -> &mut Vec<u8> {
    if out.len() > 60_000 {
        out.clear();
    }
    out
}

fn publish_rows(label: &str, version: Version, payload: &[u8], forwardable: &[u8]) {
    let plain = PublishHeader::plain(version);
    let mut wire = Vec::new();
    encode_publish(
        &mut wire,
        "sensors/building/floor3/temperature",
        forwardable,
        payload,
        &plain,
    )
    .unwrap();
    let read = || {
        frame::next(black_box(&wire), 1 << 20)
            .unwrap()
            .expect("whole")
    };
    row(&format!("{label}: frame, decode"), || {
        let publish = decode_publish(version, read()).unwrap();
        publish.topic.len() + publish.payload.len() + usize::from(publish.retain)
    });
    let mut out = Vec::with_capacity(1 << 17);
    row(&format!("{label}: frame, decode, encode for one"), || {
        let publish = decode_publish(version, read()).unwrap();
        let forwardable = publish.properties.forwardable();
        encode_publish(
            bounded(&mut out),
            publish.topic,
            &forwardable,
            publish.payload,
            &plain,
        )
        .unwrap()
    });
    let topic = "sensors/building/floor3/temperature";
    let mut encode = |header: &PublishHeader<'_>| {
        encode_publish(bounded(&mut out), topic, forwardable, payload, header).unwrap()
    };
    row(&format!("{label}: one more subscriber, QoS 0"), || {
        encode(black_box(&plain))
    });
    let header = PublishHeader {
        qos: QoS::AtLeastOnce,
        packet_id: Some(id(9)),
        subscription_ids: &[7],
        remaining_expiry: Some(60),
        ..plain
    };
    row(
        &format!("{label}: one more, QoS 1, expiry, subscription id"),
        || encode(black_box(&header)),
    );
}

#[test]
#[ignore = "a measurement, for release builds"]
fn nanoseconds_per_packet() {
    publish_rows("PUBLISH 5.0, 16 B", Version::V5, &[7; 16], &[]);
    publish_rows("PUBLISH 3.1.1, 16 B", Version::V311, &[7; 16], &[]);
    publish_rows("PUBLISH 5.0, 256 B", Version::V5, &[7; 256], &[]);
    let mut list = PublishPropertiesBuf::new();
    list.push(Property::CorrelationData(&[7; 16])).unwrap();
    list.push(Property::ResponseTopic("clients/a/response"))
        .unwrap();
    list.push_user("__ts", "1700000000000:00000:node").unwrap();
    publish_rows(
        "PUBLISH 5.0, 256 B, 3 properties",
        Version::V5,
        &[7; 256],
        list.raw(),
    );
    let ack = Ack::success(id(5));
    let mut wire = Vec::new();
    encode::puback(&mut wire, Version::V5, &ack, PeerLimits::NONE).unwrap();
    row("PUBACK: frame, decode", || {
        let frame = frame::next(black_box(&wire), 1 << 20)
            .unwrap()
            .expect("whole");
        match decode(Version::V5, frame) {
            Ok(Packet::PubAck(ack)) => ack.packet_id.get().into(),
            other => panic!("{other:?}"),
        }
    });
    let mut out = Vec::with_capacity(1 << 17);
    row("PUBACK: encode", || {
        encode::puback(
            bounded(&mut out),
            Version::V5,
            black_box(&ack),
            PeerLimits::NONE,
        )
        .unwrap()
    });
}
