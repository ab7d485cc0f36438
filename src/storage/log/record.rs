//! An entry of a group's log, as it is given to the log and comes back from it.
//!
//! What kinds mean is the business of `raft`.

use bytes::Bytes;

/// One entry of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Position in the group's log.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// What the payload is.
    pub kind: u8,
    /// Opaque content.
    pub payload: Bytes,
}

/// Bytes of bookkeeping counted per record on top of its payload.
const OVERHEAD: usize = 64;
impl Record {
    /// Bytes that this record counts with against limits of memory and of reads.
    pub fn weight(&self) -> usize {
        self.payload.len() + OVERHEAD
    }
}
