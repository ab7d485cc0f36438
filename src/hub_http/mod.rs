//! The HTTPS API of back ends: identities, twins and queries over them (docs/spec/hub-http.md).
//!
//! It has a listener of its own, because whoever asks here is a back end with a token of a shared policy, and not an
//! operator of the cluster. A request is judged in this order: who asks ([`gate`]), what is asked ([`route`]), by which
//! version of the API, and what was sent; then the log or the state decides.
//!
//! Invariant: nothing is answered, and no body is read, before the token has shown that its holder may ask.
//! Invariant: a write is answered from this node's own apply, a read after one ReadIndex: whoever has seen an answer
//! finds what it says on every node.
//! Invariant: reads of many rows, and what takes long to render, run on threads of their own, a bounded number at once
//! ([`query_threads`]); what is answered has its place in a bounded memory until it is read
//! ([`crate::http::AnswerMemory`]).

mod answer;
mod body;
mod changes;
mod error;
mod gate;
mod hub;
mod identities;
mod log;
mod queries;
mod query_threads;
mod route;
mod serve;
mod turns;
mod twin_row;
mod twins;
mod version;

pub use hub::Hub;
pub use serve::{Port, serve};
