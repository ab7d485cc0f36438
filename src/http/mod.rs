//! The HTTP port: probes, metrics and administration.
//!
//! It knows nothing of Raft or MQTT: the node layer hands it a [`Readiness`] and an [`Admin`]. It has no
//! authentication and therefore listens on loopback unless told otherwise.

mod admin;
mod health;
mod serve;
mod sessions;

pub use admin::{
    Admin, AdminError, AdminFuture, ClusterStatus, JoinRequest, LeaveRequest, MemberStatus,
    TransferRequest,
};
pub use health::{Check, Readiness};
pub use serve::{Endpoints, router, serve};
pub use sessions::{
    LARGEST_PAGE, Listed, Page, RetainedStatus, SessionDetail, SessionStatus, Sessions,
    SubscriptionStatus,
};

#[cfg(test)]
mod tests;
