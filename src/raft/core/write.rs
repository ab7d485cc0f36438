//! Gives a batch to the library's core, and finds out whether it was appended.
//!
//! The core drops a write that it does not take, and tells only a responder: when another term began, when leadership
//! is being handed over, and when the leader has not heard a majority for a lease. A responder is told of success not
//! before the entry is applied. So the question is asked behind the write: the core handles calls in the order in which
//! they come.

use bytes::Bytes;
use openraft::errors::Fatal;
use openraft::impls::ProgressResponder;
use tokio::sync::oneshot::error::TryRecvError;

use super::state_machine::CoreRaft;
use super::type_config::{Batch, Term, TypeConfig};

/// What the core has done with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is in the log.
    Yes,
    /// The core does not take writes at the moment; nothing was appended.
    No,
}

/// Appends `batch` if this replica leads `term` and takes writes.
///
/// # Errors
/// When Raft has ended.
pub async fn write(
    core: &CoreRaft,
    batch: Bytes,
    term: u64,
) -> Result<Appended, Fatal<TypeConfig>> {
    let (responder, mut refused) = ProgressResponder::complete_only();
    let write = core.write(Batch(batch)).responder(responder);
    write.with_leader(Term::new(term)).await?;
    core.with_raft_state(|_| ()).await?;
    Ok(match refused.try_recv() {
        // Applied already, or not yet: nobody listens to the responder later.
        Ok(Ok(_)) | Err(TryRecvError::Empty) => Appended::Yes,
        Ok(Err(_)) | Err(TryRecvError::Closed) => Appended::No,
    })
}
