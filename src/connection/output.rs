//! Bytes on their way to the client.

use std::io::{self, IoSlice};

use crate::mailbox::{Packets, Unsent};
use crate::transport::Stream;

/// Capacity that an idle connection may keep, bytes.
const KEPT_BYTES: usize = 1024;

/// Slices of one vectored write: packets, with large bodies between them.
const SLICES: usize = 64;

/// Packets for the socket, and acknowledgements that must go behind what is still in the mailbox.
///
/// Invariant: the acknowledgement of a request joins the packets when its answer has, so the answer always goes first
/// (`docs/adr/0003-answers-before-acknowledgements.md`).
#[derive(Debug)]
pub(super) struct OutputBuffers {
    unsent: Unsent,
    acknowledgements: Vec<u8>,
    /// Where those begin that follow an answer which is in the mailbox, and whatever comes behind them; or [`NOWHERE`].
    answers_at: u32,
    /// The same of answers that were taken from the mailbox and wait.
    taken_at: u32,
}

/// There are none.
const NOWHERE: u32 = u32::MAX;

impl Default for OutputBuffers {
    fn default() -> OutputBuffers {
        OutputBuffers::new(Vec::new())
    }
}

impl OutputBuffers {
    /// Buffers that begin with these packets.
    pub(super) fn new(packets: Vec<u8>) -> OutputBuffers {
        OutputBuffers {
            unsent: Unsent::new(packets),
            acknowledgements: Vec::new(),
            answers_at: NOWHERE,
            taken_at: NOWHERE,
        }
    }

    /// Where packets from the mailbox go.
    pub(super) fn packets(&mut self) -> &mut Packets {
        self.unsent.packets()
    }

    /// Where acknowledgements go.
    pub(super) fn acknowledgements(&mut self) -> &mut Vec<u8> {
        &mut self.acknowledgements
    }

    /// Where packets go that follow no answer: PINGRESP, AUTH, PUBREC, PUBREL and PUBCOMP. Those that do may wait for
    /// as long as a rate of the client's holds messages back.
    pub(super) fn unordered(&mut self) -> &mut Vec<u8> {
        if self.taken_at.min(self.answers_at) == NOWHERE {
            return &mut self.acknowledgements;
        }
        // Those before it first.
        self.flush_acknowledgements();
        &mut self.unsent.packets().bytes
    }

    /// An answer is in the mailbox: its acknowledgement is the next one.
    pub(super) fn note_answer(&mut self) {
        // There are at most as many as requests that are not acknowledged.
        self.answers_at = self.answers_at.min(self.acknowledgements.len() as u32);
    }

    /// What was in the mailbox is taken.
    pub(super) fn note_taken(&mut self) {
        self.taken_at = self.taken_at.min(self.answers_at);
        self.answers_at = NOWHERE;
    }

    /// What was taken is among the packets.
    pub(super) fn note_sent(&mut self) {
        self.taken_at = NOWHERE;
    }

    /// Appends the acknowledgements to the packets, up to the first whose answer is not there.
    pub(super) fn flush_acknowledgements(&mut self) {
        let packets = self.unsent.packets();
        match self.taken_at.min(self.answers_at) {
            NOWHERE if packets.is_empty() => {
                std::mem::swap(&mut packets.bytes, &mut self.acknowledgements);
            }
            NOWHERE => packets.bytes.append(&mut self.acknowledgements),
            at => {
                let ready = self.acknowledgements.drain(..at as usize);
                packets.bytes.extend(ready);
                for later in [&mut self.taken_at, &mut self.answers_at] {
                    if *later != NOWHERE {
                        *later -= at;
                    }
                }
            }
        }
    }

    /// The same, and drops the others.
    pub(super) fn end_acknowledgements(&mut self) {
        self.flush_acknowledgements();
        self.drop_acknowledgements();
    }

    fn drop_acknowledgements(&mut self) {
        self.acknowledgements = Vec::new();
        (self.answers_at, self.taken_at) = (NOWHERE, NOWHERE);
    }

    /// Bytes that the socket has not taken, acknowledgements that are not flushed left out.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Bytes that the socket has not taken, all of them.
    pub(super) fn waiting(&self) -> usize {
        self.unsent.len() + self.acknowledgements.len()
    }

    /// The same without bodies that other subscribers may have, too.
    pub(super) fn owned(&self) -> usize {
        self.unsent.owned_len() + self.acknowledgements.len()
    }

    /// Writes as much as the stream takes, up to `most` bytes. Returns how many bytes that is.
    pub(super) fn write_to(&mut self, stream: &mut Stream, most: usize) -> io::Result<usize> {
        let written = match self.unsent.contiguous() {
            Some(bytes) => stream.try_write(&bytes[..most.min(bytes.len())])?,
            None => {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let count = self.unsent.slices(&mut slices, most);
                stream.try_write_vectored(&slices[..count])?
            }
        };
        self.unsent.advance(written);
        Ok(written)
    }

    /// Drops what is not begun: the socket has taken a part of at most one packet, and gets the rest of it.
    pub(super) fn drop_not_begun(&mut self) {
        self.unsent.drop_not_begun();
        self.drop_acknowledgements();
    }

    /// Whether nothing is to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.acknowledgements.is_empty()
    }

    /// Gives large empty buffers back: most connections are idle most of the time.
    pub(super) fn shrink(&mut self) {
        self.unsent.shrink(KEPT_BYTES);
        let acknowledgements = &mut self.acknowledgements;
        if acknowledgements.is_empty() && acknowledgements.capacity() > KEPT_BYTES {
            *acknowledgements = Vec::new();
        }
    }

    #[cfg(test)]
    fn take(&mut self, count: usize) -> Vec<u8> {
        let bytes = self.unsent.contiguous().expect("no body is shared")[..count].to_vec();
        self.unsent.advance(count);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_go_behind_the_packets() {
        let mut output = OutputBuffers::new(b"connack ".to_vec());
        output.acknowledgements().extend_from_slice(b"puback ");
        output.packets().bytes.extend_from_slice(b"answer ");
        assert_eq!((output.unsent(), output.waiting()), (15, 22));
        assert_eq!(output.take(8), b"connack ");
        output.flush_acknowledgements();
        assert_eq!((output.unsent(), output.waiting()), (14, 14));
        assert_eq!(output.take(14), b"answer puback ");
        assert!(output.is_empty() && output.unsent() == 0);
        output.acknowledgements().extend_from_slice(b"pubcomp");
        assert!(!output.is_empty());
        output.flush_acknowledgements();
        assert_eq!(output.take(7), b"pubcomp");
    }

    #[test]
    fn acknowledgements_do_not_overtake_answers_that_are_in_the_mailbox() {
        let mut output = OutputBuffers::default();
        output.unordered().extend_from_slice(b"pingresp ");
        for _ in 0..2 {
            output.note_answer();
            output.acknowledgements().extend_from_slice(b"puback ");
        }
        output.flush_acknowledgements();
        assert_eq!((output.unsent(), output.waiting()), (9, 23));
        output.flush_acknowledgements();
        assert_eq!(output.take(9), b"pingresp ", "and no more");
        output.unordered().extend_from_slice(b"pubrel ");
        assert_eq!(output.take(7), b"pubrel ", "it follows no answer");
        output.note_taken();
        output.unordered().extend_from_slice(b"pubcomp ");
        assert_eq!(output.take(8), b"pubcomp ");
        output.acknowledgements().extend_from_slice(b"puback ");
        output.note_answer();
        output.acknowledgements().extend_from_slice(b"puback ");
        output.flush_acknowledgements();
        assert!(output.unsent() == 0, "they are taken, but wait");
        output.packets().bytes.extend_from_slice(b"answers ");
        output.note_sent();
        output.flush_acknowledgements();
        assert_eq!(output.take(29), b"answers puback puback puback ");
        output.note_taken();
        output.note_sent();
        output.flush_acknowledgements();
        assert_eq!(output.take(7), b"puback ");
    }
}
