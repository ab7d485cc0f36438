//! Bytes on their way to the client.

/// Capacity that an idle connection may keep, bytes.
const KEPT_BYTES: usize = 1024;

/// Packets for the socket, and acknowledgements that must go behind what is still in the mailbox.
///
/// Invariant: acknowledgements join the packets only when the mailbox is empty, so the answer to a request always goes
/// before the request's acknowledgement (`docs/adr/0003-answers-before-acknowledgements.md`).
#[derive(Debug, Default)]
pub(super) struct OutputBuffers {
    packets: Vec<u8>,
    /// How much of `packets` the socket has taken.
    written: usize,
    acknowledgements: Vec<u8>,
}

impl OutputBuffers {
    /// Buffers that begin with these packets.
    pub(super) fn new(packets: Vec<u8>) -> OutputBuffers {
        OutputBuffers {
            packets,
            ..OutputBuffers::default()
        }
    }

    /// Where packets from the mailbox go.
    pub(super) fn packets(&mut self) -> &mut Vec<u8> {
        &mut self.packets
    }

    /// Where acknowledgements go.
    pub(super) fn acknowledgements(&mut self) -> &mut Vec<u8> {
        &mut self.acknowledgements
    }

    /// Appends the acknowledgements to the packets.
    pub(super) fn flush_acknowledgements(&mut self) {
        if self.packets.is_empty() {
            std::mem::swap(&mut self.packets, &mut self.acknowledgements);
        } else {
            self.packets.append(&mut self.acknowledgements);
        }
    }

    /// What the socket has not taken, acknowledgements that are not flushed left out.
    pub(super) fn unsent(&self) -> &[u8] {
        &self.packets[self.written..]
    }

    /// The socket has taken this many bytes.
    pub(super) fn advance(&mut self, written: usize) {
        self.written += written;
        if self.written == self.packets.len() {
            self.written = 0;
            self.packets.clear();
        }
    }

    /// Whether nothing is to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.acknowledgements.is_empty()
    }

    /// Drops everything: the connection has ended.
    pub(super) fn clear(&mut self) {
        *self = OutputBuffers::default();
    }

    /// Gives large empty buffers back: most connections are idle most of the time.
    pub(super) fn shrink(&mut self) {
        for buffer in [&mut self.packets, &mut self.acknowledgements] {
            if buffer.is_empty() && buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_go_behind_the_packets() {
        let mut output = OutputBuffers::new(b"connack ".to_vec());
        output.acknowledgements().extend_from_slice(b"puback ");
        output.packets().extend_from_slice(b"answer ");
        assert_eq!(output.unsent(), b"connack answer ");
        output.advance(8);
        assert_eq!(output.unsent(), b"answer ");
        output.flush_acknowledgements();
        assert_eq!(output.unsent(), b"answer puback ");
        output.advance(14);
        assert!(output.is_empty() && output.unsent().is_empty());
        output.acknowledgements().extend_from_slice(b"pubcomp");
        assert!(!output.is_empty());
        output.flush_acknowledgements();
        assert_eq!(output.unsent(), b"pubcomp");
    }
}
