//! `0x1e | message u64` → `state.FanOut`: a message that is still to go into queues.

use super::table::{Table, key, only_u64, rest};
use crate::base::proto::state;
use crate::session::MessageId;

/// The table.
pub enum FanOut {}

impl Table for FanOut {
    const ORDINAL: u8 = 0x1e;
    type Key<'a> = MessageId;
    type Row = state::FanOut;

    fn encode(message: Self::Key<'_>) -> Vec<u8> {
        key::<Self>(&[&message.0.to_be_bytes()])
    }

    fn decode(key: &[u8]) -> Option<Self::Key<'_>> {
        only_u64(rest::<Self>(key)?).map(MessageId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        let key = FanOut::encode(MessageId(7));
        assert_eq!(FanOut::decode(&key), Some(MessageId(7)));
    }
}
