//! `0x15 | message u64` → `state.Message`: a message that queues refer to.

use super::table::{Table, key, only_u64, rest};
use crate::base::proto::state;
use crate::session::MessageId;

/// The table.
pub enum Message {}

impl Table for Message {
    const ORDINAL: u8 = 0x15;
    type Key<'a> = MessageId;
    type Row = state::Message;

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
        let key = Message::encode(MessageId(7));
        assert_eq!(Message::decode(&key), Some(MessageId(7)));
    }
}
