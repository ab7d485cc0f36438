//! A request to hand the session over. It is no part of the contents: a connection that can't send anything takes none
//! of them, and is asked all the same.

use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::Mailbox;

impl Mailbox {
    /// Another connection is about to take the session over: what the client has sent is to be proposed. The sender is
    /// dropped when that is done, and when the connection has ended.
    pub fn ask_for_hand_over(&self, done: oneshot::Sender<()>) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        inner.hand_over = Some(done);
        self.is_asked.store(true, Ordering::Release);
        drop(inner);
        self.wake();
    }

    /// Whether a hand-over is asked for.
    pub fn is_asked_for_hand_over(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Takes the request.
    pub fn take_hand_over(&self) -> Option<oneshot::Sender<()>> {
        // Most turns find none, and take no lock.
        if !self.is_asked_for_hand_over() {
            return None;
        }
        let mut inner = self.inner.lock();
        self.is_asked.store(false, Ordering::Release);
        inner.hand_over.take()
    }
}
