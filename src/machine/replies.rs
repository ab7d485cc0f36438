//! Remembered replies: a state-store write that is sent again is answered as the first time and not
//! carried out again (state store §6).
//!
//! The replies of one log entry are one row. In memory there is only an index from a fingerprint of
//! (client id, correlation data, request) to the entry; the row decides.

use std::hash::{Hash, Hasher};

use prost::Message as _;
use rustc_hash::{FxHashMap, FxHasher};

use super::schema::timer::Kind;
use super::tables::Backing;
use super::{Context, Machine, schema};
use crate::base::ids::LogIndex;
use crate::base::proto::{command, state};
use crate::store::Reply as StoreReply;

/// Index of what is remembered, and what the batch under way adds.
#[derive(Default)]
pub(super) struct Memory {
    entries: FxHashMap<u64, LogIndex>,
    pending: Vec<state::RememberedReply>,
    pending_s: u32,
}

fn fingerprint(client_id: &str, correlation_data: &[u8], request: u64) -> u64 {
    let mut hasher = FxHasher::default();
    client_id.hash(&mut hasher);
    correlation_data.hash(&mut hasher);
    request.hash(&mut hasher);
    hasher.finish()
}

impl Memory {
    /// Number of remembered replies.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    fn index_row(&mut self, index: LogIndex, row: &state::Replies) {
        for reply in &row.replies {
            let fingerprint =
                fingerprint(&reply.client_id, &reply.correlation_data, reply.fingerprint);
            self.entries.insert(fingerprint, index);
        }
    }

    /// Builds the index anew from the tables.
    pub fn restore(&mut self, backing: &dyn Backing) {
        *self = Memory::default();
        let (from, to) = schema::replies::all();
        backing.scan(&from, &to, &mut |row_key, row| {
            let index = schema::replies::decode(row_key).expect("this machine wrote the key");
            let row = state::Replies::decode(row).expect("this machine wrote the row");
            self.index_row(index, &row);
            true
        });
    }
}

impl Machine {
    /// The reply that was given to the same request before.
    pub(super) fn remembered(
        &self,
        context: &Context<'_, '_>,
        command: &command::StoreWrite,
    ) -> Option<StoreReply> {
        let memory = &self.replies;
        let found = memory.entries.get(&fingerprint(
            &command.client_id,
            &command.correlation_data,
            command.fingerprint,
        ))?;
        let same = |reply: &&state::RememberedReply| {
            reply.fingerprint == command.fingerprint
                && reply.client_id == command.client_id
                && reply.correlation_data == command.correlation_data
        };
        if *found == context.index {
            return memory
                .pending
                .iter()
                .find(same)
                .and_then(|reply| StoreReply::decode(reply.reply.clone()).ok());
        }
        let row = context.tables.get(&schema::replies::encode(*found))?;
        let row = state::Replies::decode(row).expect("this machine wrote the row");
        row.replies
            .iter()
            .find(same)
            .and_then(|reply| StoreReply::decode(reply.reply.clone()).ok())
    }

    /// Remembers a reply until the request's message expiry.
    pub(super) fn remember(
        &mut self,
        context: &Context<'_, '_>,
        command: command::StoreWrite,
        reply: &StoreReply,
    ) {
        let fingerprint = fingerprint(
            &command.client_id,
            &command.correlation_data,
            command.fingerprint,
        );
        self.replies.entries.insert(fingerprint, context.index);
        self.replies.pending_s = self.replies.pending_s.max(command.remember_s);
        let mut bytes = Vec::with_capacity(32);
        reply.encode(&mut bytes);
        self.replies.pending.push(state::RememberedReply {
            client_id: command.client_id,
            correlation_data: command.correlation_data,
            fingerprint: command.fingerprint,
            reply: bytes.into(),
        });
    }

    /// Writes the batch's replies as one row that lives as long as the longest of them asks for.
    pub(super) fn store_replies(&mut self, context: &mut Context<'_, '_>) {
        if self.replies.pending.is_empty() {
            return;
        }
        let row = state::Replies {
            replies: std::mem::take(&mut self.replies.pending),
        };
        let seconds = std::mem::take(&mut self.replies.pending_s);
        context
            .tables
            .put(schema::replies::encode(context.index), row.encode_to_vec());
        let deadline = context.now.plus(u64::from(seconds) * 1000);
        self.set_timer(
            context,
            deadline,
            Kind::Replies,
            &context.index.0.to_be_bytes(),
        );
    }

    pub(super) fn forget_replies(&mut self, context: &mut Context<'_, '_>, subject: &[u8]) {
        let Ok(index) = subject.try_into() else {
            return;
        };
        let index = LogIndex(u64::from_be_bytes(index));
        let row_key = schema::replies::encode(index);
        if let Some(row) = context.tables.get(&row_key) {
            let row = state::Replies::decode(row).expect("this machine wrote the row");
            for reply in row.replies {
                let fingerprint =
                    fingerprint(&reply.client_id, &reply.correlation_data, reply.fingerprint);
                if self.replies.entries.get(&fingerprint) == Some(&index) {
                    self.replies.entries.remove(&fingerprint);
                }
            }
            context.tables.delete(row_key);
        }
    }
}
