//! A request to hand the session over. It is no part of the contents: a connection that can't send anything takes none
//! of them, and is asked all the same.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::{HandOver, Mailbox};

impl Mailbox {
    /// Another connection is about to take the session over: what the client has sent is to be proposed. The sender is
    /// dropped when that is done, and when the connection has ended.
    pub fn ask_for_hand_over(&self, done: oneshot::Sender<()>) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        // Those who asked before may have given up.
        inner.hand_overs.retain(|asked| !asked.done.is_closed());
        inner.hand_overs.push(HandOver {
            done,
            is_begun: false,
        });
        self.is_asked.store(true, Ordering::Release);
        drop(inner);
        self.wake();
    }

    /// Whether a hand-over is asked for and under way.
    pub fn is_asked_for_hand_over(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// What the client has sent is read for those who have asked.
    pub fn begin_hand_over(&self) {
        let mut inner = self.inner.lock();
        for asked in &mut inner.hand_overs {
            asked.is_begun = true;
        }
    }

    /// It is done: whoever has asked before it was begun proposes something of its own now, behind what this connection
    /// has. For those who came later the client is read again.
    pub fn handed_over(&self) {
        let mut inner = self.inner.lock();
        inner.hand_overs.retain(|asked| !asked.is_begun);
        let is_asked = !inner.hand_overs.is_empty();
        self.is_asked.store(is_asked, Ordering::Release);
    }
}
