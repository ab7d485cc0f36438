//! How sessions begin and end: CONNECT, the end of a connection, a node or a session, and in which order the parts that
//! keep something for a session act then.

use super::batch::Batch;
use super::directory;
use super::effect::EventDrop;
use super::effect::{EndReason, Output, Reply};
use super::events::{EVENT_COST, Events, Named};
use super::hub::presence;
use super::messaging::{Messaging, QUEUE_COST};
use super::queue::{full as queue_full, received};
use super::resuming::must_wait;
use super::schema::ended_incarnation;
use super::session::{self, Connected, Sessions, owner_of};
use super::store::Store;
use super::will;
use crate::base::ids::{Incarnation, NodeId, Owner, SessionId};
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::events::DisconnectionReason;
use crate::session::Sequence;

/// Row operations that releasing the session of an ended connection takes.
const RELEASE_COST: usize = 16;

/// The parts that keep something for a session or its connection.
pub(super) struct Lifecycle<'m> {
    pub sessions: &'m mut Sessions,
    pub messaging: &'m mut Messaging,
    pub store: &'m mut Store,
    pub events: &'m mut Events,
}

impl Lifecycle<'_> {
    /// Whether the session would be one more than there may be, in the cluster or of its principal.
    fn exceeds(
        &self,
        batch: &Batch<'_, '_>,
        client_id: &str,
        principal: &str,
        command: &command::OpenSession,
    ) -> bool {
        let in_cluster = self.sessions.exceed(command.max_sessions);
        let most = command.max_sessions_of_principal;
        let of_principal = self.sessions.exceed_of(principal, most);
        if !in_cluster && !of_principal {
            return false;
        }
        match session::row(batch.tables, client_id) {
            None => true,
            // It becomes the principal's: nobody with a name has opened it yet, or it has ended and goes first.
            Some(row) => of_principal && row.principal != principal,
        }
    }

    /// CONNECT: the connection becomes the owner of its client's session, which is created if need be.
    pub fn open(&mut self, batch: &mut Batch<'_, '_>, mut command: command::OpenSession) -> Reply {
        let client_id = std::mem::take(&mut command.client_id);
        let owner = batch.owner(command.connection);
        let principal = command.principal.take().unwrap_or_default();
        if !directory::proves(batch.tables, &principal.proofs) {
            return Reply::NotAuthorized;
        }
        if must_wait(batch, &client_id, &principal.name, &command) {
            return Reply::NotNow;
        }
        if presence::admit(batch, &client_id, &command).is_err() {
            return Reply::NotAuthorized;
        }
        if self.exceeds(batch, &client_id, &principal.name, &command) {
            return Reply::QuotaExceeded;
        }
        let taken = self.take_over(batch, &client_id, &principal.name, &command);
        let Ok(found) = taken else {
            return Reply::NotAuthorized;
        };
        let present = found.is_some();
        let mut row = found.unwrap_or_else(|| state::Session {
            session_id: batch.meta.new_session().0,
            ..Default::default()
        });
        session::cancel_expiry(batch, &client_id, &mut row);
        will::keep(batch, &client_id, &mut row, command.will.take());
        session::set_owner(&mut row, Some(owner), batch.index);
        session::set_options(&mut row, &command);
        self.sessions.claim(&mut row, principal.name, !present);
        self.begin_connection(batch, &client_id, &mut row);
        match present {
            true => session::put_row(batch, &client_id, &row),
            false => self.sessions.create_row(batch, &client_id, &row),
        }
        let session = SessionId(row.session_id);
        self.sessions
            .connect(owner, Connected::new(&client_id, &row));
        self.messaging.connect(batch, &client_id, &row);
        if command.generation != 0 {
            presence::connected(batch, &client_id, command.model_id);
        }
        let received = match present && row.durable {
            true => received::all(batch, session),
            false => Vec::new(),
        };
        batch.spend_resumed_ids(received.len());
        Reply::Opened {
            session,
            present,
            durable: row.durable,
            received,
        }
    }

    /// Takes a client's session from the connection that owns it; the session's row, if the session goes on.
    ///
    /// # Errors
    /// It belongs to another principal, and stays as it is.
    fn take_over(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        principal: &str,
        command: &command::OpenSession,
    ) -> Result<Option<state::Session>, session::NotItsOwn> {
        let Some(mut row) = self.settled(batch, client_id) else {
            return Ok(None);
        };
        session::check_principal(&row, principal)?;
        // The session of another identity is none of this one's.
        let clean_start = command.clean_start || row.generation != command.generation;
        // The client knows its id, and may have it again: the numbers of its connections stay.
        row.assigned_client_id &= command.assigned_client_id;
        if let Some(former) = owner_of(&row) {
            self.end_owner(batch, client_id, &mut row, former, EndReason::TakenOver);
            // A session whose expiry interval is 0 ends with its connection, taken over or not.
            if row.expiry_interval_s == 0 {
                self.delete(batch, client_id, row);
                return Ok(None);
            }
            let session = SessionId(row.session_id);
            self.messaging.taken_over(batch, session, client_id);
            if !clean_start && let Some(will) = will::taken_over(batch, client_id, &mut row) {
                self.messaging.publish_own(batch, Some(session), will);
            }
        }
        if clean_start {
            self.delete(batch, client_id, row);
            return Ok(None);
        }
        Ok(Some(row))
    }

    /// The owner's network connection has ended.
    pub fn close(&mut self, batch: &mut Batch<'_, '_>, command: command::CloseSession) -> Reply {
        let client_id = &command.client_id;
        let Some((mut row, owner)) = session::owned(batch, client_id, command.connection) else {
            return Reply::NotOwner;
        };
        // DISCONNECT may change the interval, but not away from 0 (MQTT 5, 3.14.2.2.2).
        if let Some(interval) = command.expiry_interval_s
            && row.expiry_interval_s != 0
        {
            row.expiry_interval_s = interval;
        }
        if command.discard_will {
            will::discard(batch, client_id, &mut row);
        }
        let reason = DisconnectionReason::of_number(command.reason);
        self.end_connection(batch, client_id, &mut row, owner, reason);
        let sent_through = Some(Sequence(command.sent_through));
        self.release(batch, client_id, row, sent_through);
        Reply::Done
    }

    /// Ends a client's connection for a reason of the server's; its session goes on as after any other loss.
    pub fn disconnect(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        reason: EndReason,
    ) -> Reply {
        let Some(mut row) = self.settled(batch, client_id) else {
            return Reply::NotOwner;
        };
        if reason.discards_will() && row.has_will {
            will::discard(batch, client_id, &mut row);
            session::put_row(batch, client_id, &row);
        }
        let Some(owner) = owner_of(&row) else {
            return Reply::NotOwner;
        };
        self.end_owner(batch, client_id, &mut row, owner, reason);
        self.release(batch, client_id, row, None);
        Reply::Done
    }

    /// Ends a session, and the connection that owns it, for a reason of the server's.
    pub fn end_session(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        reason: EndReason,
    ) -> Reply {
        let Some(mut row) = self.settled(batch, client_id) else {
            return Reply::NotOwner;
        };
        if let Some(owner) = owner_of(&row) {
            self.end_owner(batch, client_id, &mut row, owner, reason);
        }
        if reason.discards_will() {
            will::discard(batch, client_id, &mut row);
        }
        self.delete(batch, client_id, row);
        Reply::Done
    }

    /// Ends every connection of an incarnation of a node: none of them is an owner from now on. The sessions they owned
    /// are released at once as far as the batch's budget allows, the others later.
    pub fn end_incarnation(
        &mut self,
        batch: &mut Batch<'_, '_>,
        node: NodeId,
        incarnation: Incarnation,
    ) {
        self.messaging.end_incarnation(node, incarnation);
        self.release_portion(batch, node, incarnation);
        let ended = Output::NodeEnded { node, incarnation };
        batch.outputs.push(ended);
    }

    /// A timer asks to go on with the sessions of an ended incarnation.
    pub fn go_on_releasing(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        if let Some((node, incarnation)) = ended_incarnation::of_subject(subject) {
            self.release_portion(batch, node, incarnation);
        }
    }

    /// Nothing is waited for, or who keeps the queues of events full would put off the wills of a dead node's clients:
    /// an event for which there is no room is not published, as at any other time.
    fn release_portion(
        &mut self,
        batch: &mut Batch<'_, '_>,
        node: NodeId,
        incarnation: Incarnation,
    ) {
        let cost = match self.events.is_recording() {
            true => RELEASE_COST + EVENT_COST,
            false => RELEASE_COST,
        };
        let most = batch.allowance(cost);
        let connections = self.sessions.of_incarnation(node, incarnation, most);
        let mut more = connections.len() == most;
        for (owner, client_id) in connections {
            batch.spend(cost);
            self.release_ended(batch, &client_id, owner);
            // One may have taken more than most do.
            if batch.budget_left() == 0 {
                more = true;
                break;
            }
        }
        if more {
            self.sessions.end_incarnation(batch, node, incarnation);
        } else {
            self.sessions.released(batch, node, incarnation);
            self.messaging.released(node, incarnation);
        }
    }

    /// Releases the session of a connection whose incarnation has ended; its row, if it goes on.
    fn release_ended(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        owner: Owner,
    ) -> Option<state::Session> {
        let row = session::row(batch.tables, client_id);
        let Some(mut row) = row.filter(|row| owner_of(row) == Some(owner)) else {
            self.forget_connection(batch, client_id, owner);
            return session::row(batch.tables, client_id);
        };
        let reason = DisconnectionReason::ConnectionLost;
        // However many are sent the event: the next session is not to wait for them.
        batch.with_few_queues(QUEUE_COST, |batch| {
            self.end_connection(batch, client_id, &mut row, owner, reason);
        });
        self.release(batch, client_id, row, None);
        session::row(batch.tables, client_id)
    }

    /// The row of a client's session as if what is due or left of ended incarnations had been done already.
    fn settled(&mut self, batch: &mut Batch<'_, '_>, client_id: &str) -> Option<state::Session> {
        let is_due = |at_ms: u64| at_ms != 0 && at_ms <= batch.now.0;
        let mut row = session::row(batch.tables, client_id)?;
        if is_due(row.expires_at_ms) {
            self.delete(batch, client_id, row);
            return None;
        }
        if is_due(row.will_at_ms) {
            self.publish_will(batch, client_id, &mut row);
            session::put_row(batch, client_id, &row);
        }
        match owner_of(&row) {
            Some(owner) if self.sessions.has_ended(owner) => {
                self.release_ended(batch, client_id, owner)
            }
            _ => Some(row),
        }
    }

    /// A timer says that a session ends because its queue was full; it may have ended since.
    pub fn queue_full(&mut self, batch: &mut Batch<'_, '_>, subject: &[u8]) {
        if let Some((session, client_id)) = queue_full::of_subject(subject)
            && let Some(row) = self.settled(batch, client_id)
            && row.session_id == session.0
        {
            self.end_session(batch, client_id, EndReason::QueueFull);
        }
    }

    /// A timer says that a session expires; it may have been resumed since.
    pub fn expire(&mut self, batch: &mut Batch<'_, '_>, client_id: &[u8], deadline: Millis) {
        let Ok(client_id) = std::str::from_utf8(client_id) else {
            return;
        };
        if let Some(row) = session::row(batch.tables, client_id)
            && row.expires_at_ms == deadline.0
            && owner_of(&row).is_none()
        {
            self.delete(batch, client_id, row);
        }
    }

    /// A timer says that a will's delay is over; the session may have been resumed since.
    pub fn will_due(&mut self, batch: &mut Batch<'_, '_>, client_id: &[u8], deadline: Millis) {
        let Ok(client_id) = std::str::from_utf8(client_id) else {
            return;
        };
        if let Some(mut row) = session::row(batch.tables, client_id)
            && row.will_at_ms == deadline.0
        {
            self.publish_will(batch, client_id, &mut row);
            session::put_row(batch, client_id, &row);
        }
    }

    /// A connection of a session begins: it gets its number, and who asks for it hears of it. The session has got its
    /// principal, but does not belong to the connection yet.
    fn begin_connection(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        let of = Named::new(row, client_id);
        let sequence = self.events.number(batch, &of);
        if sequence != 0 {
            let message = self.events.connected(batch, &of, sequence);
            self.publish_event(batch, message);
        }
        row.event_sequence = sequence;
    }

    /// What ends with a network connection, whatever becomes of its session. Who asks for it hears why, before anything
    /// else that follows from it.
    fn end_connection(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
        owner: Owner,
        reason: DisconnectionReason,
    ) {
        let sequence = std::mem::take(&mut row.event_sequence);
        let of = Named::new(row, client_id);
        let message = self.events.disconnected(batch, &of, sequence, reason);
        self.publish_event(batch, message);
        self.forget_connection(batch, client_id, owner);
    }

    /// The same for a connection that the machine ends: its node is told.
    fn end_owner(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
        owner: Owner,
        reason: EndReason,
    ) {
        self.end_connection(batch, client_id, row, owner, reason.into());
        tell(batch, owner, reason);
    }

    fn forget_connection(&mut self, batch: &mut Batch<'_, '_>, client_id: &str, owner: Owner) {
        self.sessions.disconnect(owner, client_id);
        self.store.end_connection(batch, owner);
    }

    /// Publishes what an event has become. Events never refuse what clients publish, so they may take a share only of
    /// what waits for going into queues; beyond it they are not published, and counted.
    pub fn publish_event(
        &mut self,
        batch: &mut Batch<'_, '_>,
        message: Option<command::PublishedMessage>,
    ) {
        let Some(message) = message else {
            return;
        };
        match self.messaging.is_crowded(batch, &message) {
            true => batch.count_events_dropped(EventDrop::Crowded, 1),
            false => {
                self.messaging.publish_own(batch, None, message);
            }
        }
    }

    /// The session has lost its connection: it ends now, or later.
    fn release(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        mut row: state::Session,
        sent_through: Option<Sequence>,
    ) {
        if row.expiry_interval_s == 0 {
            self.delete(batch, client_id, row);
            return;
        }
        let session = SessionId(row.session_id);
        presence::disconnected(batch, client_id, &row);
        session::set_owner(&mut row, None, batch.index);
        if let Some(will) = will::start(batch, client_id, &mut row) {
            self.messaging.publish_own(batch, Some(session), will);
        }
        session::start_expiry(batch, client_id, &mut row);
        session::put_row(batch, client_id, &row);
        self.messaging
            .disconnect(batch, session, client_id, sent_through);
    }

    fn delete(&mut self, batch: &mut Batch<'_, '_>, client_id: &str, mut row: state::Session) {
        if owner_of(&row).is_some() {
            presence::disconnected(batch, client_id, &row);
        }
        session::cancel_expiry(batch, client_id, &mut row);
        // A will that still waits goes out when its session ends `[MQTT-3.1.2-8]`.
        self.publish_will(batch, client_id, &mut row);
        self.messaging.end_session(batch, client_id, &row);
        if row.assigned_client_id {
            let of = Named::new(&row, client_id);
            self.events.assigned_session_ended(batch, &of);
        }
        self.sessions.delete_row(batch, client_id, &row.principal);
    }

    fn publish_will(
        &mut self,
        batch: &mut Batch<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        if let Some(will) = will::take(batch, client_id, row) {
            let publisher = Some(SessionId(row.session_id));
            self.messaging.publish_own(batch, publisher, will);
        }
    }
}

/// Has a connection ended by its node.
fn tell(batch: &mut Batch<'_, '_>, owner: Owner, reason: EndReason) {
    if batch.outputs.has_connection(owner) {
        let connection = owner.connection;
        batch.outputs.push(Output::End { connection, reason });
    }
}
