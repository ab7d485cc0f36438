//! The core of an MQTT session: the arithmetic of its queues, without connection, clock or storage.
//!
//! * [`sequence`] numbers a session's outgoing messages and derives packet ids from the numbers;
//! * [`entry`] is the stored row of one queued message;
//! * [`queue`] decides what enters a session's queue, and what may be sent now;
//! * [`window`] tracks the messages of the queue that are on their way to the client;
//! * [`inbound`] is the receiving half of QoS 1 and 2;
//! * [`delivery`] decides what one session gets of one message.
//!
//! The machine owns all rows. While it applies, it *grants* entries to the owning connection in order, as far as the
//! client's receive maximum allows. So every replica knows which messages may have reached the client, and a resumed
//! session goes on with the right packet ids, DUP flags and PUBRELs, whichever node its client connects to.

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
