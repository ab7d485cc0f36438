//! The harness that shows whether Quorumq keeps its promises. It starts real clusters of the real binary, talks to them
//! over raw sockets, kills nodes and cuts links, and judges what clients saw.
//!
//! Invariant: nothing here uses Quorumq's own code for what it judges. [`wire`] builds and reads packets byte by byte,
//! so that a mistake in the broker's codec cannot hide itself.
//! Invariant: what is judged about data is judged once. No test is retried, and no test is skipped in silence
//! ([`skip`]).
//!
//! * [`audit`] reads what nodes have put into their audit log.
//! * [`cluster`] starts, kills, pauses and restarts nodes.
//! * [`connection`] is one MQTT connection; [`store`] is a state store client on top of it.
//! * [`corpus`] holds scripted conversations; [`conformance`] lists which statements of the standards they show.
//! * [`history`] records requests and their outcomes; [`workload`] produces them; [`check`] judges them; [`trial`] does
//!   all three on a cluster with a fault.
//! * [`delivery`] does the same for messages, which [`record`] keeps: publishers and durable subscribers that fail over
//!   from node to node.
//! * [`flow`] has publishers with large windows and slow subscribers.
//! * [`hostile`] has clients that behave beside one that does not.
//! * [`line`] leads to a listener of any transport.
//! * [`receiver`] is an endpoint for events that answers as a test tells it.
//! * [`script`] runs programs that use other people's clients.
//! * [`secrets`] looks for what must be nowhere.
//! * [`security`] is the table of who gets in where.

pub mod audit;
pub mod check;
pub mod clocks;
pub mod cluster;
pub mod conformance;
pub mod connection;
pub mod corpus;
pub mod delivery;
pub mod faults;
pub mod flow;
pub mod history;
pub mod hostile;
pub mod http;
pub mod line;
pub mod random;
pub mod receiver;
pub mod record;
pub mod rules;
pub mod script;
pub mod secrets;
pub mod security;
pub mod skip;
pub mod store;
pub mod trial;
pub mod wait;
pub mod watcher;
pub mod wire;
pub mod workload;
