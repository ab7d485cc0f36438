//! Answers a leader's heartbeat as soon as the core has seen it.
//!
//! The core itself answers an append only once everything that it accepted before is durable, heartbeats too. During a
//! sync of some hundred milliseconds the leader would hear nobody, and refuse writes although every follower is there.
//!
//! A heartbeat says two things: that the leader's vote is the highest that this replica has seen, and that it will
//! vote for nobody else for the length of a lease. Both are true once the core has handled it. Neither needs the disk:
//! a vote for another leader is durable before it is answered with, so a replica that forgets the heartbeat in a crash
//! does not forget such a vote, and a replica that gave none has denied no leader its majority. No entry is
//! acknowledged by it: the leader takes progress of its log from the answers to appends alone.

use openraft::errors::{Fatal, RaftError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tokio::sync::oneshot;

use super::state_machine::CoreRaft;
use super::type_config::TypeConfig;

/// The answer to `heartbeat`.
///
/// # Errors
/// When Raft has ended.
pub async fn answer(
    core: &CoreRaft,
    heartbeat: AppendEntriesRequest<TypeConfig>,
) -> Result<AppendEntriesResponse<TypeConfig>, Fatal<TypeConfig>> {
    let (vote, previous) = (heartbeat.vote, heartbeat.prev_log_id);
    // The core handles calls in the order in which they come, so it has handled the heartbeat when it answers this.
    let accepted = async {
        let (sender, looked) = oneshot::channel();
        let look = core.external_request(move |state| {
            let has = |id| state.log_ids.last() >= Some(&id);
            // Nobody waits for it when the core's own answer was faster.
            let _ = sender.send(*state.vote_ref() == vote && previous.is_none_or(has));
        });
        look.await?;
        match looked.await {
            Ok(true) => Ok(AppendEntriesResponse::Success),
            // What speaks against it, or that Raft has ended, says the core's own answer, which waits for nothing then.
            Ok(false) | Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        // In this order, so that the heartbeat comes before the look.
        biased;
        answered = core.append_entries(heartbeat) => answered.map_err(fatal),
        accepted = accepted => accepted,
    }
}

fn fatal(error: RaftError<TypeConfig>) -> Fatal<TypeConfig> {
    match error {
        RaftError::Fatal(fatal) => fatal,
        RaftError::APIError(never) => match never {},
    }
}
