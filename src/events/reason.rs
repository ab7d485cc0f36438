//! Why a connection has ended, as its event says it. There are these eleven reasons and no others.

/// Why a connection has ended. The numbers are in the log and on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DisconnectionReason {
    /// DISCONNECT, or a WebSocket close frame.
    ClientInitiatedDisconnect = 1,
    /// The network, the client or its node is gone without a word.
    ConnectionLost = 2,
    /// A connection for the same session has come.
    SessionTakenOver = 3,
    /// The client broke the protocol, or asked for what there is not.
    ClientError = 4,
    /// What the client has proved who it is with has run out, has changed or is gone.
    ClientAuthenticationError = 5,
    /// The client may not do what it did, or may not stay.
    ClientAuthorizationError = 6,
    /// The address of the client is not let in any more.
    IpForbidden = 7,
    /// The connection exceeds a limit.
    QuotaExceeded = 8,
    /// What waits for the client does not fit into its queue.
    SessionOverflow = 9,
    /// An operator, or the end of the node.
    ServerInitiatedDisconnect = 10,
    /// The server could not go on.
    ServerError = 11,
}

impl DisconnectionReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [DisconnectionReason; 11] = [
        DisconnectionReason::ClientInitiatedDisconnect,
        DisconnectionReason::ConnectionLost,
        DisconnectionReason::SessionTakenOver,
        DisconnectionReason::ClientError,
        DisconnectionReason::ClientAuthenticationError,
        DisconnectionReason::ClientAuthorizationError,
        DisconnectionReason::IpForbidden,
        DisconnectionReason::QuotaExceeded,
        DisconnectionReason::SessionOverflow,
        DisconnectionReason::ServerInitiatedDisconnect,
        DisconnectionReason::ServerError,
    ];

    /// The reason of a number. An end of which nothing is known is a loss.
    pub fn of_number(number: u32) -> DisconnectionReason {
        let of_number = |reason: &DisconnectionReason| *reason as u32 == number;
        let found = Self::ALL.into_iter().find(of_number);
        found.unwrap_or(DisconnectionReason::ConnectionLost)
    }

    /// The reason as events name it.
    pub fn as_str(self) -> &'static str {
        match self {
            DisconnectionReason::ClientInitiatedDisconnect => "ClientInitiatedDisconnect",
            DisconnectionReason::ConnectionLost => "ConnectionLost",
            DisconnectionReason::SessionTakenOver => "SessionTakenOver",
            DisconnectionReason::ClientError => "ClientError",
            DisconnectionReason::ClientAuthenticationError => "ClientAuthenticationError",
            DisconnectionReason::ClientAuthorizationError => "ClientAuthorizationError",
            DisconnectionReason::IpForbidden => "IpForbidden",
            DisconnectionReason::QuotaExceeded => "QuotaExceeded",
            DisconnectionReason::SessionOverflow => "SessionOverflow",
            DisconnectionReason::ServerInitiatedDisconnect => "ServerInitiatedDisconnect",
            DisconnectionReason::ServerError => "ServerError",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_one_of_the_eleven() {
        for (number, reason) in (1..).zip(DisconnectionReason::ALL) {
            assert_eq!(reason as u32, number);
            assert_eq!(DisconnectionReason::of_number(number), reason);
            assert_eq!(format!("{reason:?}"), reason.as_str());
        }
        for unknown in [0, 12, u32::MAX] {
            let reason = DisconnectionReason::of_number(unknown);
            assert_eq!(reason, DisconnectionReason::ConnectionLost);
        }
    }
}
