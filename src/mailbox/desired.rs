//! Changes of desired properties on their way into a mailbox.

use std::sync::atomic::Ordering;

use super::{End, Mailbox};
use crate::machine::hub::DesiredChanged;
use crate::telemetry::labels::TwinNotification;

impl Mailbox {
    /// Puts a change of desired properties in. Returns whether the connection must be woken.
    pub fn push_desired(&self, change: DesiredChanged) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed || self.is_ending() {
            return false;
        }
        let folded = inner.contents.desired.push(change);
        if folded > 0 {
            let notifications = &self.limits.metrics.twin_notifications;
            notifications.of(TwinNotification::Folded).add(folded);
        }
        if self.exceeds_memory(&inner) {
            drop(inner);
            return self.end(End::ConnectionMemory);
        }
        inner.account();
        drop(inner);
        !self.filled.swap(true, Ordering::AcqRel)
    }
}
