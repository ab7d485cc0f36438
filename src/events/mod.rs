//! Events of the life of MQTT clients: what they are, what they say, and how they get out.
//!
//! - [`kind`]: the types of events.
//! - [`reason`]: why connections end.
//! - [`render`]: an event as JSON, in both schemas.
//! - [`settings`]: what all replicas must know alike.
//! - [`topic`]: where an event is published over MQTT.
//! - [`options`]: what an event subscription asks for; [`filter`]: which events it wants.
//! - [`modes`]: requests; [`signature`]: what proves who sends them.
//! - [`answer`]: what follows from an answer; [`schedule`]: when a request is made again.
//! - [`next`]: what is to be done next for an event subscription; [`run`]: of what the log hears at once; [`standing`]:
//!   how it stands.
//! - [`doubt`]: whether an event is the reason why no answer comes; [`search`]: the other one that shows it.
//! - [`page`]: what of the outbox is wanted.
//! - [`majority`]: of which client most of something is.
//!
//! Invariant: nothing here has a clock, randomness, disk or network. What apply makes of an event is the same on every
//! replica and in every attempt.

pub mod answer;
mod doubt;
pub mod filter;
pub mod kind;
pub mod majority;
pub mod modes;
pub mod next;
pub mod options;
pub mod page;
pub mod reason;
pub mod render;
pub mod retry_after;
pub mod run;
pub mod schedule;
mod search;
pub mod settings;
pub mod signature;
pub mod standing;
mod step;
mod time;
pub mod topic;
mod tried;
mod view;

pub use kind::{HubOperation, Kind};
pub use reason::DisconnectionReason;
