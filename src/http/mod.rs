//! The HTTP ports: probes, metrics and administration; and the server loop ([`run`]), which other ports use as well.
//!
//! It knows nothing of Raft or MQTT: the node hands it what answers, see [`Endpoints`]. Each route says who may ask it
//! ([`access`]); [`gate`] finds out who asks, by a token or a client certificate, and [`guard`] refuses what a web page
//! asks for through a browser. Probes and metrics are free.

mod access;
mod admin;
mod answer_memory;
mod bounded_writes;
mod caller;
mod endpoints;
mod event_subscriptions;
mod events;
mod gate;
mod guard;
mod health;
mod identity;
mod places;
mod post;
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
pub(crate) use answer_memory::{AnswerMemory, Full, Held};
pub use caller::{Caller, TlsSource};
pub use endpoints::Endpoints;
pub use event_subscriptions::{
    DeadLetterFate, DeadLetterPage, DeadLetterRange, DeadLetters, EventSubscriptionStatus,
    EventSubscriptions, NewEventSubscription, TestAnswer, TestRequest,
};
pub use events::{Events, Pull, Pulled};
pub use gate::Gate;
pub use guard::Hosts;
pub use health::{Check, NotReady, Readiness};
pub use identity::Identity;
pub use post::{Changes, Currency};
pub use rules::{RulesAdmin, StoredRules, Written};
pub use serve::{Part, Port, serve};
pub use server::{ANSWER_TIMEOUT, Bounds, run};
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
mod change_tests;
#[cfg(test)]
mod event_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod user_tests;
