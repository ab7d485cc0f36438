//! Sessions and who owns them: CONNECT, the end of a connection, SUBSCRIBE, UNSUBSCRIBE.

use std::sync::Arc;

use prost::Message as _;

use super::effect::{EndReason, Output, Reply};
use super::schema::timer::Kind;
use super::subscriptions::{Queueing, Subscriber};
use super::{Connected, Context, Machine, schema};
use crate::base::ids::{ConnectionId, Incarnation, NodeId, Owner, SessionId};
use crate::base::proto::{command, state};
use crate::base::time::Millis;
use crate::session::{Sequence, delivery};
use crate::topic::Filter;

/// A session expiry interval that means "never" `[MQTT5 3.1.2.11.2]`.
const NEVER_EXPIRES: u32 = u32::MAX;

/// The owner in a session's row.
pub(super) fn owner_of(row: &state::Session) -> Option<Owner> {
    (row.owner_node != 0).then_some(Owner {
        node: NodeId(row.owner_node),
        incarnation: Incarnation(row.owner_incarnation),
        connection: ConnectionId(row.owner_connection),
    })
}

fn set_owner(row: &mut state::Session, owner: Option<Owner>) {
    let owner = owner.unwrap_or_default();
    row.owner_node = owner.node.0;
    row.owner_incarnation = owner.incarnation.0;
    row.owner_connection = owner.connection.0;
}

/// Which of the session's messages go through its queue.
pub(super) fn queueing_of(row: &state::Session) -> Queueing {
    Queueing {
        durable: row.durable,
        qos_0: row.durable && row.queue_qos_0,
    }
}

fn set_bounds(row: &mut state::Session, bounds: Option<command::QueueBounds>) {
    let bounds = bounds.unwrap_or_default();
    row.max_messages = bounds.max_messages;
    row.max_bytes = bounds.max_bytes;
    row.drop_policy = bounds.policy;
    row.queue_qos_0 = bounds.qos_0;
}

impl Machine {
    pub(super) fn session(
        &self,
        context: &Context<'_, '_>,
        client_id: &str,
    ) -> Option<state::Session> {
        let value = context.tables.get(&schema::session::encode(client_id))?;
        Some(state::Session::decode(value).expect("this machine wrote the row"))
    }

    pub(super) fn put_session(
        &self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &state::Session,
    ) {
        context
            .tables
            .put(schema::session::encode(client_id), row.encode_to_vec());
    }

    /// The session of `client_id`, if `connection` of the proposing node owns it.
    pub(super) fn owned(
        &self,
        context: &Context<'_, '_>,
        client_id: &str,
        connection: u64,
    ) -> Option<(state::Session, Owner)> {
        let row = self.session(context, client_id)?;
        let owner = context.owner(connection);
        (owner_of(&row) == Some(owner)).then_some((row, owner))
    }

    pub(super) fn open_session(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::OpenSession,
    ) -> Reply {
        let owner = context.owner(command.connection);
        let mut found = self.session(context, &command.client_id);
        if let Some(row) = &mut found
            && let Some(former) = owner_of(row)
        {
            self.end_connection(context, &command.client_id, former);
            if former.node == self.local {
                self.outputs.push(Output::End {
                    connection: former.connection,
                    reason: EndReason::TakenOver,
                });
            }
            // A session whose expiry interval is 0 ends with its connection, taken over or not.
            if row.expiry_interval_s == 0 {
                let ended = *row;
                self.delete_session(context, &command.client_id, ended);
                found = None;
            } else {
                let session = SessionId(row.session_id);
                self.close_queue(context, session, &command.client_id, None);
                if !command.clean_start {
                    self.overtake_will(context, &command.client_id, row);
                }
            }
        }
        if let Some(row) = found.take_if(|_| command.clean_start) {
            self.delete_session(context, &command.client_id, row);
        }
        let present = found.is_some();
        let mut row = found.unwrap_or_else(|| {
            self.meta.next_session_id += 1;
            state::Session {
                session_id: self.meta.next_session_id,
                ..Default::default()
            }
        });
        self.cancel_session_expiry(context, &command.client_id, &mut row);
        self.keep_will(context, &command.client_id, &mut row, command.will);
        set_owner(&mut row, Some(owner));
        row.expiry_interval_s = command.expiry_interval_s;
        row.protocol_level = command.protocol_level;
        // A session that has a queue keeps it, also when its new connection is its last.
        row.durable |= command.expiry_interval_s != 0;
        row.receive_maximum = command.receive_maximum;
        set_bounds(&mut row, command.bounds);
        self.put_session(context, &command.client_id, &row);
        let session = SessionId(row.session_id);
        let connected = Connected {
            client_id: command.client_id.as_str().into(),
            session,
            durable: row.durable,
        };
        self.connections.insert(owner, connected);
        let subscriber =
            self.subscriptions
                .open(session, &command.client_id, Some(owner), queueing_of(&row));
        self.open_queue(context, &command.client_id, &row);
        let received = if present && row.durable {
            self.received(context, session)
        } else {
            Vec::new()
        };
        Reply::Opened {
            session,
            present,
            durable: row.durable,
            received,
            subscriber,
        }
    }

    pub(super) fn close_session(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::CloseSession,
    ) -> Reply {
        let Some((mut row, owner)) = self.owned(context, &command.client_id, command.connection)
        else {
            return Reply::NotOwner;
        };
        // `[MQTT-3.14.2.2.2]`: DISCONNECT may change the interval, but not away from 0.
        if let Some(interval) = command.expiry_interval_s
            && row.expiry_interval_s != 0
        {
            row.expiry_interval_s = interval;
        }
        if command.discard_will {
            self.drop_will(context, &command.client_id, &mut row);
        }
        self.end_connection(context, &command.client_id, owner);
        let sent_through = Some(Sequence(command.sent_through));
        self.release_session(context, &command.client_id, row, sent_through);
        Reply::Done
    }

    pub(super) fn delete_session_command(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::DeleteSession,
    ) -> Reply {
        match self.end_session(context, &command.client_id, EndReason::Administrative) {
            true => Reply::Done,
            false => Reply::NotOwner,
        }
    }

    pub(super) fn disconnect(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::Disconnect,
    ) -> Reply {
        let client_id = &command.client_id;
        let Some(row) = self.session(context, client_id) else {
            return Reply::NotOwner;
        };
        let Some(owner) = owner_of(&row) else {
            return Reply::NotOwner;
        };
        self.end_connection(context, client_id, owner);
        if owner.node == self.local {
            self.outputs.push(Output::End {
                connection: owner.connection,
                reason: EndReason::Administrative,
            });
        }
        self.release_session(context, client_id, row, None);
        Reply::Done
    }

    /// Ends a session, and the connection that owns it, for a reason of the server's; tells whether it was there.
    pub(super) fn end_session(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        reason: EndReason,
    ) -> bool {
        let Some(row) = self.session(context, client_id) else {
            return false;
        };
        if let Some(owner) = owner_of(&row) {
            self.end_connection(context, client_id, owner);
            if owner.node == self.local {
                self.outputs.push(Output::End {
                    connection: owner.connection,
                    reason,
                });
            }
        }
        self.delete_session(context, client_id, row);
        true
    }

    /// What ends with a network connection: its KEYNOTIFY registrations and its place in the index.
    fn end_connection(&mut self, context: &mut Context<'_, '_>, client_id: &str, owner: Owner) {
        let known = self.connections.remove(&owner);
        debug_assert!(known.is_none_or(|known| &*known.client_id == client_id));
        self.drop_watches(context, owner);
    }

    /// The session has lost its connection: it ends now, or later.
    fn release_session(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        mut row: state::Session,
        sent_through: Option<Sequence>,
    ) {
        if row.expiry_interval_s == 0 {
            self.delete_session(context, client_id, row);
            return;
        }
        set_owner(&mut row, None);
        self.start_will(context, client_id, &mut row);
        if row.expiry_interval_s != NEVER_EXPIRES {
            let deadline = context.now.plus(u64::from(row.expiry_interval_s) * 1000);
            row.expires_at_ms = deadline.0;
            self.set_timer(context, deadline, Kind::SessionExpiry, client_id.as_bytes());
        }
        self.put_session(context, client_id, &row);
        let session = SessionId(row.session_id);
        self.subscriptions.close(session);
        self.close_queue(context, session, client_id, sent_through);
        self.give_back(context, session, false);
    }

    fn cancel_session_expiry(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        row: &mut state::Session,
    ) {
        if row.expires_at_ms != 0 {
            self.clear_timer(
                context,
                Millis(row.expires_at_ms),
                Kind::SessionExpiry,
                client_id.as_bytes(),
            );
            row.expires_at_ms = 0;
        }
    }

    fn delete_session(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &str,
        mut row: state::Session,
    ) {
        self.cancel_session_expiry(context, client_id, &mut row);
        // A will that still waits goes out when its session ends `[MQTT-3.1.2-8]`.
        self.publish_will(context, client_id, &mut row);
        let session = SessionId(row.session_id);
        self.give_back(context, session, true);
        self.end_feeds(context, session, None);
        let (from, to) = schema::subscription::of_session(session);
        let mut rows = Vec::new();
        context.tables.scan(&from, &to, |key, _| {
            rows.push(key.to_vec());
            true
        });
        for row_key in rows {
            if let Some((_, filter)) = schema::subscription::decode(&row_key) {
                self.subscriptions.unsubscribe(session, filter);
                self.leave_group(context, filter, session);
            }
            context.tables.delete(row_key);
        }
        self.subscriptions.remove(session);
        self.drop_queue(context, session);
        context.tables.delete(schema::session::encode(client_id));
    }

    pub(super) fn expire_session(
        &mut self,
        context: &mut Context<'_, '_>,
        client_id: &[u8],
        deadline: Millis,
    ) {
        let Ok(client_id) = std::str::from_utf8(client_id) else {
            return;
        };
        if let Some(row) = self.session(context, client_id)
            && row.expires_at_ms == deadline.0
            && owner_of(&row).is_none()
        {
            self.delete_session(context, client_id, row);
        }
    }

    pub(super) fn subscribe(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::Subscribe,
    ) -> Reply {
        let Some((session, _)) = self.owned(context, &command.client_id, command.connection) else {
            return Reply::NotOwner;
        };
        let session = SessionId(session.session_id);
        let Some(subscriber) = self.subscriptions.subscriber(session) else {
            return Reply::NotOwner;
        };
        let mut new = Vec::with_capacity(command.subscriptions.len());
        for subscription in command.subscriptions {
            new.push(self.add_subscription(context, &subscriber, subscription));
        }
        let index = context.index;
        Reply::Subscribed { index, new }
    }

    /// Adds or replaces one subscription, with the retained messages it asks for; tells whether it is new.
    fn add_subscription(
        &mut self,
        context: &mut Context<'_, '_>,
        subscriber: &Arc<Subscriber>,
        subscription: command::Subscription,
    ) -> bool {
        let session = subscriber.session;
        let row = state::Subscription {
            qos: subscription.qos,
            no_local: subscription.no_local,
            retain_as_published: subscription.retain_as_published,
            retain_handling: subscription.retain_handling,
            identifier: subscription.identifier,
        };
        let filter = subscription.filter;
        let new = self.subscriptions.subscribe(session, &filter, &row);
        context.tables.put(
            schema::subscription::encode(session, &filter),
            row.encode_to_vec(),
        );
        let is_shared = Filter::parse(&filter).is_ok_and(|filter| filter.share.is_some());
        if is_shared {
            self.join_group(context, &filter, subscriber.clone(), &row);
        }
        // Three values, two bits on the wire.
        if delivery::sends_retained(row.retain_handling as u8, new, is_shared) {
            self.queue_retained(context, subscriber, &filter, &row);
        }
        new
    }

    pub(super) fn unsubscribe(
        &mut self,
        context: &mut Context<'_, '_>,
        command: command::Unsubscribe,
    ) -> Reply {
        let Some((session, _)) = self.owned(context, &command.client_id, command.connection) else {
            return Reply::NotOwner;
        };
        let session = SessionId(session.session_id);
        let mut removed = Vec::with_capacity(command.filters.len());
        for filter in command.filters {
            let there = self.subscriptions.unsubscribe(session, &filter);
            if there {
                context
                    .tables
                    .delete(schema::subscription::encode(session, &filter));
                self.end_feeds(context, session, Some(&filter));
                self.leave_group(context, &filter, session);
            }
            removed.push(there);
        }
        Reply::Unsubscribed(removed)
    }

    /// Ends every connection of one life of a node.
    pub(super) fn end_incarnation(
        &mut self,
        context: &mut Context<'_, '_>,
        node: NodeId,
        incarnation: Incarnation,
    ) {
        let from = Owner {
            node,
            incarnation,
            connection: ConnectionId(0),
        };
        let to = Owner {
            node,
            incarnation,
            connection: ConnectionId(u64::MAX),
        };
        let ended: Vec<_> = self
            .connections
            .range(from..=to)
            .map(|(owner, connected)| (*owner, connected.client_id.clone()))
            .collect();
        for (owner, client_id) in ended {
            self.end_connection(context, &client_id, owner);
            if let Some(row) = self.session(context, &client_id)
                && owner_of(&row) == Some(owner)
            {
                self.release_session(context, &client_id, row, None);
            }
        }
        self.outputs.push(Output::NodeEnded { node, incarnation });
    }
}
