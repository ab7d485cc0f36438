//! Changes of identities: who may connect with what.
//!
//! Invariant: a change that has begun is carried out and put into the audit log in a task of its own, whether or not
//! its back end waits for the answer: hanging up leaves neither half of it undone.

use std::future::Future;

use axum::http::request::Parts;
use axum::http::{Extensions, Method};
use tokio::time::Instant;

use super::answer::Answered;
use super::error::{Code, Refusal};
use crate::config::Scope;
use crate::http::{self, Caller};
use crate::telemetry::audit::{self, Event, Kind, Outcome};

/// A change, for the audit log. It is put there when this goes, also if what carries it out panics.
pub(super) struct Change {
    method: Method,
    path: String,
    caller: Caller,
    policy: String,
    /// Why it has failed.
    failed: Option<&'static str>,
}

impl Change {
    /// What a request asks that this policy's holder has signed.
    pub(super) fn of(head: &Parts, policy: String) -> Change {
        Change {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            caller: caller(&head.extensions),
            policy,
            failed: Some(Code::Internal.name()),
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let route = format!("{} {}", self.method, self.path);
        let outcome = match self.failed {
            None => Outcome::Accepted,
            Some(_) => Outcome::Failed,
        };
        audit::record(&Event {
            principal: Some(&self.policy),
            method: Some("sas"),
            address: self.caller.address,
            reason: self.failed,
            details: &[("route", route.as_str())],
            ..Event::new(Kind::HubRequest, outcome)
        });
    }
}

fn stopping() -> Refusal {
    Refusal::new(Code::Unavailable, "this node stops: ask another one")
}

/// Who has asked.
pub(super) fn caller(extensions: &Extensions) -> Caller {
    extensions.get().cloned().unwrap_or_default()
}

/// Those that are carried out.
#[derive(Clone, Default)]
pub(super) struct Changes(http::Changes);

impl Changes {
    /// Carries a change out when its turn comes.
    pub(super) async fn carry_out(
        &self,
        change: impl FnOnce() -> Change,
        work: impl Future<Output = Answered> + Send + 'static,
    ) -> Answered {
        let turn = self.0.turn(Scope::Admin).await;
        let turn = turn.ok_or_else(stopping)?;
        let change = change();
        let carried_out = tokio::spawn(async move {
            // Given back when the change is recorded: what is here goes in the opposite order.
            let _turn = turn;
            let mut change = change;
            let answered = work.await;
            let refusal = answered.as_ref().err();
            change.failed = refusal.map(|refusal| refusal.code.name());
            answered
        });
        let panicked = |error| Err(Refusal::new(Code::Internal, error));
        carried_out.await.unwrap_or_else(panicked)
    }

    /// Refuses those that have not come yet; the others are carried out until then.
    pub(super) fn refuse(&self, end: Instant) {
        self.0.refuse(end);
    }

    /// Whether a write may begin that is not an identity's.
    pub(super) fn may_begin(&self) -> Result<(), Refusal> {
        match self.0.are_refused() {
            true => Err(stopping()),
            false => Ok(()),
        }
    }

    /// Waits for those that have begun, also those whose back ends have gone. None begins afterwards.
    pub(super) async fn carried_out(&self) {
        self.0.carried_out().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::http::Request;
    use futures::FutureExt as _;
    use tokio::sync::Notify;

    use super::super::answer::Answer;
    use super::*;

    fn change() -> Change {
        let request = Request::delete("/devices/x").body(());
        let (head, ()) = request.expect("a request").into_parts();
        Change::of(&head, "owner".to_owned())
    }

    #[tokio::test]
    async fn whoever_hangs_up_leaves_no_half_of_a_change_undone() {
        let changes = Changes::default();
        let (committed, is_done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let work = {
            let (committed, is_done) = (committed.clone(), is_done.clone());
            async move {
                committed.notified().await;
                is_done.store(true, Ordering::Relaxed);
                Ok(Answer::nothing())
            }
        };
        let mut asked = Box::pin(changes.carry_out(change, work));
        assert!((&mut asked).now_or_never().is_none(), "it has begun");
        drop(asked);
        let mut end = Box::pin(changes.carried_out());
        assert!((&mut end).now_or_never().is_none(), "the node waits for it");
        committed.notify_one();
        end.await;
        assert!(is_done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_change_that_panics_is_answered_and_gives_its_turn_back() {
        let changes = Changes::default();
        let faulty = || -> Answered { panic!("a fault of ours") };
        let work = async move { faulty() };
        let answered = changes.carry_out(change, work).await;
        assert_eq!(
            answered.err().map(|refusal| refusal.code),
            Some(Code::Internal)
        );
        assert!(changes.carried_out().now_or_never().is_some());
    }
}
