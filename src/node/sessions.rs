//! The administration of sessions and retained messages.

use prost::Message as _;

use super::status::NodeStatus;
use crate::base::proto::{command, state};
use crate::codec::Version;
use crate::http::{
    AdminError, AdminFuture, Listed, Page, RetainedStatus, SessionDetail, SessionStatus, Sessions,
    SubscriptionStatus,
};
use crate::machine::effect::Reply;
use crate::machine::{read, schema};
use crate::topic::Filter;

impl NodeStatus {
    /// Waits until this replica has everything that was acknowledged before.
    async fn catch_up(&self) -> Result<(), AdminError> {
        match self.raft.read_barrier().await {
            Ok(_) => Ok(()),
            Err(error) => Err(AdminError::NoLeader(error.to_string())),
        }
    }

    async fn propose(&self, kind: command::command::Kind) -> Result<bool, AdminError> {
        match self.broker.services.proposer.propose(kind).await {
            Some(Reply::Done) => Ok(true),
            Some(_) => Ok(false),
            None => Err(AdminError::NoLeader(
                "this node has no contact with the cluster's majority".to_owned(),
            )),
        }
    }
}

fn session_status(client_id: &str, row: &state::Session, queue: &state::Queue) -> SessionStatus {
    let protocol = [Version::V5, Version::V311, Version::V31]
        .into_iter()
        .find(|version| u32::from(version.level()) == row.protocol_level)
        .map_or("", Version::name);
    SessionStatus {
        client_id: client_id.to_owned(),
        node: (row.owner_node != 0).then_some(row.owner_node),
        protocol: protocol.to_owned(),
        expiry_interval_s: row.expiry_interval_s,
        expires_at_ms: (row.expires_at_ms != 0).then_some(row.expires_at_ms),
        durable: row.durable,
        queued_messages: queue.messages,
        queued_bytes: queue.bytes,
        in_flight: queue.in_flight,
        dropped_messages: queue.dropped,
        has_will: row.has_will,
    }
}

fn retained_status(topic: &str, row: &state::Retained, whole: bool) -> RetainedStatus {
    let text = std::str::from_utf8(&row.payload).ok();
    let hex = || {
        row.payload
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    RetainedStatus {
        topic: topic.to_owned(),
        qos: row.qos,
        payload_bytes: row.payload.len(),
        expires_at_ms: row.expires_at_ms,
        payload: text.filter(|_| whole).map(str::to_owned),
        payload_hex: (whole && text.is_none()).then(hex),
    }
}

impl Sessions for NodeStatus {
    fn list(&self, page: Page) -> AdminFuture<'_, Listed<SessionStatus>> {
        Box::pin(async move {
            self.catch_up().await?;
            let backing = &*self.broker.services.backing;
            let (rows, more) = read::sessions(backing, &page.after, page.size(), page.connected);
            let entries: Vec<_> = rows
                .iter()
                .map(|(client_id, row)| {
                    session_status(client_id, row, &read::queue(backing, row.session_id))
                })
                .collect();
            let next = entries.last().filter(|_| more);
            let next = next.map(|last: &SessionStatus| last.client_id.clone());
            Ok(Listed { entries, next })
        })
    }

    fn show(&self, client_id: String) -> AdminFuture<'_, Option<SessionDetail>> {
        Box::pin(async move {
            self.catch_up().await?;
            let backing = &*self.broker.services.backing;
            let Some(row) = backing.get(&schema::session::encode(&client_id)) else {
                return Ok(None);
            };
            let row = state::Session::decode(row).expect("the machine wrote the row");
            let mut subscriptions = Vec::new();
            read::subscriptions(backing, row.session_id, |filter, row| {
                subscriptions.push(SubscriptionStatus {
                    filter: filter.to_owned(),
                    qos: row.qos,
                    no_local: row.no_local,
                    retain_as_published: row.retain_as_published,
                    retain_handling: row.retain_handling,
                    identifier: (row.identifier != 0).then_some(row.identifier),
                });
            });
            let queue = read::queue(backing, row.session_id);
            Ok(Some(SessionDetail {
                session: session_status(&client_id, &row, &queue),
                subscriptions,
            }))
        })
    }

    fn delete(&self, client_id: String) -> AdminFuture<'_, bool> {
        let command = command::DeleteSession { client_id };
        Box::pin(self.propose(command::command::Kind::DeleteSession(command)))
    }

    fn kick(&self, client_id: String) -> AdminFuture<'_, bool> {
        let command = command::Disconnect { client_id };
        Box::pin(self.propose(command::command::Kind::Disconnect(command)))
    }

    fn retained(&self, page: Page) -> AdminFuture<'_, Listed<RetainedStatus>> {
        Box::pin(async move {
            let filter = match page.filter.as_str() {
                "" => "#",
                filter => filter,
            };
            match Filter::parse(filter) {
                Ok(Filter { share: None, .. }) => {}
                Ok(_) => return Err(AdminError::Invalid("the filter is shared".to_owned())),
                Err(error) => return Err(AdminError::Invalid(error.to_string())),
            }
            self.catch_up().await?;
            let mut from = page.after.clone().into_bytes();
            if !from.is_empty() {
                from.push(0);
            }
            let mut entries: Vec<RetainedStatus> = Vec::new();
            let mut next = None;
            read::retained(
                &*self.broker.services.backing,
                filter,
                &from,
                |topic, row| {
                    if entries.len() == page.size() {
                        next = entries.last().map(|last| last.topic.clone());
                        return false;
                    }
                    entries.push(retained_status(topic, &row, false));
                    true
                },
            );
            Ok(Listed { entries, next })
        })
    }

    fn retained_message(&self, topic: String) -> AdminFuture<'_, Option<RetainedStatus>> {
        Box::pin(async move {
            self.catch_up().await?;
            let row = self
                .broker
                .services
                .backing
                .get(&schema::retained::encode(topic.as_bytes()));
            Ok(row.map(|row| {
                let row = state::Retained::decode(row).expect("the machine wrote the row");
                retained_status(&topic, &row, true)
            }))
        })
    }
}
