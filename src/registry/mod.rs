//! Who the devices and modules of the hub are: ids, what a back end says of them, how they prove themselves.
//!
//! An identity is a device or a module of one. Its row is `state.Identity`; the rules that need the row are in
//! `machine::hub`. What a client shows to be one is read in `user_name`, `sas`, `policies` and `certificate`.
//!
//! Invariant: nothing here has a clock, randomness, disk or network. Input is refused, and never panics.

pub mod certificate;
pub mod document;
#[cfg(test)]
mod document_tests;
pub mod etag;
pub mod fingerprint;
pub mod hosts;
mod id;
mod if_match;
pub mod messages;
pub mod percent;
pub mod policies;
pub mod sas;
pub mod sign;
pub mod user_name;

pub use id::IdentityId;
pub use if_match::IfMatch;
