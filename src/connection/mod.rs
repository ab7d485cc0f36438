//! MQTT connections: from the accepted socket to the closed session.
//!
//! [`listener`] accepts sockets. [`serve`] has [`handshake`] read the CONNECT and [`opening`] open the session; then
//! the [`task`] owns the stream and hands what arrives to the [`coordinator`]. The coordinator routes it to the parts
//! of a connection, each of which owns its state:
//!
//! * [`publishing`] handles PUBLISH from the client until its acknowledgement;
//! * [`subscribing`] handles SUBSCRIBE and UNSUBSCRIBE, and reads retained messages for new subscriptions;
//! * [`outbound`] sends messages to the client, and [`acknowledgements`] gathers what the log must know of them;
//! * [`store_requests`] handles requests to the state store, their answers, and notifications;
//! * [`hub`] handles the requests of devices and modules, and confines everybody to their topics;
//! * [`authentication`] handles re-authentication, and ends the connection when the proof of its identity
//!   expires, or its certificate is [`certified`] no more.
//!
//! [`rights`] judges what the client may do by the rules, and remembers it.
//!
//! A part gets its surroundings as a [`context::Context`]. What all connections share is the [`broker::Broker`].

mod acknowledgements;
mod authentication;
mod backlog;
mod bounds;
pub(crate) mod broker;
pub(crate) mod certified;
mod context;
mod coordinator;
mod denials;
mod drain_timeout;
mod end;
mod event_weight;
mod handshake;
pub(crate) mod hub;
mod input;
mod linger;
pub(crate) mod listener;
mod liveness;
mod login_report;
pub(crate) mod memory_guard;
mod opening;
#[cfg(test)]
mod opening_tests;
mod options;
mod origin;
mod outbound;
mod output;
pub(crate) mod places;
mod publish_rate;
mod publishing;
mod rate;
mod refusal;
mod refusal_lines;
mod requests;
mod rights;
mod route_cache;
mod routing_lease;
mod serve;
mod socket;
mod store_requests;
mod subscribing;
pub(crate) mod sys;
mod task;
mod unfinished;
mod unread;
mod withheld;
