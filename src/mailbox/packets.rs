//! Encoded packets in one buffer, with large message bodies beside it.
//!
//! A body of [`limits::SHARED_BODY_BYTES`] or more is kept once for all subscribers of its message: each of them has
//! the beginning of the packet in its own buffer and a reference to the body. Smaller bodies are copied, which is
//! cheaper.
//!
//! Invariant: a body stands at the end of its packet. The offset that it is known by is where it goes into the buffer.
//! Invariant: a body counts once against the memory of the node, and in full in what waits for each of its clients.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::{Deref, Range};
use std::sync::{Arc, Weak};

use super::memory::{Charge, NodeMemory};
use crate::codec::{QoS, frame};

/// A message body that several packets share.
#[derive(Clone, Debug)]
pub struct Body(Arc<Shared>);

/// A body that is there as long as a packet has it.
#[derive(Debug, Default)]
pub struct WeakBody(Weak<Shared>);

impl WeakBody {
    /// The body, if a packet still has it.
    pub fn upgrade(&self) -> Option<Body> {
        self.0.upgrade().map(Body)
    }
}

#[derive(Debug)]
struct Shared {
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl Body {
    /// Copies a body, once for all who get it.
    pub fn new(payload: &[u8], memory: &Arc<NodeMemory>) -> Body {
        Body(Arc::new(Shared {
            bytes: payload.into(),
            _charge: Charge::new(memory, payload.len()),
        }))
    }

    /// Does not keep the body.
    pub fn downgrade(&self) -> WeakBody {
        WeakBody(Arc::downgrade(&self.0))
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

/// A packet in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Where it ends in the buffer.
    pub end: usize,
    /// All of its bytes, those of its body included.
    pub whole: usize,
    /// Its QoS.
    pub qos: QoS,
    /// Where its packet id is in the buffer, unless it has QoS 0.
    pub packet_id_at: usize,
    /// Its body is shared, and not in the buffer.
    pub has_body: bool,
}

/// PUBLISH packets one behind the other.
#[derive(Debug, Default)]
pub struct Packets {
    /// Whole packets, and the beginnings of those whose body is not in here.
    pub bytes: Vec<u8>,
    /// The other bodies, each with the offset in `bytes` that it goes before. In order.
    bodies: VecDeque<(usize, Body)>,
    /// Bytes of `bodies`.
    body_bytes: usize,
}

impl Packets {
    /// Size of all packets, their bodies included.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.body_bytes
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops all packets and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bodies.clear();
        self.body_bytes = 0;
    }

    /// Drops what stands behind the first `end` bytes and the first `bodies` bodies, and gives its memory back.
    fn truncate(&mut self, end: usize, bodies: usize) {
        self.bytes.truncate(end);
        self.bytes.shrink_to_fit();
        self.bodies.truncate(bodies);
        self.body_bytes = self.bodies.iter().map(|(_, body)| body.len()).sum();
    }

    /// The last packet in the buffer ends with this body.
    pub fn push_body(&mut self, body: Body) {
        self.body_bytes += body.len();
        self.bodies.push_back((self.bytes.len(), body));
    }

    /// Takes the body that goes before `offset` or earlier. Bodies are taken from the front.
    pub fn take_body(&mut self, offset: usize) -> Option<Body> {
        let (_, body) = self.bodies.pop_front_if(|(at, _)| *at <= offset)?;
        self.body_bytes -= body.len();
        Some(body)
    }

    /// The packet that begins at `at`, if `bodies` of the bodies belong to packets before it.
    pub fn locate(&self, at: usize, bodies: usize) -> Option<Located> {
        let rest = self.bytes.get(at..)?;
        let header = frame::header(rest, u32::MAX).ok()??;
        let whole = at + header.total();
        let body = self.bodies.get(bodies);
        let body = body.filter(|(end, body)| end + body.len() == whole);
        let end = body.map_or(whole, |(end, _)| *end);
        let topic = rest.get(header.length..header.length + 2)?;
        let topic = usize::from(u16::from_be_bytes([topic[0], topic[1]]));
        let qos = QoS::from_bits(header.first >> 1 & 3)?;
        let packet_id_at = at + header.length + 2 + topic;
        let head = match qos {
            QoS::AtMostOnce => packet_id_at,
            _ => packet_id_at + 2,
        };
        (head <= end && end <= self.bytes.len()).then_some(Located {
            end,
            whole: header.total(),
            qos,
            packet_id_at,
            has_body: body.is_some(),
        })
    }

    /// Appends the packets in `range` to `to`. Ranges are taken from the front; the bytes stay until
    /// [`Packets::clear`].
    pub fn move_range(&mut self, range: Range<usize>, to: &mut Packets) {
        let base = to.bytes.len();
        to.bytes.extend_from_slice(&self.bytes[range.clone()]);
        while let Some((at, _)) = self.bodies.front()
            && *at <= range.end
        {
            let at = base + at.saturating_sub(range.start);
            if let Some(body) = self.take_body(range.end) {
                to.body_bytes += body.len();
                to.bodies.push_back((at, body));
            }
        }
    }
}

/// Packets on their way to a socket, which has taken some of them.
#[derive(Debug, Default)]
pub struct Unsent {
    packets: Packets,
    /// How much of the buffer was written.
    written: usize,
    /// How much of the first body was written.
    body_written: usize,
    /// A packet begins here, and everything before it was written.
    begun_at: usize,
}

impl Unsent {
    /// Begins with these packets.
    pub fn new(bytes: Vec<u8>) -> Unsent {
        Unsent {
            packets: Packets {
                bytes,
                ..Packets::default()
            },
            ..Unsent::default()
        }
    }

    /// Where more packets go.
    pub fn packets(&mut self) -> &mut Packets {
        &mut self.packets
    }

    /// Bytes that were not written.
    pub fn len(&self) -> usize {
        self.packets.len() - self.written - self.body_written
    }

    /// Whether everything was written.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes that nobody else holds.
    pub fn owned_len(&self) -> usize {
        self.packets.bytes.len()
    }

    /// The bytes that are to be written next, where one slice holds them all.
    pub fn contiguous(&self) -> Option<&[u8]> {
        self.packets
            .bodies
            .is_empty()
            .then(|| &self.packets.bytes[self.written..])
    }

    /// Fills `slices` with what is to be written next, up to `most` bytes, and returns how many it has filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>], most: usize) -> usize {
        let mut left = most;
        let mut next = slices.iter_mut();
        let mut count = 0;
        let mut from = self.written;
        let mut skip = self.body_written;
        let end = (self.packets.bytes.len(), &[][..]);
        let bodies = self.packets.bodies.iter().map(|(at, body)| (*at, &**body));
        for (at, body) in bodies.chain([end]) {
            for part in [&self.packets.bytes[from..at], &body[skip..]] {
                let part = &part[..left.min(part.len())];
                if part.is_empty() {
                    continue;
                }
                left -= part.len();
                let Some(slice) = next.next() else {
                    return count;
                };
                *slice = IoSlice::new(part);
                count += 1;
            }
            from = at;
            skip = 0;
        }
        count
    }

    /// A copy of everything that is to be written.
    #[cfg(test)]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); 2 * self.packets.bodies.len() + 1];
        let count = self.slices(&mut slices, usize::MAX);
        slices[..count]
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .collect()
    }

    /// Drops the packets of which nothing was written.
    pub fn drop_not_begun(&mut self) {
        let packets = &mut self.packets;
        let (mut end, mut bodies) = (self.begun_at, 0);
        while end < self.written && bodies == 0 {
            // Whole packets stand there; if not, nothing is dropped.
            let Ok(Some(found)) = frame::header(&packets.bytes[end..], u32::MAX) else {
                return;
            };
            let whole = end + found.total();
            // The body that stands within it is its own; it is not written, or it would not be there.
            let body = packets.bodies.front().map(|(at, _)| *at);
            let body = body.filter(|at| *at < whole);
            bodies = usize::from(body.is_some());
            end = body.unwrap_or(whole);
        }
        packets.truncate(end, bodies);
        if self.written == packets.len() {
            *self = Unsent::default();
        }
    }

    /// The socket has taken this many bytes.
    pub fn advance(&mut self, mut written: usize) {
        while let Some((at, body)) = self.packets.bodies.front() {
            let before = at - self.written;
            let left = body.len() - self.body_written;
            if written < before + left {
                self.written += written.min(before);
                self.body_written += written.saturating_sub(before);
                return;
            }
            written -= before + left;
            self.written += before;
            self.body_written = 0;
            self.begun_at = self.written;
            self.packets.take_body(usize::MAX);
        }
        self.written += written;
        if self.written == self.packets.bytes.len() {
            self.written = 0;
            self.begun_at = 0;
            self.packets.clear();
        }
    }

    /// Gives a large empty buffer back.
    pub fn shrink(&mut self, kept: usize) {
        let packets = &mut self.packets;
        if packets.is_empty() && packets.bytes.capacity() > kept {
            self.packets = Packets::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(unsent: &Unsent, most: usize) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = unsent.slices(&mut slices[..most], usize::MAX);
        slices[..count]
            .iter()
            .flat_map(|slice| slice.to_vec())
            .collect()
    }

    fn packets(parts: &[(&str, &str)]) -> Packets {
        let memory = NodeMemory::new(1 << 20);
        let mut packets = Packets::default();
        for (head, body) in parts {
            packets.bytes.extend_from_slice(head.as_bytes());
            if !body.is_empty() {
                packets.push_body(Body::new(body.as_bytes(), &memory));
            }
        }
        packets
    }

    #[test]
    fn no_more_is_filled_in_than_is_asked_for() {
        let unsent = Unsent {
            packets: packets(&[("ab", "CDEF"), ("g", ""), ("h", "IJ")]),
            ..Unsent::default()
        };
        let whole = unsent.to_vec();
        for most in 0..=whole.len() + 1 {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = unsent.slices(&mut slices, most);
            let filled: Vec<u8> = slices[..count]
                .iter()
                .flat_map(|slice| slice.to_vec())
                .collect();
            assert_eq!(filled, whole[..most.min(whole.len())]);
        }
    }

    #[test]
    fn ranges_keep_their_bodies() {
        let mut from = packets(&[("a", "AA"), ("b", ""), ("c", "CC"), ("d", "D")]);
        let mut to = Unsent::new(b"x".to_vec());
        from.move_range(0..2, to.packets());
        assert_eq!(from.take_body(3).as_deref(), Some(&b"CC"[..]));
        from.move_range(3..4, to.packets());
        assert_eq!(all(&to, 16), b"xaAAbdD");
        assert_eq!((to.len(), from.body_bytes), (7, 0));
    }

    #[test]
    fn a_shared_body_is_charged_once_and_as_long_as_somebody_has_it() {
        let memory = NodeMemory::new(1 << 20);
        let body = Body::new(&[0; 10_000], &memory);
        let mut all = [Packets::default(), Packets::default()];
        for packets in &mut all {
            packets.bytes.push(0);
            packets.push_body(body.clone());
            assert_eq!(packets.len(), 10_001);
        }
        drop(body);
        assert_eq!(memory.used(), 10_000);
        all[0].clear();
        assert_eq!(memory.used(), 10_000);
        drop(all);
        assert_eq!(memory.used(), 0);
    }

    proptest::proptest! {
        /// However far the socket has taken them: it gets the rest of the packet under way, and nothing behind it.
        #[test]
        fn no_packet_is_cut_in_half(
            parts in proptest::collection::vec((1usize..9, 0usize..9), 1..9),
            steps in proptest::collection::vec(1usize..9, 0..16),
        ) {
            let memory = NodeMemory::new(1 << 20);
            let mut unsent = Unsent::default();
            let mut ends = vec![0];
            for (beginning, body) in parts {
                let length = beginning + body;
                let packets = unsent.packets();
                packets.bytes.extend_from_slice(&[0x30, length as u8]);
                packets.bytes.resize(packets.bytes.len() + beginning, 0xFF);
                if body > 0 {
                    packets.push_body(Body::new(&vec![0xFF; body], &memory));
                }
                ends.push(unsent.len());
            }
            let all = unsent.len();
            for step in steps {
                unsent.advance(step.min(unsent.len()));
            }
            let sent = all - unsent.len();
            unsent.drop_not_begun();
            let end = ends.into_iter().find(|end| *end >= sent);
            proptest::prop_assert_eq!(end, Some(sent + unsent.len()));
            let mut rest = unsent.len();
            while rest > 0 {
                unsent.advance(1);
                rest -= 1;
                proptest::prop_assert_eq!(unsent.len(), rest);
            }
            proptest::prop_assert!(unsent.is_empty());
        }

        /// However the socket takes the bytes, they are those that were put in.
        #[test]
        fn bytes_leave_in_order(
            parts in proptest::collection::vec(("[a-z]{1,4}", "[A-Z]{0,4}"), 0..12),
            steps in proptest::collection::vec((1usize..6, 2usize..5), 1..60),
        ) {
            let borrowed: Vec<_> = parts.iter().map(|(head, body)| (&**head, &**body)).collect();
            let expected: String = parts.iter().flat_map(|(head, body)| [&**head, &**body]).collect();
            let mut unsent = Unsent { packets: packets(&borrowed), ..Unsent::default() };
            let mut sent = Vec::new();
            for (step, most) in steps {
                proptest::prop_assert_eq!(unsent.len(), expected.len() - sent.len());
                let next = all(&unsent, most);
                let taken = step.min(next.len());
                sent.extend_from_slice(&next[..taken]);
                unsent.advance(taken);
                proptest::prop_assert!(expected.as_bytes().starts_with(&sent));
            }
            proptest::prop_assert_eq!(unsent.is_empty(), sent.len() == expected.len());
        }
    }
}
