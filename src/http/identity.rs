//! Who asks, once it is known.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::config::Scope;
use crate::telemetry::audit::{self, Event, Kind, Outcome};

/// Who is known to ask. Handlers get it as an extension of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The token's name, the certificate's common name, or `anonymous`.
    pub name: Arc<str>,
    /// `token`, `certificate` or `anonymous`.
    pub method: &'static str,
    /// What it may do.
    pub scope: Scope,
    /// Where it asks from.
    pub address: Option<SocketAddr>,
    /// Whether the cluster's rules bind it: whoever it is, but for the holder of `http.token_file`.
    pub is_bound_by_rules: bool,
}

impl Identity {
    /// Puts a change that was asked for into the audit log, with what came of it.
    pub fn note<T, E: std::fmt::Display>(
        &self,
        kind: Kind,
        result: &Result<T, E>,
        details: &[(&'static str, &str)],
    ) {
        let reason = result.as_ref().err().map(ToString::to_string);
        let outcome = match reason {
            None => Outcome::Accepted,
            Some(_) => Outcome::Failed,
        };
        audit::record(&Event {
            principal: Some(&self.name),
            method: Some(self.method),
            address: self.address,
            reason: reason.as_deref(),
            details,
            ..Event::new(kind, outcome)
        });
    }
}
