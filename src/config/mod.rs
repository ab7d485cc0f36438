//! The configuration of a node: its keys, where each value came from, and what is wrong with it.
//!
//! [`keys`] (with [`events_keys`] and [`hub_keys`] for those sections, [`listener`] for the tables of `[[listeners]]`
//! and [`token_issuer`] for those of `[[auth.jwt]]`) is the one definition: the [`Config`] tree, its defaults, units,
//! ranges and the reference page come from it. [`load`] lays a TOML file, the environment and flags over the defaults
//! and reports every problem at once. [`file`] reads what the keys name: certificates, keys, secrets. Nothing here
//! opens a socket, touches a data directory or watches a file.

mod auth_rules;
pub mod bounds;
mod check;
mod definition;
mod event_rules;
mod event_subscription;
mod events_keys;
pub mod file;
mod finding;
mod http_rules;
mod hub_keys;
mod hub_rules;
mod keys;
mod listener;
mod listener_rules;
mod load;
mod machine;
mod password_rules;
pub(crate) mod pem;
mod problem;
mod reference;
pub mod secret_file;
mod section;
mod setting;
mod table;
mod token_issuer;
mod values;

pub use event_subscription::DECLARED as DECLARED_EVENTS;
pub use events_keys::EventsConfig;
pub use hub_keys::HubConfig;
pub use keys::{
    AuditConfig, AuthConfig, ClusterConfig, Config, DiskConfig, HttpConfig, LogConfig, MqttConfig,
    NodeConfig, RaftConfig, RuntimeConfig, ShutdownConfig, StoreConfig, keys,
};
pub use listener::{DEFAULT_LISTENER, Listener};
pub use load::{Flag, Loaded, Sources, load};
pub use problem::{Origin, Problem, Problems};
pub use reference::{example, markdown};
pub use setting::{
    Address, AuthenticationMethod, CertificateGroups, CertificateName, CertificatePair,
    ClientCertificates, ClusterName, FileMode, HttpAuthentication, ListenAddress, LogFormat,
    LogLevel, Member, NamedScope, OutboxPolicy, QueuePolicy, RefusedPublish, Scope, SettingError,
    TokenUse, Transport, WhenUnavailable,
};
pub use token_issuer::TokenIssuer;

#[cfg(test)]
mod tests;
