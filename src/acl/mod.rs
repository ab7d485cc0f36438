//! What principals may do: rules over topics, client identifiers and keys of the state store, and limits.
//!
//! An operator writes one [`Document`]. It is parsed as a whole, compiled to [`Rules`], and judged for one client as
//! its [`Rights`]. The shape is that of Azure IoT Operations' authorization: principals × resources. Beside what that
//! has, a rule may deny, and the document says what holds where no rule speaks.
//!
//! Invariant: **the first rule that speaks decides.** A rule speaks when its principals are met and one of its
//! resources covers what is asked for. Documents that only allow, as those of Azure IoT Operations do, mean the same in
//! any order; with denials, order says which of them are exceptions. "Deny wins" could not express an exception to a
//! denial, which Mosquitto's files have.
//! Invariant: over HTTP the rules only narrow what scopes allow; the document's default does not reach there, see
//! [`routes`].
//! Invariant: a value that stands for a placeholder never makes an allowed pattern cover more than one name of one
//! level, see [`template`].
//! Invariant: nothing here has a clock, randomness, disk or network, and no document makes a judgement cost more than
//! the bounds of [`document`] say.

mod book;
mod client;
mod document;
mod facts;
mod keys;
mod limits;
mod mosquitto;
#[cfg(test)]
mod naive;
mod parse;
mod principals;
mod problem;
#[cfg(test)]
mod property_tests;
mod rights;
mod routes;
#[cfg(test)]
mod routes_tests;
mod rules;
#[cfg(test)]
mod rules_tests;
mod template;
mod topics;

pub use book::RuleBook;
pub use client::Client;
pub use document::Document;
pub use facts::Facts;
pub use limits::Limits;
pub use mosquitto::import as import_mosquitto;
pub use rights::{KeyAccess, Publication, PublishRights, Rights, Share};
pub use rules::Rules;
