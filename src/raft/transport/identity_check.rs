//! The check of incoming calls: whether the caller is who it says, and whom this node and the membership take it for.
//!
//! Invariant: no call is answered before [`IdentityCheck`] let it in. `Hello` is let in from every data directory: that
//! is how a node learns that it is not who it believes to be. See `docs/spec/replication.md`, Membership.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::Status;

use super::identity::{Call, Identity, Refusal, check_caller};
use super::rights::NoRight;
use crate::base::ids::NodeId;
use crate::raft::core::roster::Roster;
use crate::raft::metrics::Metrics;

/// A refused caller is named in the log this often.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Callers that are remembered for that.
const REFUSAL_LOG_CALLERS: usize = 64;
/// How long the status names a caller of another version after its last call.
const REFUSAL_STATUS: Duration = Duration::from_secs(10);

/// Checks incoming calls.
pub struct IdentityCheck {
    own: Identity,
    prove: bool,
    roster: Roster,
    metrics: Arc<Metrics>,
    /// Refused callers, and when each was last named in the log.
    logged: Mutex<HashMap<String, Instant>>,
    /// The data directory that the cluster knows this node with, when it is not its own.
    mismatch: Mutex<Option<String>>,
    /// Callers whose format or machine has another version: when each called last, and why it was refused.
    other_versions: Mutex<HashMap<String, (Instant, String)>>,
}

impl IdentityCheck {
    /// Checks calls of `own` against the membership in `roster`. `prove`: connections prove which node they are of.
    pub fn new(
        own: Identity,
        prove: bool,
        roster: Roster,
        metrics: Arc<Metrics>,
    ) -> Arc<IdentityCheck> {
        Arc::new(IdentityCheck {
            own,
            prove,
            roster,
            metrics,
            logged: Mutex::new(HashMap::new()),
            mismatch: Mutex::new(None),
            other_versions: Mutex::new(HashMap::new()),
        })
    }

    /// Who this node is.
    pub fn own(&self) -> &Identity {
        &self.own
    }

    /// The data directory that the cluster knows this node with, when it is not its own.
    pub fn directory_mismatch(&self) -> Option<String> {
        self.mismatch.lock().clone()
    }

    /// Nodes that were refused lately because their format or machine has another version, and why.
    pub fn other_versions(&self) -> Vec<(String, String)> {
        let mut known = self.other_versions.lock();
        known.retain(|_, (at, _)| at.elapsed() < REFUSAL_STATUS);
        let named = known
            .iter()
            .map(|(from, (_, why))| (from.clone(), why.clone()));
        let mut named: Vec<_> = named.collect();
        named.sort();
        named
    }

    /// Lets a call of the Raft service in, and returns the caller's node id. A caller that is no member yet is let in,
    /// too. A refusal is counted and logged.
    ///
    /// # Errors
    /// When something of the call does not match.
    pub fn admit(&self, call: Call<'_>) -> Result<u64, Status> {
        self.check(call).map_err(|refusal| {
            self.refused(call, &refusal);
            refusal.to_status(call, &self.own)
        })
    }

    /// As [`IdentityCheck::admit`], but whatever the caller's data directory is.
    ///
    /// # Errors
    /// When format, machine, cluster or proof does not match.
    pub fn admit_stranger(&self, call: Call<'_>) -> Result<u64, Status> {
        check_caller(&self.own, call, self.prove).map_err(|refusal| {
            // Nodes that wait for the others of their cluster ask here again and again: what is normal is no refusal.
            if refusal.is_of_version() || call.is_of(&self.own) {
                self.refused(call, &refusal);
            }
            refusal.to_status(call, &self.own)
        })
    }

    /// Lets a call of the cluster service in, and returns the caller's node id.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` when the caller does not belong to the cluster, `FAILED_PRECONDITION` when something else
    /// does not match.
    pub fn admit_forwarding(&self, call: Call<'_>) -> Result<NodeId, Status> {
        let checked = check_caller(&self.own, call, self.prove);
        let checked = checked.and_then(|from| self.check_directory(from, call));
        checked.map(NodeId).map_err(|refusal| {
            self.refused(call, &refusal);
            refusal.to_status(call, &self.own)
        })
    }

    /// A caller that was let in has done what it has no right to: counted and logged.
    pub fn no_right(&self, from: u64, why: &NoRight) {
        self.metrics.peers_refused.fetch_add(1, Relaxed);
        self.log(&from.to_string(), why);
    }

    fn refused(&self, call: Call<'_>, refusal: &Refusal) {
        self.metrics.peers_refused.fetch_add(1, Relaxed);
        let from = call.from();
        if refusal.is_of_version() && call.is_of(&self.own) {
            let mut known = self.other_versions.lock();
            if known.len() < REFUSAL_LOG_CALLERS || known.contains_key(from) {
                known.insert(from.to_owned(), (Instant::now(), refusal.to_string()));
            }
        }
        self.log(from, refusal);
    }

    fn check(&self, call: Call<'_>) -> Result<u64, Refusal> {
        let own = self.own.node;
        let from = check_caller(&self.own, call, self.prove)?;
        let (wanted, known) = call.to();
        if !wanted.is_empty() && wanted.parse() != Ok(own.0) {
            let wanted = wanted.to_owned();
            return Err(Refusal::OtherNode { own, wanted });
        }
        if !wanted.is_empty() && known != self.own.directory {
            *self.mismatch.lock() = Some(known.to_owned());
            return Err(Refusal::OwnDirectory {
                own,
                directory: self.own.directory.clone(),
                known: known.to_owned(),
            });
        }
        self.check_directory(from, call)
    }

    /// A member calls from the data directory that it is known with.
    fn check_directory(&self, from: u64, call: Call<'_>) -> Result<u64, Refusal> {
        match self.roster.directory_of(from) {
            Some(known) if known != call.directory() => {
                Err(Refusal::CallersDirectory { from, known })
            }
            _ => Ok(from),
        }
    }

    /// Names a refused caller in the log, once per interval.
    fn log(&self, from: &str, refusal: &dyn std::fmt::Display) {
        let mut logged = self.logged.lock();
        let now = Instant::now();
        logged.retain(|_, at| now.duration_since(*at) < REFUSAL_LOG_INTERVAL);
        if logged.len() >= REFUSAL_LOG_CALLERS || logged.contains_key(from) {
            return;
        }
        logged.insert(from.to_owned(), now);
        tracing::error!(from, why = %refusal, "a peer was refused");
    }
}
