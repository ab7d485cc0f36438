//! What a client and this node have agreed on.

use std::sync::Arc;

use super::bounds::ClientBounds;
use super::origin::Origin;
use super::rights::ClientRights;
use crate::auth::Principal;
use crate::base::ids::SessionId;
use crate::codec::{PeerLimits, Version};

/// What CONNECT and CONNACK have negotiated.
#[derive(Clone, Debug)]
pub(super) struct ConnectionOptions {
    pub(super) version: Version,
    pub(super) client_id: Arc<str>,
    /// Bounds of the packets that the client takes.
    pub(super) limits: PeerLimits,
    /// What it may use up.
    pub(super) bounds: Arc<ClientBounds>,
    /// Seconds; 0 turns it off.
    pub(super) keep_alive: u16,
    /// Seconds; the only option that DISCONNECT may change.
    pub(super) session_expiry: u32,
    /// Who the client has proved to be.
    pub(super) principal: Arc<Principal>,
    /// Where it comes from, and what is asked of it there.
    pub(super) origin: Arc<Origin>,
}

/// What the machine says of the session, and what the rules say of its client.
pub(super) struct Opened {
    pub(super) session: SessionId,
    /// Its messages with QoS 1 and 2 go through the log.
    pub(super) is_durable: bool,
    /// The client's receive maximum.
    pub(super) receive_maximum: u16,
    /// Packet ids of QoS 2 messages whose PUBREL has not come yet.
    pub(super) received: Vec<u16>,
    /// What the client may do.
    pub(super) rights: Box<ClientRights>,
}
