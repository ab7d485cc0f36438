//! MQTT connections: from the accepted socket to the closed session.
//!
//! [`listener`] accepts sockets. [`task`] owns one socket; it has [`handshake`] read the CONNECT, [`opening`] open the
//! session, and then hands what arrives to the [`coordinator`]. The coordinator routes it to the parts of a connection,
//! each of which owns its state:
//!
//! * [`publishing`]: PUBLISH from the client until its acknowledgement;
//! * [`subscribing`]: SUBSCRIBE, UNSUBSCRIBE, and retained messages for new subscriptions;
//! * [`outbound`]: messages to the client, [`acknowledgements`]: what the log must know of them;
//! * [`store_requests`]: requests to the state store, answers, notifications;
//! * [`authentication`]: re-authentication.
//!
//! A part gets its surroundings as a [`context::Context`]. What all connections share is the [`broker::Broker`].

mod acknowledgements;
mod authentication;
pub(crate) mod broker;
mod context;
mod coordinator;
mod drain_timeout;
mod end;
mod handshake;
pub(crate) mod listener;
mod opening;
mod options;
mod outbound;
mod output;
mod publishing;
mod refusal;
mod requests;
mod route_cache;
mod routing_lease;
mod socket;
mod store_requests;
mod subscribing;
pub(crate) mod sys;
mod task;
