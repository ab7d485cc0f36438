//! Timers: what is due at a log time. They are rows, so every replica fires the same ones in the same order.

use super::schema::timer::{self, Kind};
use super::{Context, Machine};
use crate::base::time::Millis;

impl Machine {
    pub(super) fn set_timer(
        &mut self,
        context: &mut Context<'_, '_>,
        deadline: Millis,
        kind: Kind,
        subject: &[u8],
    ) {
        context
            .tables
            .put(timer::encode(deadline, kind, subject), Vec::new());
        self.next_due = self.next_due.min(deadline);
    }

    pub(super) fn clear_timer(
        &mut self,
        context: &mut Context<'_, '_>,
        deadline: Millis,
        kind: Kind,
        subject: &[u8],
    ) {
        context
            .tables
            .delete(timer::encode(deadline, kind, subject));
    }

    /// Fires what is due at the batch's log time, the earliest first.
    pub(super) fn fire_timers(&mut self, context: &mut Context<'_, '_>) {
        if self.next_due > context.now {
            return;
        }
        let (from, to) = timer::since(self.next_due);
        let mut due = Vec::new();
        let mut next = Millis::NEVER;
        let now = context.now;
        context.tables.scan(&from, &to, |row, _| {
            let Some((deadline, ..)) = timer::decode(row) else {
                return true;
            };
            if deadline > now {
                next = deadline;
                return false;
            }
            due.push(row.to_vec());
            true
        });
        self.next_due = next;
        for row in due {
            if let Some((deadline, kind, subject)) = timer::decode(&row) {
                match kind {
                    Kind::KeyExpiry => self.expire_key(context, subject),
                    Kind::Tombstone => self.drop_tombstone(context, subject, deadline),
                    Kind::Replies => self.forget_replies(context, subject),
                    Kind::WillDelay => self.will_due(context, subject, deadline),
                    Kind::SessionExpiry => self.expire_session(context, subject, deadline),
                    Kind::RetainedExpiry => self.expire_retained(context, subject, deadline),
                    Kind::PurgeSession => self.purge_session_later(context, subject),
                    Kind::PurgeGroup => self.purge_group_later(context, subject),
                    Kind::Grant => self.go_on_granting(subject),
                    Kind::Feed => self.go_on_feeding(context, subject),
                }
            }
            context.tables.delete(row);
        }
    }

    /// Finds the earliest deadline anew, after the tables were replaced.
    pub(super) fn find_next_due(&mut self, backing: &dyn super::tables::Backing) {
        let (from, to) = timer::since(Millis(0));
        self.next_due = Millis::NEVER;
        backing.scan(&from, &to, &mut |row, _| match timer::decode(row) {
            Some((deadline, ..)) => {
                self.next_due = deadline;
                false
            }
            None => true,
        });
    }
}
