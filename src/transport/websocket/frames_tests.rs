//! Frames as clients send them: in fragments, in pieces, interleaved with control frames, and wrong.

use proptest::prelude::*;

use super::*;

/// A frame of a client with a mask.
fn frame(first: u8, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    write_header(&mut frame, Role::Client, first & 0x0f, payload.len());
    frame[0] = first;
    let at = frame.len() - 4;
    frame[at..].copy_from_slice(&mask);
    let masked = payload.iter().zip(mask.iter().cycle());
    frame.extend(masked.map(|(byte, mask)| byte ^ mask));
    frame
}

/// Gives a server these bytes in pieces of so many. Returns what it read, or its error.
fn read(frames: &mut Frames, bytes: &[u8], piece: usize) -> Result<Vec<u8>, FrameError> {
    let mut read = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        let mut piece = piece.to_vec();
        let length = frames.receive(&mut piece)?;
        read.extend_from_slice(&piece[..length]);
    }
    Ok(read)
}

const MASK: [u8; 4] = [1, 2, 3, 200];

#[test]
fn mqtt_6_0_0_2_packets_need_not_fit_frames() {
    let sent = [
        frame(0x02, b"abc", MASK),
        frame(0x89, b"ping", MASK),
        frame(0x00, b"", MASK),
        frame(0x80, b"defgh", MASK),
        frame(0x82, &[7; 300], MASK),
    ]
    .concat();
    for piece in [1, 2, 3, 7, 1000] {
        let mut frames = Frames::new(Role::Server);
        let expected = [&b"abcdefgh"[..], &[7; 300]].concat();
        assert_eq!(read(&mut frames, &sent, piece), Ok(expected));
        assert_eq!(frames.answers, b"\x8a\x04ping");
    }
}

#[test]
fn what_a_client_does_wrong_has_its_close_code() {
    let huge = b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0";
    let cases: [(Vec<u8>, u16); 12] = [
        (frame(0x81, b"text", MASK), 1003),
        (frame(0xc2, b"compressed", MASK), 1002),
        (b"\x82\x01a".to_vec(), 1002),
        (frame(0x80, b"nothing to continue", MASK), 1002),
        (
            [frame(0x02, b"", MASK), frame(0x82, b"", MASK)].concat(),
            1002,
        ),
        (frame(0x09, b"in fragments", MASK), 1002),
        (frame(0x89, &[0; 126], MASK), 1002),
        (frame(0x83, b"", MASK), 1002),
        (huge.to_vec(), 1002),
        (frame(0x88, b"\x03\xed", MASK), 1002),
        (frame(0x88, b"\x03", MASK), 1002),
        (frame(0x88, b"\x03\xe8\xff", MASK), 1007),
    ];
    for (sent, code) in cases {
        let mut frames = Frames::new(Role::Server);
        let error = read(&mut frames, &sent, 5).expect_err("it is wrong");
        assert_eq!(error.code, code, "{sent:?}");
        assert_eq!(frames.answers[..2], [0x88, 2]);
        assert_eq!(frames.answers[2..], code.to_be_bytes());
        assert!(frames.is_closed());
    }
}

#[test]
fn an_announced_length_costs_nothing() {
    let mut frames = Frames::new(Role::Server);
    let mut sent = b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0abc".to_vec();
    assert_eq!(frames.receive(&mut sent), Ok(3));
    assert_eq!(frames.held_bytes(), 0);
}

#[test]
fn a_close_is_answered_once_and_ends_the_input() {
    let mut frames = Frames::new(Role::Server);
    let sent = [
        frame(0x88, b"\x03\xe9bye", MASK),
        frame(0x82, b"late", MASK),
    ]
    .concat();
    assert_eq!(read(&mut frames, &sent, 100), Ok(Vec::new()));
    frames.close(1000);
    assert_eq!(frames.answers, b"\x88\x02\x03\xe9");
    assert!(frames.is_closed() && frames.has_sent_close());
}

#[test]
fn pings_without_end_fill_no_memory() {
    let mut frames = Frames::new(Role::Server);
    let ping = frame(0x89, &[b'p'; 125], MASK);
    for _ in 0..1000 {
        read(&mut frames, &ping, 1000).expect("it may");
    }
    assert!(frames.answers.len() < MOST_ANSWERS_BYTES + 130);
}

proptest! {
    #[test]
    fn any_split_of_frames_and_pieces_gives_the_bytes(
        parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..400), any::<[u8; 4]>(), any::<bool>()), 1..8),
        piece in 1..500usize,
    ) {
        let (mut sent, mut expected, mut is_open) = (Vec::new(), Vec::new(), false);
        for (bytes, mask, is_final) in &parts {
            let opcode = if is_open { CONTINUATION } else { BINARY };
            let fin = if *is_final { 0x80 } else { 0 };
            sent.extend(frame(fin | opcode, bytes, *mask));
            sent.extend(frame(0x8a, b"pong", *mask));
            expected.extend_from_slice(bytes);
            is_open = !is_final;
        }
        let mut frames = Frames::new(Role::Server);
        prop_assert_eq!(read(&mut frames, &sent, piece), Ok(expected));
    }

    #[test]
    fn no_bytes_make_it_panic_or_keep_much(bytes in proptest::collection::vec(any::<u8>(), 0..600), piece in 1..100usize) {
        let mut frames = Frames::new(Role::Server);
        let _ = read(&mut frames, &bytes, piece);
        prop_assert!(frames.held_bytes() < 4 * MOST_ANSWERS_BYTES);
    }

    #[test]
    fn what_a_server_writes_a_client_reads(length in 0..70_000usize) {
        let mut sent = Vec::new();
        Frames::new(Role::Server).write_binary_header(&mut sent, length);
        sent.resize(sent.len() + length, 9);
        let mut client = Frames::new(Role::Client);
        prop_assert_eq!(client.receive(&mut sent), Ok(length));
    }
}
