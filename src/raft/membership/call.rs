//! A change of members or leader as a call between nodes.

use std::error::Error;
use std::time::Duration;

use crate::base::ids::{GroupId, NodeId};
use crate::base::proto::raft::{self as pb, change_reply::Result as Reply, change_request::Change};
use crate::raft::transport::channels::RaftClient;
use crate::raft::types::{ChangeError, NotLeader};

/// Longest wait for a change to be committed.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the call beyond that.
const CALL_MARGIN: Duration = Duration::from_secs(5);

/// Reasons of a refusal; for ever.
const NOT_LEADER: u32 = 1;
const OTHER_DIRECTORY: u32 = 2;
const UNKNOWN_NODE: u32 = 3;
const LAST_VOTER: u32 = 4;
const FAILED: u32 = 5;
const REMOVED: u32 = 6;

/// Who asks for a change, and how it has come here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// It was passed on already, by a member: it is not passed on again.
    pub forwarded: bool,
    /// An operator asks, and not the node that wants to be added.
    pub by_operator: bool,
}

impl Asked {
    /// By an operator, of this node.
    pub const HERE: Asked = Asked {
        forwarded: false,
        by_operator: true,
    };
    /// By the node that wants to be added.
    pub const ITSELF: Asked = Asked {
        forwarded: false,
        by_operator: false,
    };

    /// The same, passed on.
    pub fn passed_on(self) -> Asked {
        Asked {
            forwarded: true,
            ..self
        }
    }
}

/// Asks another node for a change, and returns what it was about.
pub async fn ask(
    mut client: RaftClient,
    group: GroupId,
    change: Change,
    asked: Asked,
) -> Result<u64, ChangeError> {
    let mut request = tonic::Request::new(pb::ChangeRequest {
        group: group.0,
        change: Some(change),
        forwarded: asked.forwarded,
        by_operator: asked.by_operator,
    });
    request.set_timeout(CHANGE_TIMEOUT + CALL_MARGIN);
    let reply = client.change(request).await;
    let reply = reply.map_err(|status| ChangeError::Failed(reason(&status)))?;
    result_from(reply.into_inner())
}

/// Why a call was not answered, with the cause: what is around it says only that a call has failed.
pub fn reason(status: &tonic::Status) -> String {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(Error::source) {
        cause = Some(deeper);
    }
    let message = status.message();
    match cause.map(ToString::to_string) {
        Some(cause) if !message.contains(&cause) => format!("{message}: {cause}"),
        _ => message.to_owned(),
    }
}

/// The answer to such a call.
pub fn reply_to(result: Result<u64, ChangeError>) -> pb::ChangeReply {
    let refusal = |reason, node: u64, text: String| {
        Reply::Refused(pb::ChangeRefusal {
            reason,
            node,
            text,
            leader_address: String::new(),
        })
    };
    let result = match result {
        Ok(node) => Reply::Done(node),
        Err(ChangeError::NotLeader(other)) => {
            let leader = other.leader.map_or(0, |leader| leader.0);
            refusal(NOT_LEADER, leader, String::new())
        }
        Err(ChangeError::OtherDataDirectory { node, known }) => {
            refusal(OTHER_DIRECTORY, node.0, known)
        }
        Err(ChangeError::UnknownNode(node)) => refusal(UNKNOWN_NODE, node.0, String::new()),
        Err(ChangeError::LastVoter(node)) => refusal(LAST_VOTER, node.0, String::new()),
        Err(ChangeError::Removed(node)) => refusal(REMOVED, node.0, String::new()),
        Err(error) => refusal(FAILED, 0, error.to_string()),
    };
    pb::ChangeReply {
        result: Some(result),
    }
}

fn result_from(reply: pb::ChangeReply) -> Result<u64, ChangeError> {
    let refused = match reply.result {
        Some(Reply::Done(node)) => return Ok(node),
        Some(Reply::Refused(refused)) => refused,
        None => return Err(ChangeError::Failed("an answer without content".to_owned())),
    };
    let node = NodeId(refused.node);
    Err(match refused.reason {
        NOT_LEADER => ChangeError::NotLeader(NotLeader {
            leader: (node.0 != 0).then_some(node),
        }),
        OTHER_DIRECTORY => ChangeError::OtherDataDirectory {
            node,
            known: refused.text,
        },
        UNKNOWN_NODE => ChangeError::UnknownNode(node),
        LAST_VOTER => ChangeError::LastVoter(node),
        REMOVED => ChangeError::Removed(node),
        _ => ChangeError::Failed(refused.text),
    })
}
