//! How far the client has read, and who waits for that: publishers whose acknowledgements are deferred, and publishers
//! whose next packet is not taken.
//!
//! Invariant: no mailbox is locked while a publisher's mailbox is told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;

use super::back_pressure::BackPressureState;
use super::contents::Contents;
use super::{DeferredAck, Inner, Mailbox, WakeList};

impl Mailbox {
    /// Bytes of messages that may wait for the client, as it reads now. Answers to it count among them.
    pub fn takes(&self) -> usize {
        match self.state() {
            BackPressureState::Stalled => self.limits.bytes,
            _ => self.limits.takes(),
        }
    }

    /// Defers `ack` until at most the high-water mark is ahead of the message that ends at `end`. Returns whether it
    /// was deferred. It is not when the client has read that far already, or has stalled, or is gone; then `ack` is
    /// dropped.
    pub fn defer_ack(&self, end: u64, ack: DeferredAck, wake: &mut WakeList) -> bool {
        let mut inner = self.inner.lock();
        let unsent = self.unsent.load(Ordering::SeqCst);
        if inner.closed || inner.back_pressure.is_released(end, unsent, &self.limits) {
            return false;
        }
        inner.back_pressure.defer(end, ack);
        self.limits.metrics.acknowledgements_deferred.increment();
        if self.release(inner, wake) {
            self.wake();
        }
        true
    }

    /// Has `publisher` offer its next packet again when this mailbox is not full any more.
    pub fn await_room(&self, publisher: &Arc<Mailbox>) {
        let mut inner = self.inner.lock();
        if !inner.closed && self.state() == BackPressureState::Full {
            let known = inner
                .publishers
                .insert(publisher.connection, publisher.clone());
            drop((inner, known));
        } else {
            drop(inner);
            publisher.offer_again();
        }
    }

    /// Brings the state up to date, and moves the acknowledgements that need not wait any more to `released`. Returns
    /// whether the state was Normal and is not any more: then the connection's task must watch the drain rate.
    pub(super) fn update_state(
        &self,
        inner: &mut Inner,
        mut released: Option<&mut Vec<DeferredAck>>,
    ) -> bool {
        let before = self.state();
        loop {
            let unsent = self.unsent.load(Ordering::SeqCst);
            if let Some(released) = &mut released {
                inner.back_pressure.release(unsent, &self.limits, released);
            }
            let level = inner.contents.packets.len() + unsent;
            let tracked = inner.contents.tracked_bytes();
            let state = inner.back_pressure.state(level, tracked, &self.limits);
            self.state.store(state as u8, Ordering::SeqCst);
            // The connection's task writes `unsent` without the lock, and reads the state afterwards. Either it sees
            // this state, or this loop sees its `unsent`.
            if self.unsent.load(Ordering::SeqCst) == unsent {
                return before == BackPressureState::Normal && state != BackPressureState::Normal;
            }
        }
    }

    /// Brings the state up to date, unlocks the mailbox and releases acknowledgements. Returns what
    /// [`Mailbox::update_state`] does.
    fn release(&self, mut inner: MutexGuard<'_, Inner>, wake: &mut WakeList) -> bool {
        let mut released = Vec::new();
        let left_normal = self.update_state(&mut inner, Some(&mut released));
        inner.account();
        let publishers = match self.state() {
            BackPressureState::Full => FxHashMap::default(),
            _ => std::mem::take(&mut inner.publishers),
        };
        drop(inner);
        for publisher in publishers.values() {
            publisher.offer_again();
        }
        for ack in released {
            ack.release(wake);
        }
        left_normal
    }

    /// The present state.
    pub fn state(&self) -> BackPressureState {
        BackPressureState::from_number(self.state.load(Ordering::SeqCst))
    }

    /// Bytes that were taken out and are not sent.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Notes that `unsent` of the bytes that were taken out are not sent. Called by the connection's task.
    pub fn progress(&self, unsent: usize, wake: &mut WakeList) {
        if self.unsent() == unsent {
            return;
        }
        self.unsent.store(unsent, Ordering::SeqCst);
        if self.state() != BackPressureState::Normal {
            self.release(self.inner.lock(), wake);
        }
    }

    /// Bytes that were sent to the client so far.
    pub fn drained(&self) -> u64 {
        self.inner.lock().back_pressure.drained(self.unsent())
    }

    /// The client hardly reads: no acknowledgement waits for it until it has drained.
    pub fn stall(&self, wake: &mut WakeList) {
        let mut inner = self.inner.lock();
        inner.back_pressure.stall();
        self.release(inner, wake);
    }

    /// The connection takes nothing any more: contents are dropped and acknowledgements released.
    pub fn close(&self, wake: &mut WakeList) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        inner.contents = Contents::default();
        inner.hand_overs = Vec::new();
        inner.aliases = Default::default();
        inner.withheld = VecDeque::new();
        let publishers = std::mem::take(&mut inner.publishers);
        let released: Vec<DeferredAck> = inner.back_pressure.close().collect();
        inner.account();
        self.state
            .store(BackPressureState::Normal as u8, Ordering::SeqCst);
        drop(inner);
        for publisher in publishers.values() {
            publisher.offer_again();
        }
        for ack in released {
            ack.release(wake);
        }
    }

    /// Whether [`Mailbox::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }
}
