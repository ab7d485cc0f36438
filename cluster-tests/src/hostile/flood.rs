//! A client that writes and does not read.

use crate::connection::{Connection, Fault};
use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

/// A server that takes nothing for that long holds the client back.
const STANDSTILL: Duration = Duration::from_secs(2);

/// What became of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The server took everything.
    Taken,
    /// TCP's back-pressure: it stopped reading.
    HeldBack,
    /// It closed.
    Ended,
    /// It took bytes until the time was over.
    OutOfTime,
}

/// A flood that is over.
#[derive(Debug, Clone, Copy)]
pub struct Flood {
    /// Bytes that were written, those in the buffers of both sockets included.
    pub sent: usize,
    pub fate: Fate,
}

/// Writes `chunk` again and again, `bytes` in all at most, and reads nothing.
pub fn flood(connection: &Connection, chunk: &[u8], bytes: usize, within: Duration) -> Flood {
    let mut stream = connection.stream();
    stream
        .set_write_timeout(Some(STANDSTILL))
        .expect("a socket option can be set");
    let deadline = Instant::now() + within;
    let mut sent = 0;
    let fate = loop {
        if sent >= bytes {
            break Fate::Taken;
        }
        if Instant::now() > deadline {
            break Fate::OutOfTime;
        }
        // Where the last write ended, so that packets stay whole.
        match stream.write(&chunk[sent % chunk.len()..]) {
            Ok(0) => break Fate::Ended,
            Ok(written) => sent += written,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => break Fate::HeldBack,
                ErrorKind::Interrupted => {}
                _ => break Fate::Ended,
            },
        }
    };
    Flood { sent, fate }
}

/// Reads what is left of a connection until the server's close. The reason code of its DISCONNECT: `Some(None)` when it
/// closed without one that could be read, `None` when it does not close in that time.
pub fn reason_of_end(connection: &mut Connection, within: Duration) -> Option<Option<u8>> {
    let bytes = match connection.read_to_end(within) {
        Ok(bytes) => bytes,
        Err(Fault::Timeout) => return None,
        Err(fault) => panic!("while reading to the end: {fault:?}"),
    };
    Some(last_disconnect(&bytes))
}

/// The reason of the DISCONNECT that ends these packets. Not by [`crate::wire::take_frame`], which moves all that
/// follows: there may be millions of packets.
fn last_disconnect(mut rest: &[u8]) -> Option<u8> {
    let mut reason = None;
    while let Some((frame, after)) = split_frame(rest) {
        reason = (frame[0] == 0xE0).then(|| frame.get(2).copied().unwrap_or(0));
        rest = after;
    }
    reason
}

fn split_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0;
    for (position, byte) in bytes.iter().enumerate().skip(1).take(4) {
        length |= usize::from(byte & 0x7F) << (7 * (position - 1));
        if byte & 0x80 == 0 {
            return bytes.split_at_checked(position + 1 + length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disconnect_is_found_behind_other_packets() {
        assert_eq!(last_disconnect(&[0xD0, 0, 0xD0, 0]), None);
        assert_eq!(last_disconnect(&[0xD0, 0, 0xE0, 2, 0x97, 0]), Some(0x97));
        assert_eq!(last_disconnect(&[0xE0, 0]), Some(0));
        // The rest of a packet that was cut off is none.
        assert_eq!(last_disconnect(&[0xE0, 2, 0x97, 0, 0x30, 5]), Some(0x97));
    }
}
