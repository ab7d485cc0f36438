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
use crate::auth::{Principal, Proof};
use crate::base::directory::Kind;
use crate::base::ids::ConnectionId;
use crate::base::proto::state::DirectoryEntry;
use crate::machine::read;
use crate::machine::tables::Backing;
use crate::mailbox::{End, Item, WakeList};
use crate::replica::directory::DirectoryObserver;
use crate::router::Router;

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

/// Whether an entry is what an identity was proved with.
fn holds(backing: &dyn Backing, proof: &Proof) -> bool {
    let kind = Kind::of_number(proof.kind.into());
    let entry = kind.and_then(|kind| read::directory_entry(backing, kind, &proof.name));
    entry.is_some_and(|entry| entry.version == proof.version)
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
        if !proofs.iter().all(|proof| holds(&*self.backing, proof)) {
            self.end(&[connection], End::Revoked);
        }
    }

    /// A connection has ended.
    pub(super) fn unregister(&self, connection: ConnectionId) {
        let known = &mut *self.known.lock();
        if let Some(facts) = known.connections.remove(&connection) {
            known.unrest(connection, &facts.proofs);
        }
    }

    /// Ends the connections of whoever is banned.
    pub(super) fn end_banned(&self, is_banned: impl Fn(Applicant<'_>) -> bool) {
        let known = self.known.lock();
        let banned = known
            .connections
            .iter()
            .filter(|(_, facts)| is_banned(facts.applicant()));
        let banned: Vec<ConnectionId> = banned.map(|(connection, _)| *connection).collect();
        drop(known);
        self.end(&banned, End::Banned);
    }

    fn end(&self, connections: &[ConnectionId], end: End) {
        let mut wake = WakeList::default();
        for connection in connections {
            self.router.post(*connection, Item::End(end), &mut wake);
        }
    }
}

impl DirectoryObserver for Live {
    fn changed(&self, kind: Kind, name: &str, entry: Option<&DirectoryEntry>) {
        let version = entry.map(|entry| entry.version);
        let key = (kind as u8, name.into());
        let ended = self.known.lock().resting_on_other(&key, version);
        self.end(&ended, End::Revoked);
    }

    fn reset(&self, backing: &dyn Backing) {
        let known = self.known.lock();
        let rests_on_other =
            |facts: &Facts| facts.proofs.iter().any(|proof| !holds(backing, proof));
        let ended: Vec<ConnectionId> = known
            .connections
            .iter()
            .filter(|(_, facts)| rests_on_other(facts))
            .map(|(connection, _)| *connection)
            .collect();
        drop(known);
        self.end(&ended, End::Revoked);
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
