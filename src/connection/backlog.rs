//! Packets that wait: for room in the client's receive maximum, or until the socket has taken others.
//!
//! They are kept as they came, one behind the other: there may be many small ones, so each takes its own bytes and no
//! more. What is taken from the front is given back piece by piece.
//!
//! Invariant: packets leave in the order in which they came.

use std::collections::VecDeque;
use std::ops::Range;

use crate::codec::QoS;
use crate::mailbox::{Contents, Expiry, Located, Packets, Tracked};
use crate::session::Sequence;

/// Bytes of a piece, unless one packet is larger.
const PIECE_BYTES: usize = 64 << 10;

/// The packets.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// None of them is empty.
    pieces: VecDeque<Piece>,
    bytes: usize,
    owned_bytes: usize,
    /// Number of packets of which something is remembered.
    tracked: usize,
    /// Some are, or were, answers that the client itself has asked for.
    pub(super) has_answers: bool,
}

#[derive(Debug, Default)]
struct Piece {
    packets: Packets,
    /// Those up to here are taken.
    taken: usize,
    tracked: VecDeque<Tracked>,
}

/// The first packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    located: Located,
    /// Its number, if it is of the session's queue.
    pub(super) sequence: Option<Sequence>,
    /// When it expires.
    pub(super) expiry: Option<Expiry>,
}

/// Messages that expired while they waited, in the mailbox or for room in the client's receive maximum.
#[derive(Debug, Default)]
pub(super) struct Expired {
    /// How many.
    pub(super) count: u64,
    /// Those of them that are in the session's queue.
    pub(super) sequences: Vec<Sequence>,
}

impl Expired {
    /// Adds one, which may be of the session's queue.
    pub(super) fn add(&mut self, sequence: Option<Sequence>) {
        self.count += 1;
        self.sequences.extend(sequence);
    }
}

impl Waiting {
    /// All of its bytes, those of its body included.
    pub(super) fn len(&self) -> usize {
        self.located.whole
    }

    /// Its QoS.
    pub(super) fn qos(&self) -> QoS {
        self.located.qos
    }

    /// Where in its packets its packet id is, unless it has QoS 0.
    pub(super) fn packet_id(&self) -> Range<usize> {
        self.located.packet_id_at..self.located.packet_id_at + 2
    }
}

impl Piece {
    fn has_room(&self, bytes: usize) -> bool {
        self.packets.bytes.len() + bytes <= PIECE_BYTES
    }

    fn owned_bytes(&self) -> usize {
        self.packets.bytes.len() + self.tracked.len() * size_of::<Tracked>()
    }
}

impl Backlog {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of the packets that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of what is remembered of them.
    pub(super) fn tracked_bytes(&self) -> usize {
        self.tracked * size_of::<Tracked>()
    }

    /// Bytes of memory, without bodies that other subscribers may have, too.
    pub(super) fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Takes over the packet in `range` of `from`, of which `whole` bytes are to be sent, its body included.
    pub(super) fn push(
        &mut self,
        from: &mut Packets,
        range: Range<usize>,
        whole: usize,
        tracked: Option<Tracked>,
    ) {
        let last = self.pieces.back();
        if last.is_none_or(|last| !last.has_room(range.len())) {
            self.pieces.push_back(Piece::default());
        }
        let Some(piece) = self.pieces.back_mut() else {
            return;
        };
        let before = piece.owned_bytes();
        self.tracked += usize::from(tracked.is_some());
        piece.tracked.extend(tracked.map(|tracked| Tracked {
            at: piece.packets.bytes.len() as u32,
            ..tracked
        }));
        from.move_range(range, &mut piece.packets);
        self.bytes += whole;
        self.owned_bytes += piece.owned_bytes() - before;
    }

    /// Takes over all packets that were taken from the mailbox.
    pub(super) fn push_all(&mut self, contents: &mut Contents) {
        self.has_answers |= std::mem::take(&mut contents.has_answers);
        let packets = &mut contents.packets;
        let mut tracked = contents.tracked.drain(..).peekable();
        let mut at = 0;
        while let Some(found) = packets.locate(at, 0) {
            let entry = tracked.next_if(|entry| entry.at as usize == at);
            self.push(packets, at..found.end, found.whole, entry);
            at = found.end;
        }
        debug_assert_eq!(at, packets.bytes.len(), "packets are whole");
        contents.special = 0;
        packets.clear();
    }

    /// The first packet.
    pub(super) fn first(&self) -> Option<Waiting> {
        let piece = self.pieces.front()?;
        let tracked = piece.tracked.front();
        let tracked = tracked.filter(|tracked| tracked.at as usize == piece.taken);
        Some(Waiting {
            located: piece.packets.locate(piece.taken, 0)?,
            sequence: tracked.and_then(|tracked| tracked.sequence),
            expiry: tracked.and_then(|tracked| tracked.expiry),
        })
    }

    /// Takes the first packet out, which is `first`: `take` gets where it is and what is remembered of it. It moves
    /// the packet or takes its body.
    pub(super) fn take_first(
        &mut self,
        first: &Waiting,
        take: impl FnOnce(&mut Packets, Range<usize>, Option<Tracked>),
    ) {
        let Some(piece) = self.pieces.front_mut() else {
            return;
        };
        let before = piece.owned_bytes();
        let (start, end) = (piece.taken, first.located.end);
        let is_its_own = |tracked: &mut Tracked| tracked.at as usize == start;
        let tracked = piece.tracked.pop_front_if(is_its_own);
        self.tracked -= usize::from(tracked.is_some());
        take(&mut piece.packets, start..end, tracked);
        piece.taken = end;
        self.bytes -= first.located.whole;
        if end == piece.packets.bytes.len() {
            self.owned_bytes -= before;
            self.pieces.pop_front();
        } else {
            self.owned_bytes -= before - piece.owned_bytes();
        }
    }
}
