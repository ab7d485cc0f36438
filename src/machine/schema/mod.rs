//! The schema of `state/`: one file per table, with its key, the type of its rows, and its ranges. Keys sort as bytes;
//! numbers are big-endian.
//!
//! | ordinal | table | key | row | owner |
//! |---|---|---|---|---|
//! | `0x00` | the storage layer's own | | | |
//! | `0x01` | [`Meta`] | | `state.Meta` | `meta` |
//! | `0x02` | [`Node`] | node id | `state.Node` | `node` |
//! | `0x03` | [`EndedIncarnation`] | node id, incarnation | `state.EndedIncarnation` | `session` |
//! | `0x04` | [`HashRound`] | | `state.HashRound` | `state_hash` |
//! | `0x05` | [`DirectoryEntry`] | kind, name | `state.DirectoryEntry` | `directory` |
//! | `0x10` | [`Session`] | client id | `state.Session` | `session` |
//! | `0x11` | [`Subscription`] | session id, filter | `state.Subscription` | `messaging` |
//! | `0x12` | [`Will`] | client id | `state.Will` | `will` |
//! | `0x13` | [`Queue`] | session id | `state.Queue` | `queue` |
//! | `0x14` | [`Entry`] | session id, sequence | `session::Entry` | `queue` |
//! | `0x15` | [`Message`] | message id | `state.Message` | `queue::message` |
//! | `0x16` | [`References`] | message id | [`Count`] | `queue::message` |
//! | `0x17` | [`Received`] | session id, packet id | | `queue::received` |
//! | `0x18` | [`Retained`] | topic | `state.Retained` | `retained` |
//! | `0x19` | [`Group`] | shared filter | `state.Group` | `shared` |
//! | `0x1a` | [`Waiting`] | group id, number | `session::Entry` | `shared` |
//! | `0x1b` | [`RetainedReplay`] | session id, number | `state.RetainedReplay` | `retained::replay` |
//! | `0x1c` | [`ReplayedTopic`] | session id, number, topic | | `retained::replay` |
//! | `0x1d` | [`EndedSession`] | session id | `state.EndedSession` | `messaging` |
//! | `0x1e` | [`FanOut`] | message id | `state.FanOut` | `fan_out` |
//! | `0x1f` | [`RetainedCount`] | publisher | [`Count`] | `retained` |
//! | `0x20` | [`Record`] | state-store key | `store::record` | `store` |
//! | `0x21` | [`Watch`] | connection, state-store key | [`ClientId`] | `store::watchers` |
//! | `0x22` | [`Replies`] | log index, part | `state.Replies` | `replies` |
//! | `0x30` | [`Timer`] | deadline, kind, subject | | `timers` |
//! | `0x31` | [`WorkTimer`] | deadline, kind, subject | | `timers` |
//! | `0x40` | [`Device`] | device id, part | `state.IdentityPart` | `hub` |
//! | `0x41` | [`Module`] | device id, module id, part | `state.IdentityPart` | `hub` |
//! | `0x50` | [`EventSequence`] | authentication name, client id | `state.EventSequence` | `events::numbers` |
//! | `0x51` | [`Event`] | number | `state.Event` | `events::outbox` |
//! | `0x52` | [`EventSubscription`] | name | `state.EventSubscription` | `events::subscriptions` |
//! | `0x53` | [`ParkedEvent`] | name, due, number | `state.ParkedEvent` | `events::letters` |
//! | `0x54` | [`DeadLetter`] | name, number | `state.DeadLetter` | `events::letters` |
//! | `0x55` | [`PendingClient`] | client | `state.PendingClient` | `events::clients` |
//! | `0x56` | [`EventSettings`] | | `state.EventSettings` | `events` |
//! | `0x57` | [`EventSequenceEnd`] | due, authentication name, client id | | `events::numbers` |
//!
//! Invariant: ordinals are for ever; one is never given to another table.
//! Invariant: only its owner writes a table. Reads for the outside are in [`super::read`].

mod dead_letter;
pub mod directory_entry;
pub mod ended_incarnation;
mod ended_session;
mod entry;
mod event;
pub mod event_sequence;
mod event_sequence_end;
mod event_settings;
mod event_subscription;
mod fan_out;
mod group;
mod hash_round;
pub mod identity;
mod message;
mod meta;
mod node;
mod parked_event;
mod pending_client;
mod queue;
mod received;
mod record;
mod references;
mod replayed_topic;
mod replies;
mod retained;
mod retained_count;
pub mod retained_replay;
mod session;
mod subscription;
mod table;
pub mod timer;
mod waiting;
pub mod watch;
mod will;

pub use dead_letter::DeadLetter;
pub use directory_entry::DirectoryEntry;
pub use ended_incarnation::EndedIncarnation;
pub use ended_session::EndedSession;
pub use entry::Entry;
pub use event::Event;
pub use event_sequence::EventSequence;
pub use event_sequence_end::EventSequenceEnd;
pub use event_settings::EventSettings;
pub use event_subscription::EventSubscription;
pub use fan_out::FanOut;
pub use group::Group;
pub use hash_round::HashRound;
pub use identity::{Device, Module, Part};
pub use message::Message;
pub use meta::Meta;
pub use node::Node;
pub use parked_event::ParkedEvent;
pub use pending_client::PendingClient;
pub use queue::Queue;
pub use received::Received;
pub use record::Record;
pub use references::{Count, References};
pub use replayed_topic::ReplayedTopic;
pub use replies::Replies;
pub use retained::Retained;
pub use retained_count::RetainedCount;
pub use retained_replay::RetainedReplay;
pub use session::Session;
pub use subscription::Subscription;
pub use table::{Range, Row, StoredRow, Table};
pub(super) use table::{decoded, decoded_key};
pub use timer::{Timer, WorkTimer};
pub use waiting::Waiting;
pub use watch::{ClientId, Watch};
pub use will::Will;

/// The ordinals of all tables.
#[cfg(test)]
pub(super) const ORDINALS: &[u8] = &[
    Meta::ORDINAL,
    Node::ORDINAL,
    EndedIncarnation::ORDINAL,
    HashRound::ORDINAL,
    DirectoryEntry::ORDINAL,
    Session::ORDINAL,
    Subscription::ORDINAL,
    Will::ORDINAL,
    Queue::ORDINAL,
    Entry::ORDINAL,
    Message::ORDINAL,
    References::ORDINAL,
    Received::ORDINAL,
    Retained::ORDINAL,
    Group::ORDINAL,
    Waiting::ORDINAL,
    RetainedReplay::ORDINAL,
    ReplayedTopic::ORDINAL,
    EndedSession::ORDINAL,
    FanOut::ORDINAL,
    RetainedCount::ORDINAL,
    Record::ORDINAL,
    Watch::ORDINAL,
    Replies::ORDINAL,
    Timer::ORDINAL,
    WorkTimer::ORDINAL,
    Device::ORDINAL,
    Module::ORDINAL,
    EventSequence::ORDINAL,
    Event::ORDINAL,
    EventSubscription::ORDINAL,
    ParkedEvent::ORDINAL,
    DeadLetter::ORDINAL,
    PendingClient::ORDINAL,
    EventSettings::ORDINAL,
    EventSequenceEnd::ORDINAL,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_tables_have_one_ordinal() {
        let different: BTreeSet<&u8> = ORDINALS.iter().collect();
        assert_eq!(different.len(), ORDINALS.len());
        assert!(!ORDINALS.contains(&0), "the storage layer's own");
    }
}
