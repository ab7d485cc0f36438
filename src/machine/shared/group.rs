//! One group: its members in turn, and the messages that wait for one of them.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::ids::SessionId;
use crate::base::proto::state;
use crate::machine::batch::Batch;
use crate::machine::schema;
use crate::machine::subscriptions::Subscriber;
use crate::session::delivery::Delivery;
use crate::session::{Bounds, DropPolicy, Entry, MessageId, QoS, Queued};

/// The number of a new group's first message: what goes back is numbered below it.
const FIRST: u64 = 1 << 40;

/// A session that subscribes to the group's filter.
pub(super) struct GroupMember {
    pub subscriber: Arc<Subscriber>,
    qos: QoS,
    retain_as_published: bool,
    identifier: u32,
}

impl GroupMember {
    pub fn new(subscriber: Arc<Subscriber>, row: &state::Subscription) -> Self {
        GroupMember {
            subscriber,
            qos: QoS::from_number(row.qos),
            retain_as_published: row.retain_as_published,
            identifier: row.identifier,
        }
    }

    /// The QoS it gets a message with.
    pub fn qos(&self, published: QoS) -> QoS {
        published.min(self.qos)
    }

    pub fn delivery(&self, qos: QoS, retain: bool) -> Delivery {
        let mut identifiers = SmallVec::new();
        if self.identifier != 0 {
            identifiers.push(self.identifier);
        }
        Delivery {
            qos: self.qos(qos),
            retain: retain && self.retain_as_published,
            identifiers,
        }
    }
}

/// A group's row and its members.
pub(super) struct Group {
    pub row: state::Group,
    pub members: BTreeMap<SessionId, GroupMember>,
}

impl Group {
    /// A group as it is stored; its members follow.
    pub fn stored(row: state::Group) -> Self {
        let members = BTreeMap::new();
        Group { row, members }
    }

    /// A new group. What waits for it is bounded as the queue of its first member is.
    pub fn new(group_id: u64, after: MessageId, bounds: &Bounds) -> Self {
        Group::stored(state::Group {
            group_id,
            first: FIRST,
            next: FIRST,
            after_message: after.0,
            max_messages: bounds.max_messages,
            max_bytes: bounds.max_bytes,
            drop_policy: match bounds.policy {
                DropPolicy::Newest => 1,
                // A group has no one session that could be ended.
                DropPolicy::Oldest | DropPolicy::Session => 0,
            },
            ..Default::default()
        })
    }

    pub fn id(&self) -> u64 {
        self.row.group_id
    }

    /// Whether the group was there when a message got its number.
    pub fn is_older_than(&self, message: MessageId) -> bool {
        self.row.after_message < message.0
    }

    /// Members in turn, the one after the last chosen first.
    pub fn in_turn(&self) -> impl Iterator<Item = (SessionId, &GroupMember)> {
        let turn = SessionId(self.row.turn);
        self.members
            .range((Excluded(turn), Unbounded))
            .chain(self.members.range(..=turn))
            .map(|(session, member)| (*session, member))
    }

    /// Whether messages with QoS 0 wait for a member, when none is connected: some member asks for it.
    pub fn keeps_qos_0(&self) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.subscriber.queues(QoS::AtMostOnce))
    }

    pub fn has_other(&self, session: SessionId, connected: bool) -> bool {
        self.members.iter().any(|(member, found)| {
            *member != session && (!connected || found.subscriber.owner().is_some())
        })
    }

    /// Adds a message behind those that wait.
    pub fn append(&mut self, batch: &mut Batch<'_, '_>, queued: Queued) {
        let number = self.row.next;
        self.row.next += 1;
        self.put_waiting(batch, number, queued);
    }

    /// Adds a message before those that wait.
    pub fn prepend(&mut self, batch: &mut Batch<'_, '_>, queued: Queued) {
        self.row.first -= 1;
        self.put_waiting(batch, self.row.first, queued);
    }

    fn put_waiting(&mut self, batch: &mut Batch<'_, '_>, number: u64, queued: Queued) {
        self.row.messages += 1;
        self.row.bytes = self.row.bytes.saturating_add(queued.size.into());
        batch.meta.count_in(queued.size);
        let entry = Entry::Queued(queued);
        batch
            .tables
            .put::<schema::Waiting>((self.id(), number), &entry);
    }

    /// Takes the first waiting messages; their messages keep their reference.
    pub fn take_waiting(&mut self, batch: &mut Batch<'_, '_>, most: usize) -> Vec<Queued> {
        let found = waiting(batch, self.id(), self.row.first, most);
        for (number, queued) in &found {
            batch.tables.delete::<schema::Waiting>((self.id(), *number));
            self.row.first = number + 1;
            self.row.messages = self.row.messages.saturating_sub(1);
            self.row.bytes = self.row.bytes.saturating_sub(queued.size.into());
            batch.meta.count_out(queued.size);
        }
        found.into_iter().map(|(_, queued)| queued).collect()
    }
}

/// The first waiting messages of a group from a number on.
pub(super) fn waiting(
    batch: &Batch<'_, '_>,
    id: u64,
    from: u64,
    most: usize,
) -> Vec<(u64, Queued)> {
    let mut found = Vec::new();
    let range = schema::Waiting::from(id, from);
    batch.tables.scan(&range, |(_, number), row| {
        if let Entry::Queued(queued) = row.decode() {
            found.push((number, queued));
        }
        found.len() < most
    });
    found
}
