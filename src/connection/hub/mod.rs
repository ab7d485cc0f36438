//! Connections of devices and modules: the MQTT dialect of the hub.
//!
//! A client whose user name names the hub and an identity ([`shared`]) is one of these. [`login`] sees whether it is
//! that identity, by [`admission`]; [`identity`] is what is known of it from then on. [`topics`] has the topics,
//! [`confinement`] keeps everybody to their own, [`requests`] carries out what is asked for by publishing to them,
//! [`reading`] reads a twin for that, and [`notifying`] tells of changed desired properties. Everything else of such a
//! connection is as of any other.
//!
//! Invariant: nobody is let in by what this node has kept: an identity is read behind a read barrier, and apply judges
//! once more whether it is still the one that was read.

pub(super) mod admission;
pub(super) mod answers;
pub(super) mod confinement;
pub(super) mod identity;
mod load;
pub(super) mod login;
pub(super) mod notifying;
mod reading;
pub(super) mod request;
pub(super) mod requests;
pub(crate) mod shared;
mod topics;
