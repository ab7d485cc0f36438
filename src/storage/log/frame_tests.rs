use super::*;
use crate::base::ids::GroupId;
use crate::storage::log::change::{Change, Changes, kind};
use proptest::prelude::*;

fn change<'a>() -> impl Strategy<Value = (u8, u32, u64, u64, Vec<u8>, Option<u64>)> + 'a {
    (
        1_u8..11,
        any::<u32>(),
        any::<u64>(),
        any::<u64>(),
        any::<Vec<u8>>(),
        any::<Option<u64>>(),
    )
}

fn made(parts: &(u8, u32, u64, u64, Vec<u8>, Option<u64>)) -> Change<'_> {
    let (which, group, a, b, bytes, option) = parts;
    let (group, a, b) = (GroupId(*group), *a, *b);
    match *which {
        kind::APPEND => Change::Append {
            group,
            index: a,
            term: b,
            kind: b as u8,
            payload: bytes,
        },
        kind::VOTE => Change::Vote { group, vote: bytes },
        kind::TRUNCATE => Change::Truncate {
            group,
            from: a,
            last_term: *option,
        },
        kind::PURGE => Change::Purge {
            group,
            upto: a,
            log_id: bytes,
        },
        kind::COMMITTED => Change::Committed {
            group,
            log_id: bytes,
        },
        kind::BOUNDS => Change::Bounds {
            group,
            start: a,
            last: option.map(|term| (term, b)),
        },
        kind::POINT => Change::Point {
            group,
            first: a,
            offset: b as u32,
        },
        kind::CUT => Change::Cut { group, from: a },
        kind::OPENED => Change::Opened { number: a },
        _ => Change::Closed,
    }
}

fn read(buffer: &[u8]) -> Option<Frame> {
    let head = Head::decode(buffer.first_chunk()?);
    let bytes = buffer.get(..HEADER + head.length)?;
    Frame::check(head, Bytes::copy_from_slice(bytes))
}

const PLACE: Place = Place {
    log: 1 << 40,
    segment: 7,
    offset: 1024,
    previous: 3,
    durable: 512,
};

proptest! {
    #[test]
    fn a_frame_comes_back_as_it_went(
        parts in proptest::collection::vec(change(), 0..9),
        bit in any::<proptest::sample::Index>(),
    ) {
        let mut buffer = Vec::new();
        begin(&mut buffer);
        for part in &parts {
            made(part).encode(&mut buffer);
        }
        let used = buffer.len();
        let sum = finish(&mut buffer, PLACE);
        prop_assert_eq!(buffer.len() % SECTOR, 0);
        let frame = read(&buffer).expect("it is whole");
        prop_assert_eq!((Some(frame.head.sum), frame.head.place), (sum, PLACE));
        prop_assert_eq!(frame.end(), 1024 + buffer.len() as u64);
        let changes: Vec<_> = Changes::of(&frame.payload).collect();
        let wanted: Vec<_> = parts.iter().map(|part| Ok(made(part))).collect();
        prop_assert_eq!(changes, wanted);

        // One bit that is another one is noticed.
        let bit = bit.index(used * 8);
        buffer[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(read(&buffer).is_none());
    }

    #[test]
    fn a_payload_that_was_tampered_with_is_read_to_an_end(
        parts in proptest::collection::vec(change(), 1..5),
        at: proptest::sample::Index,
        byte: u8,
        length: proptest::sample::Index,
    ) {
        let mut payload = Vec::new();
        for part in &parts {
            made(part).encode(&mut payload);
        }
        let end = length.index(payload.len()) + 1;
        payload.truncate(end);
        payload[at.index(end)] = byte;
        let changes: Vec<_> = Changes::of(&payload).collect();
        let known = changes.iter().take_while(|change| change.is_ok()).count();
        prop_assert!(changes.len() <= known + 1, "nothing follows what is unknown");
        // What is known takes its place, and nobody else's.
        let mut again = Vec::new();
        for change in changes.iter().flatten() {
            change.encode(&mut again);
        }
        prop_assert!(again.len() <= payload.len());
        prop_assert_eq!(again.len() == payload.len(), known == changes.len());
    }
}

#[test]
fn a_frame_that_no_segment_holds_is_refused() {
    let mut buffer = Vec::new();
    begin(&mut buffer);
    let far = Place {
        offset: u32::MAX - 100,
        ..PLACE
    };
    assert_eq!(finish(&mut buffer, far), None);
}
