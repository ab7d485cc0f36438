//! Reads of a stream with frames.

use std::io::Write as _;

use super::super::websocket::Role;
use super::*;

/// Each frame is whole, masked and empty: there is always more of them, and never anything for MQTT.
#[tokio::test]
async fn a_flood_of_what_is_not_for_mqtt_does_not_hold_a_thread() {
    for first in [0x89, 0x8a, 0x82] {
        let (one, _other) = tokio::net::UnixStream::pair().expect("a pair");
        let mut layered = Layered::new(Socket::Unix(one), None);
        layered.begin_frames(Frames::new(Role::Server));
        let mut buffer = vec![0; limits::READ_BUFFER_BYTES / 6 * 6];
        let mut reads = 0;
        let read = layered.read_with(&mut buffer, READS_AT_ONCE, |_, bytes| {
            reads += 1;
            for frame in bytes.chunks_exact_mut(6) {
                frame.copy_from_slice(&[first, 0x80, 0, 0, 0, 0]);
            }
            Poll::Ready(Ok(bytes.len()))
        });
        assert!(matches!(read, Poll::Ready(Ok(None) | Err(_))), "{read:?}");
        assert!(reads <= READS_AT_ONCE);
    }
}

/// A stream of WebSocket, and its other end.
fn framed() -> (Layered, std::os::unix::net::UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.set_nonblocking(true).expect("it is open");
    let one = tokio::net::UnixStream::from_std(one).expect("in a runtime");
    let mut layered = Layered::new(Socket::Unix(one), None);
    layered.begin_frames(Frames::new(Role::Server));
    (layered, other)
}

/// A frame with a DISCONNECT.
const DATA: [u8; 8] = [0x82, 0x82, 0, 0, 0, 0, 0xE0, 0];

const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];

#[tokio::test]
async fn what_comes_before_a_ping_is_read_though_no_pong_can_be_sent() {
    let (mut layered, mut other) = framed();
    let sent = [&DATA[..], &PING].concat();
    other.write_all(&sent).expect("it is open");
    let ready = std::future::poll_fn(|context| layered.socket.poll_write_ready(context));
    ready.await.expect("it is open");
    drop(other);
    let mut buffer = [0; 100];
    let read = layered.read_now(&mut buffer, &mut 64);
    assert_eq!(read.expect("it has arrived"), 2);
    assert_eq!(buffer[..2], [0xE0, 0]);
}

/// Whether it comes with the frame that is wrong, or before it, is up to the network.
#[tokio::test]
async fn what_comes_before_a_frame_that_is_wrong_is_read() {
    let text = [0x81, 0x80, 0, 0, 0, 0];
    let half_a_code = [0x88, 0x81, 0, 0, 0, 0, 3];
    for wrong in [&text[..], &half_a_code] {
        let (mut layered, mut other) = framed();
        other
            .write_all(&[&DATA[..], wrong].concat())
            .expect("it is open");
        let mut buffer = [0; 100];
        let read = layered.read_now(&mut buffer, &mut 64);
        assert_eq!(read.expect("it has arrived"), 2);
        assert_eq!(buffer[..2], [0xE0, 0]);
        let end = layered.read_now(&mut buffer, &mut 64);
        assert_eq!(end.expect("it is over"), 0);
        assert_eq!(layered.end(), StreamEnd::Violated);
    }
}

#[tokio::test]
async fn the_last_reads_are_bounded_altogether() {
    let (mut layered, mut other) = framed();
    // A byte of MQTT in every fourth read.
    let data = [0x82, 0x80, 0, 0, 0, 0];
    let byte = [0x82, 0x81, 0, 0, 0, 0, 0xC0];
    for _ in 0..100 {
        let sent = [&PING[..], &data, &data, &byte].concat();
        other.write_all(&sent).expect("it is open");
    }
    let (mut reads, mut all) = (64, 0);
    let mut buffer = [0; 6];
    while let Ok(read) = layered.read_now(&mut buffer, &mut reads) {
        all += read;
    }
    assert_eq!(reads, 0);
    assert!((10..20).contains(&all), "{all} bytes");
}
