//! The HTTP port: probes, metrics and administration.
//!
//! It knows nothing of Raft or MQTT: the node hands it a [`Readiness`], an [`Admin`] and a [`Sessions`] and a [`RulesAdmin`]. It has no
//! authentication, so it listens on the loopback interface unless the operator configures another one; what a web page
//! asks for through a browser is refused.

mod admin;
mod guard;
mod health;
mod places;
mod rules;
mod serve;
mod server;
mod sessions;
mod users;

pub use admin::{
    Admin, AdminError, AdminFuture, ClusterStatus, Differs, JoinRequest, LeaveRequest,
    MemberStatus, TransferRequest, VerifyAnswer,
};
pub use guard::Hosts;
pub use health::{Check, NotReady, Readiness};
pub use rules::{RulesAdmin, StoredRules, Written};
pub use serve::{Endpoints, serve};
pub use sessions::{
    Listed, Page, RetainedStatus, SessionDetail, SessionStatus, Sessions, SubscriptionStatus,
};
pub use users::{
    BanStatus, ImportAnswer, ImportRequest, NewBan, NewUser, Secret, UserChange, UserFormat,
    UserStatus, Users,
};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_tests;
