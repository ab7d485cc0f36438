//! The HTTP ports: probes, metrics and administration.
//!
//! It knows nothing of Raft or MQTT: the node hands it what answers, see [`Endpoints`]. Each route says who may ask it
//! ([`access`]); [`gate`] finds out who asks, by a token or a client certificate, and [`guard`] refuses what a web page
//! asks for through a browser. Probes and metrics are free.

mod access;
mod admin;
mod caller;
mod endpoints;
mod gate;
mod guard;
mod health;
mod identity;
mod places;
mod rules;
mod serve;
mod server;
mod sessions;
mod token_routes;
mod tokens;
mod users;

pub use admin::{
    Admin, AdminError, AdminFuture, ClusterStatus, Differs, JoinRequest, LeaveRequest,
    MemberStatus, TransferRequest, VerifyAnswer,
};
pub use caller::TlsSource;
pub use endpoints::Endpoints;
pub use gate::Gate;
pub use guard::Hosts;
pub use health::{Check, NotReady, Readiness};
pub use rules::{RulesAdmin, StoredRules, Written};
pub use serve::{Part, Port, serve};
pub use sessions::{
    Listed, Page, RetainedStatus, SessionDetail, SessionStatus, Sessions, SubscriptionStatus,
};
pub use token_routes::{MadeToken, Tokens};
pub use tokens::{TokenRecord, TokenStatus, TokenTable};
pub use users::{
    BanStatus, ImportAnswer, ImportRequest, NewBan, NewUser, Secret, UserChange, UserFormat,
    UserStatus, Users,
};

#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_tests;
