//! Sessions: their rows, which connection owns which, and when one without a connection expires.
//!
//! What else belongs to a session (subscriptions, queue, will, watched keys) has other owners; the order in which they
//! act when a session begins or ends is [`super::lifecycle`]'s.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::batch::Batch;
use super::schema::timer::Kind;
use super::schema::{self, ended_incarnation};
use super::subscriptions::Queueing;
use super::tables::{Backing, Tables};
use crate::base::ids::{ConnectionId, Incarnation, LogIndex, NodeId, Owner, SessionId};
use crate::base::proto::{command, state};
use crate::base::time::Millis;

/// A session expiry interval that means "never" (MQTT 5, 3.1.2.11.2).
const NEVER_EXPIRES: u32 = u32::MAX;

/// The session that a connection owns.
#[derive(Clone)]
pub(super) struct Connected {
    pub client_id: Arc<str>,
    pub session: SessionId,
    pub durable: bool,
}

impl Connected {
    pub fn new(client_id: &str, row: &state::Session) -> Self {
        Connected {
            client_id: client_id.into(),
            session: SessionId(row.session_id),
            durable: row.durable,
        }
    }
}

/// The connections that own a session; derived from the rows of sessions.
#[derive(Default)]
pub(super) struct Sessions {
    connections: BTreeMap<Owner, Connected>,
    /// Incarnations that have ended while their connections own sessions; the rows of [`schema::EndedIncarnation`].
    ended: BTreeSet<(NodeId, Incarnation)>,
    /// Rows of sessions.
    count: u64,
    /// Those of each principal; clients without a name share the empty one. Names may be the clients' choice, so they
    /// are hashed with a random seed; nothing visits them in the order of the table.
    of_principal: HashMap<Box<str>, u64>,
}

impl Sessions {
    /// Reads the ended incarnations again.
    pub fn restore_incarnations(&mut self, backing: &dyn Backing) {
        self.ended.clear();
        backing.rows::<schema::EndedIncarnation>(&schema::Range::all(), |id, _| {
            self.ended.insert(id);
            true
        });
    }

    /// Builds the index anew, and shows every session.
    pub fn restore(&mut self, backing: &dyn Backing, mut show: impl FnMut(&str, &state::Session)) {
        self.connections.clear();
        self.count = 0;
        self.of_principal.clear();
        backing.rows::<schema::Session>(&schema::Range::all(), |client_id, row| {
            let row = row.decode();
            self.count += 1;
            self.add_to(&row.principal);
            if let Some(owner) = owner_of(&row) {
                self.connect(owner, Connected::new(client_id, &row));
            }
            show(client_id, &row);
            true
        });
    }

    /// Whether a session more than there are would exceed `max`, if that is a bound.
    pub fn exceed(&self, max: u64) -> bool {
        max != 0 && self.count >= max
    }

    /// Whether one session more would be more than `max` of a principal, if that is a bound.
    pub fn exceed_of(&self, principal: &str, max: u64) -> bool {
        max != 0 && self.of_principal.get(principal).copied().unwrap_or(0) >= max
    }

    fn add_to(&mut self, principal: &str) {
        *self.of_principal.entry(principal.into()).or_default() += 1;
    }

    fn remove_from(&mut self, principal: &str) {
        if let Some(count) = self.of_principal.get_mut(principal) {
            *count -= 1;
            if *count == 0 {
                self.of_principal.remove(principal);
            }
        }
    }

    /// A session belongs to the first principal with a name that opens it, until it ends. `is_new`: it has no row yet.
    pub fn claim(&mut self, row: &mut state::Session, principal: String, is_new: bool) {
        if row.principal.is_empty() {
            row.principal = principal;
            if !is_new {
                self.remove_from("");
                self.add_to(&row.principal);
            }
        }
    }

    /// Writes the row of a session that has none yet.
    pub fn create_row(&mut self, batch: &mut Batch<'_, '_>, client_id: &str, row: &state::Session) {
        self.count += 1;
        self.add_to(&row.principal);
        put_row(batch, client_id, row);
    }

    /// Removes the row of a session that has one.
    pub fn delete_row(&mut self, batch: &mut Batch<'_, '_>, client_id: &str, principal: &str) {
        self.count -= 1;
        self.remove_from(principal);
        batch.tables.delete::<schema::Session>(client_id);
    }

    /// The session that a connection owns.
    pub fn connected(&self, owner: Owner) -> Option<&Connected> {
        self.connections.get(&owner)
    }

    pub fn connect(&mut self, owner: Owner, connected: Connected) {
        self.connections.insert(owner, connected);
    }

    pub fn disconnect(&mut self, owner: Owner, client_id: &str) {
        let known = self.connections.remove(&owner);
        debug_assert!(known.is_none_or(|known| &*known.client_id == client_id));
    }

    /// Incarnations that have ended while their connections own sessions.
    pub fn ended_incarnations(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.ended.iter().copied()
    }

    /// Whether the owner's incarnation has ended: it is no owner any more, whatever its session's row says.
    pub fn has_ended(&self, owner: Owner) -> bool {
        !self.ended.is_empty() && self.ended.contains(&(owner.node, owner.incarnation))
    }

    /// An incarnation has ended, and its connections still own sessions, which are released later.
    pub fn end_incarnation(
        &mut self,
        batch: &mut Batch<'_, '_>,
        node: NodeId,
        incarnation: Incarnation,
    ) {
        if self.ended.insert((node, incarnation)) {
            let row = state::EndedIncarnation {};
            batch
                .tables
                .put::<schema::EndedIncarnation>((node, incarnation), &row);
        }
        let subject = ended_incarnation::subject(node, incarnation);
        let soon = batch.now.plus(1);
        batch.set_timer(soon, Kind::ReleaseIncarnation, &subject);
    }

    /// No connection of an ended incarnation owns a session any more.
    pub fn released(&mut self, batch: &mut Batch<'_, '_>, node: NodeId, incarnation: Incarnation) {
        if self.ended.remove(&(node, incarnation)) {
            let key = (node, incarnation);
            batch.tables.delete::<schema::EndedIncarnation>(key);
        }
    }

    /// The first connections of an incarnation and their clients.
    pub fn of_incarnation(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        most: usize,
    ) -> Vec<(Owner, Arc<str>)> {
        let owner = |connection| Owner {
            node,
            incarnation,
            connection: ConnectionId(connection),
        };
        self.connections
            .range(owner(0)..=owner(u64::MAX))
            .map(|(owner, connected)| (*owner, connected.client_id.clone()))
            .take(most)
            .collect()
    }
}

/// The row of a client's session.
pub(super) fn row(tables: &Tables<'_>, client_id: &str) -> Option<state::Session> {
    tables.get::<schema::Session>(client_id)
}

pub(super) fn put_row(batch: &mut Batch<'_, '_>, client_id: &str, row: &state::Session) {
    batch.tables.put::<schema::Session>(client_id, row);
}

/// The session of `client_id`, if `connection` of the proposing node owns it.
pub(super) fn owned(
    batch: &Batch<'_, '_>,
    client_id: &str,
    connection: u64,
) -> Option<(state::Session, Owner)> {
    let row = row(batch.tables, client_id)?;
    let owner = batch.owner(connection);
    (owner_of(&row) == Some(owner)).then_some((row, owner))
}

/// The owner in a session's row.
pub(super) fn owner_of(row: &state::Session) -> Option<Owner> {
    (row.owner_node != 0).then_some(Owner {
        node: NodeId(row.owner_node),
        incarnation: Incarnation(row.owner_incarnation),
        connection: ConnectionId(row.owner_connection),
    })
}

/// The log entry `index` changes the owner.
pub(super) fn set_owner(row: &mut state::Session, owner: Option<Owner>, index: LogIndex) {
    row.owner_changed = index.0;
    let owner = owner.unwrap_or_default();
    row.owner_node = owner.node.0;
    row.owner_incarnation = owner.incarnation.0;
    row.owner_connection = owner.connection.0;
}

/// Whether the session has had no connection since before a log entry, as far as its row says so.
pub(super) fn is_away_since_before(row: &state::Session, index: LogIndex) -> bool {
    row.owner_node == 0 && row.owner_changed < index.0
}

/// Which of the session's messages go through its queue.
pub(super) fn queueing_of(row: &state::Session) -> Queueing {
    Queueing {
        durable: row.durable,
        qos_0: row.durable && row.queue_qos_0,
    }
}

/// The session belongs to another principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotItsOwn;

/// Whether a principal may have a session that is there. One that belongs to nobody is for everybody.
pub(super) fn check_principal(row: &state::Session, principal: &str) -> Result<(), NotItsOwn> {
    match row.principal.is_empty() || row.principal == principal {
        true => Ok(()),
        false => Err(NotItsOwn),
    }
}

/// What a CONNECT asks of its session.
pub(super) fn set_options(row: &mut state::Session, command: &command::OpenSession) {
    row.expiry_interval_s = command.expiry_interval_s;
    row.protocol_level = command.protocol_level;
    // A session that has a queue keeps it, also when its new connection is its last.
    row.durable |= command.expiry_interval_s != 0;
    row.receive_maximum = command.receive_maximum;
    let bounds = command.bounds.unwrap_or_default();
    row.max_messages = bounds.max_messages;
    row.max_bytes = bounds.max_bytes;
    row.drop_policy = bounds.policy;
    row.queue_qos_0 = bounds.qos_0;
    row.assigned_client_id = command.assigned_client_id;
    row.generation = command.generation;
    row.fingerprint = command.fingerprint.clone();
}

/// A session without a connection expires after its interval.
pub(super) fn start_expiry(batch: &mut Batch<'_, '_>, client_id: &str, row: &mut state::Session) {
    if row.expiry_interval_s != NEVER_EXPIRES {
        let deadline = batch.now.plus(u64::from(row.expiry_interval_s) * 1000);
        row.expires_at_ms = deadline.0;
        batch.set_timer(deadline, Kind::SessionExpiry, client_id.as_bytes());
    }
}

pub(super) fn cancel_expiry(batch: &mut Batch<'_, '_>, client_id: &str, row: &mut state::Session) {
    if row.expires_at_ms != 0 {
        let deadline = Millis(row.expires_at_ms);
        batch.clear_timer(deadline, Kind::SessionExpiry, client_id.as_bytes());
        row.expires_at_ms = 0;
    }
}
