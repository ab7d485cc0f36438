//! The connections of this node by what their principals rest on: when that changes, they end.
//!
//! Invariant: a connection is registered before its session is opened. What changes before the opening is in the log
//! makes the opening fail there; what changes later finds the connection here.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::applicant::Applicant;
use super::ban::Target;
use crate::auth::user::User;
use crate::auth::{Principal, Proof};
use crate::base::directory::Kind;
use crate::base::ids::ConnectionId;
use crate::base::proto::state::DirectoryEntry;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::mailbox::{End, Item, WakeList};
use crate::replica::directory::DirectoryObserver;
use crate::router::Router;
use crate::telemetry::audit::{self, Event, Kind as AuditKind, Outcome};

/// What is known of a connection.
struct Facts {
    client_id: Arc<str>,
    /// Name of its principal, if one is proved.
    user: Option<Arc<str>>,
    address: Option<IpAddr>,
    proofs: Box<[Proof]>,
}

impl Facts {
    fn applicant(&self) -> Applicant<'_> {
        Applicant {
            client_id: &self.client_id,
            user: self.user.as_deref(),
            address: self.address,
        }
    }
}

/// An entry of the directory.
type Entry = (u8, Box<str>);

#[derive(Default)]
struct Known {
    connections: HashMap<ConnectionId, Facts>,
    /// Connections that rest on an entry.
    resting: HashMap<Entry, SmallVec<[ConnectionId; 2]>>,
}

impl Known {
    fn rest(&mut self, connection: ConnectionId, proofs: &[Proof]) {
        for proof in proofs {
            let entry = (proof.kind, proof.name.clone());
            self.resting.entry(entry).or_default().push(connection);
        }
    }

    fn unrest(&mut self, connection: ConnectionId, proofs: &[Proof]) {
        for proof in proofs {
            let entry = (proof.kind, proof.name.clone());
            if let Some(resting) = self.resting.get_mut(&entry) {
                resting.retain(|other| *other != connection);
                if resting.is_empty() {
                    self.resting.remove(&entry);
                }
            }
        }
    }

    /// Connections that rest on another version of an entry than this one.
    fn resting_on_other(&self, entry: &Entry, version: Option<u64>) -> Vec<ConnectionId> {
        let resting = self.resting.get(entry).into_iter().flatten();
        let rests_on_other = |connection: &&ConnectionId| {
            let facts = self.connections.get(*connection);
            let mut proofs = facts.into_iter().flat_map(|facts| facts.proofs.iter());
            proofs.any(|proof| {
                (proof.kind, &proof.name) == (entry.0, &entry.1) && Some(proof.version) != version
            })
        };
        resting.filter(rests_on_other).copied().collect()
    }
}

/// The connections of this node.
pub(super) struct Live {
    known: Mutex<Known>,
    router: Arc<Router>,
    backing: Arc<dyn Backing>,
}

/// What becomes of connections that rest on another version of an entry than this one. Who is not there any more, or
/// may not log in any more, leaves nothing behind; who has changed has to prove again who it is.
fn end_of(kind: Kind, entry: Option<&DirectoryEntry>) -> End {
    let is_gone = match (kind, entry) {
        (_, None) => true,
        (Kind::User, Some(entry)) => !User::decode(&entry.value).is_ok_and(|user| !user.disabled),
        (_, Some(_)) => false,
    };
    match is_gone {
        true => End::Revoked,
        false => End::Changed,
    }
}

/// How a connection ends that rests on this; `None` if that is what it was.
fn end_by(backing: &dyn Backing, proof: &Proof) -> Option<End> {
    let Some(kind) = Kind::of_number(proof.kind.into()) else {
        return Some(End::Revoked);
    };
    let entry = read::directory_entry(backing, kind, &proof.name);
    match entry {
        Some(entry) if entry.version == proof.version => None,
        entry => Some(end_of(kind, entry.as_ref())),
    }
}

/// How a connection ends that rests on all of these; `None` if they are what they were.
fn end_by_any(backing: &dyn Backing, proofs: &[Proof]) -> Option<End> {
    let ends = proofs.iter().filter_map(|proof| end_by(backing, proof));
    ends.reduce(|one, other| match one {
        End::Revoked => one,
        _ => other,
    })
}

impl Live {
    pub(super) fn new(router: Arc<Router>, backing: Arc<dyn Backing>) -> Live {
        Live {
            known: Mutex::default(),
            router,
            backing,
        }
    }

    pub(super) fn register(
        &self,
        connection: ConnectionId,
        client_id: Arc<str>,
        address: Option<IpAddr>,
        principal: &Principal,
    ) {
        let facts = Facts {
            client_id,
            user: (!principal.is_anonymous()).then(|| principal.name.clone()),
            address,
            proofs: principal.proofs.clone().into(),
        };
        let known = &mut *self.known.lock();
        known.rest(connection, &facts.proofs);
        known.connections.insert(connection, facts);
    }

    /// From where a client is connected; `None` if it is not, or over a Unix socket.
    pub(super) fn address_of(&self, connection: ConnectionId, client_id: &str) -> Option<IpAddr> {
        let known = self.known.lock();
        // The number alone may be one of a former life of this node.
        let facts = known.connections.get(&connection);
        facts
            .filter(|facts| &*facts.client_id == client_id)?
            .address
    }

    /// The client of a connection has proved anew who it is.
    pub(super) fn prove(&self, connection: ConnectionId, principal: &Principal) {
        let mut known = self.known.lock();
        let proofs: Box<[Proof]> = principal.proofs.clone().into();
        let Some(facts) = known.connections.get_mut(&connection) else {
            return;
        };
        let former = std::mem::replace(&mut facts.proofs, proofs.clone());
        known.unrest(connection, &former);
        known.rest(connection, &proofs);
        drop(known);
        // What has changed before this was registered told nobody.
        if let Some(end) = end_by_any(&*self.backing, &proofs) {
            self.end(&[connection], end);
        }
    }

    /// A connection has ended.
    pub(super) fn unregister(&self, connection: ConnectionId) {
        let known = &mut *self.known.lock();
        if let Some(facts) = known.connections.remove(&connection) {
            known.unrest(connection, &facts.proofs);
        }
    }

    /// Ends the connections of whoever is banned, by what, and tells how many.
    pub(super) fn end_banned(&self, ban: impl Fn(Applicant<'_>) -> Option<Target>) -> usize {
        let (mut clients, mut addresses) = (Vec::new(), Vec::new());
        for (connection, facts) in &self.known.lock().connections {
            match ban(facts.applicant()) {
                None => {}
                Some(Target::Network(_)) => addresses.push(*connection),
                Some(Target::Client(_) | Target::User(_)) => clients.push(*connection),
            }
        }
        self.end(&clients, End::Banned);
        self.end(&addresses, End::AddressBanned);
        clients.len() + addresses.len()
    }

    fn end(&self, connections: &[ConnectionId], end: End) {
        let mut wake = WakeList::default();
        for connection in connections {
            self.router.post(*connection, Item::End(end), &mut wake);
        }
    }
}

/// Puts it into the audit log that connections are ended, because of what.
pub(super) fn note_revocation(what: &str, name: &str, connections: usize) {
    audit::record(&Event {
        details: &[
            ("what", what),
            ("name", name),
            ("connections", &connections.to_string()),
        ],
        ..Event::new(AuditKind::Revocation, Outcome::Accepted)
    });
}

impl DirectoryObserver for Live {
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        let version = entry.map(|entry| entry.version);
        let key = (kind as u8, name.into());
        let ended = self.known.lock().resting_on_other(&key, version);
        if !ended.is_empty() {
            self.end(&ended, end_of(kind, entry));
            note_revocation(kind.name(), name, ended.len());
        }
    }

    fn reset(&self, backing: &dyn Backing) {
        let known = self.known.lock();
        let end = |facts: &Facts| end_by_any(backing, &facts.proofs);
        let all = known.connections.iter();
        let ended: Vec<(ConnectionId, End)> = all
            .filter_map(|(connection, facts)| Some((*connection, end(facts)?)))
            .collect();
        drop(known);
        for (connection, end) in &ended {
            self.end(&[*connection], *end);
        }
        if !ended.is_empty() {
            note_revocation("directory", "a snapshot", ended.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Method;

    fn proof(name: &str, version: u64) -> Proof {
        Proof {
            kind: Kind::User as u8,
            name: name.into(),
            version,
        }
    }

    fn facts(proofs: &[Proof]) -> Facts {
        Facts {
            client_id: "c".into(),
            user: None,
            address: None,
            proofs: proofs.into(),
        }
    }

    #[test]
    fn who_rests_on_another_version_is_found() {
        let mut known = Known::default();
        let rests = [
            vec![proof("anna", 5)],
            vec![proof("anna", 7), proof("berta", 1)],
            vec![],
        ];
        for (connection, proofs) in (1..).map(ConnectionId).zip(&rests) {
            known.rest(connection, proofs);
            known.connections.insert(connection, facts(proofs));
        }
        let found = |known: &Known, name: &str, version| {
            let found = known.resting_on_other(&(Kind::User as u8, name.into()), version);
            found
                .into_iter()
                .map(|connection| connection.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&known, "anna", Some(7)), [1]);
        assert_eq!(found(&known, "anna", None), [1, 2]);
        assert_eq!(found(&known, "berta", Some(1)), [] as [u64; 0]);
        assert_eq!(found(&known, "clara", None), [] as [u64; 0]);
        known.unrest(ConnectionId(2), &rests[1]);
        assert_eq!(found(&known, "anna", None), [1]);
        assert_eq!(known.resting.len(), 1, "nothing is left behind");
    }

    #[test]
    fn only_who_is_gone_or_disabled_is_revoked() {
        let entry = |user: &User| DirectoryEntry {
            value: user.encode().into(),
            ..DirectoryEntry::default()
        };
        let mut user = User::default();
        assert_eq!(end_of(Kind::User, Some(&entry(&user))), End::Changed);
        user.groups = vec!["others".into()];
        assert_eq!(end_of(Kind::User, Some(&entry(&user))), End::Changed);
        user.disabled = true;
        assert_eq!(end_of(Kind::User, Some(&entry(&user))), End::Revoked);
        assert_eq!(end_of(Kind::User, None), End::Revoked);
    }

    #[test]
    fn nothing_is_left_of_a_connection_that_has_ended() {
        let outboxes = Arc::new(crate::forward::outbox::Outboxes::default());
        let router = Router::new(crate::base::ids::NodeId(1), Arc::default(), outboxes);
        let backing: Arc<dyn Backing> =
            Arc::new(std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new());
        let live = Arc::new(Live::new(router, backing));
        let principal = Principal {
            proofs: vec![proof("anna", 5)],
            ..Principal::new("anna", Method::Password)
        };
        live.register(ConnectionId(1), "c".into(), None, &principal);
        live.prove(
            ConnectionId(1),
            &Principal {
                proofs: vec![proof("anna", 6)],
                ..principal
            },
        );
        let key = (Kind::User as u8, "anna".into());
        assert_eq!(live.known.lock().resting_on_other(&key, Some(5)).len(), 1);
        live.unregister(ConnectionId(1));
        assert!(live.known.lock().connections.is_empty());
        assert!(live.known.lock().resting.is_empty());
    }
}
