//! What is known of who is at the other end of a connection between nodes.

use crate::base::ids::NodeId;

/// It comes with each call that arrives on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The node that it has proved to be; `None` where nothing is to be proved.
    pub proven: Option<NodeId>,
}
