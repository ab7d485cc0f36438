//! The types a configuration value can have, and how each is read from TOML or from text.
//!
//! Invariant: reading never panics. Whatever is written, the answer is a value or a [`SettingError`] that says what was
//! expected.

mod address;
mod choice;
mod cluster_name;
mod events;
mod listen_address;
mod member;
mod named_scope;
mod primitive;
mod read;
mod tls;

pub use address::Address;
pub use choice::{
    AuthenticationMethod, CertificateGroups, CertificateName, ClientCertificates,
    HttpAuthentication, LogFormat, LogLevel, OutboxPolicy, QueuePolicy, RefusedPublish, Scope,
    TokenUse, Transport, WhenUnavailable,
};
pub use cluster_name::ClusterName;
pub use events::{EventHandshake, EventMode, EventSchema};
pub use listen_address::{FileMode, ListenAddress};
pub use member::Member;
pub use named_scope::NamedScope;
pub use read::{Input, Setting, SettingError, in_range, items};
pub use tls::CertificatePair;
