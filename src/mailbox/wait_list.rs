//! Connections whose client's next packet can't be taken yet, because something of the node has no room for it.
//!
//! Invariant: whoever waits is woken when there is room. A connection adds itself first and looks again afterwards, so
//! room that comes between the two is not missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Mailbox;
use crate::base::ids::ConnectionId;

/// The connections that wait for one thing.
#[derive(Debug, Default)]
pub struct WaitList {
    /// Nothing is locked while nobody waits.
    any: AtomicBool,
    waiting: Mutex<FxHashMap<ConnectionId, Arc<Mailbox>>>,
}

impl WaitList {
    /// Adds a connection. It is woken once.
    pub fn add(&self, mailbox: &Arc<Mailbox>) {
        let mut waiting = self.waiting.lock();
        waiting.insert(mailbox.connection, mailbox.clone());
        self.any.store(true, Ordering::SeqCst);
    }

    /// There is room: wakes all that wait.
    pub fn wake(&self) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let woken = {
            let mut waiting = self.waiting.lock();
            self.any.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        for mailbox in woken.values() {
            mailbox.offer_again();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Version;
    use crate::mailbox::back_pressure::OutboxLimits;

    #[test]
    fn who_waits_is_woken_once() {
        let limits = OutboxLimits::of(100);
        let mailbox = Mailbox::new(ConnectionId(1), Version::V5, u32::MAX, 0, limits);
        let list = WaitList::default();
        list.wake();
        assert!(!mailbox.take_offer());
        list.add(&mailbox);
        list.add(&mailbox);
        assert_eq!(list.waiting.lock().len(), 1, "twice is once");
        list.wake();
        assert!(mailbox.take_offer() && !mailbox.take_offer());
        list.wake();
        assert!(!mailbox.take_offer());
    }
}
