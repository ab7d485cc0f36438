//! A read index that this replica confirms as leader (Raft paper, section 8; ReadIndex).
//!
//! Leases are not used: a suspended leader would trust its clock.

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};

use super::state_machine::CoreRaft;
use super::type_config::NodeInfo;
use crate::raft::types::ReadError;

/// Why this replica itself could not confirm a read.
pub enum ReadIndexError {
    /// Another replica leads, when one is known.
    NotLeader(Option<(u64, NodeInfo)>),
    /// It leads, but could not confirm the read.
    Failed(ReadError),
}

/// An index that covers everything acknowledged before the call, confirmed with a majority.
pub async fn read_index(core: &CoreRaft) -> Result<u64, ReadIndexError> {
    match core.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => Ok(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => Err(
            ReadIndexError::NotLeader(forward.leader_id.zip(forward.leader_node)),
        ),
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(missing))) => Err(
            ReadIndexError::Failed(ReadError::Unconfirmed(missing.to_string())),
        ),
        Err(RaftError::Fatal(_)) => Err(ReadIndexError::Failed(ReadError::Stopped)),
    }
}
