//! The core of an MQTT session: the arithmetic of its queues, without connection, clock or storage.
//!
//! * [`sequence`] numbers a session's outgoing messages and derives packet ids from the numbers;
//! * [`entry`] is the stored row of one queued message;
//! * [`queue`] is what a session's replicated row knows of its queue: bounds, and what may be sent now;
//! * [`window`] is what the connection that owns the session knows of messages under way;
//! * [`inbound`] is the receiving half of QoS 2;
//! * [`delivery`] is what one session gets of one message.
//!
//! The machine owns all rows. It *grants* entries to the owning connection in order, as far as the client's receive
//! maximum allows, while it applies; so every replica knows which messages may have reached the client, and a
//! resumed session goes on with the right packet ids, DUP flags and PUBRELs on whichever node it is.

pub mod delivery;
pub mod entry;
pub mod inbound;
pub mod queue;
pub mod sequence;
pub mod window;

pub use entry::{Entry, EntryError, MessageId, Queued};
pub use queue::{Admission, Bounds, DropPolicy, Grant, Queue};
pub use sequence::Sequence;
pub use window::{Acknowledged, Received, Window};

pub use crate::codec::QoS;
