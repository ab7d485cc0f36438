//! The reason codes of MQTT 5.0, one enumeration for every packet that carries one.
//!
//! Which codes a packet may carry is decided where that packet is decoded; the numbers here are the wire's.

use std::fmt;

macro_rules! reason_codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)+) => {
        /// A reason code: how an operation ended. Values below 0x80 are successes (MQTT 5.0 §2.4).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum ReasonCode {
            $($(#[$doc])* $name = $value,)+
        }

        impl ReasonCode {
            /// Every code the standard defines, in ascending order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The code with this number, or `None` when the standard defines none.
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $($value => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The name of the code in the standard's table.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

reason_codes! {
    /// Also "Normal disconnection" in DISCONNECT and "Granted QoS 0" in SUBACK.
    Success = 0x00, "Success";
    GrantedQos1 = 0x01, "Granted QoS 1";
    GrantedQos2 = 0x02, "Granted QoS 2";
    DisconnectWithWill = 0x04, "Disconnect with Will Message";
    NoMatchingSubscribers = 0x10, "No matching subscribers";
    NoSubscriptionExisted = 0x11, "No subscription existed";
    ContinueAuthentication = 0x18, "Continue authentication";
    ReAuthenticate = 0x19, "Re-authenticate";
    UnspecifiedError = 0x80, "Unspecified error";
    MalformedPacket = 0x81, "Malformed Packet";
    ProtocolError = 0x82, "Protocol Error";
    ImplementationSpecificError = 0x83, "Implementation specific error";
    UnsupportedProtocolVersion = 0x84, "Unsupported Protocol Version";
    ClientIdentifierNotValid = 0x85, "Client Identifier not valid";
    BadUserNameOrPassword = 0x86, "Bad User Name or Password";
    NotAuthorized = 0x87, "Not authorized";
    ServerUnavailable = 0x88, "Server unavailable";
    ServerBusy = 0x89, "Server busy";
    Banned = 0x8A, "Banned";
    ServerShuttingDown = 0x8B, "Server shutting down";
    BadAuthenticationMethod = 0x8C, "Bad authentication method";
    KeepAliveTimeout = 0x8D, "Keep Alive timeout";
    SessionTakenOver = 0x8E, "Session taken over";
    TopicFilterInvalid = 0x8F, "Topic Filter invalid";
    TopicNameInvalid = 0x90, "Topic Name invalid";
    PacketIdentifierInUse = 0x91, "Packet Identifier in use";
    PacketIdentifierNotFound = 0x92, "Packet Identifier not found";
    ReceiveMaximumExceeded = 0x93, "Receive Maximum exceeded";
    TopicAliasInvalid = 0x94, "Topic Alias invalid";
    PacketTooLarge = 0x95, "Packet too large";
    MessageRateTooHigh = 0x96, "Message rate too high";
    QuotaExceeded = 0x97, "Quota exceeded";
    AdministrativeAction = 0x98, "Administrative action";
    PayloadFormatInvalid = 0x99, "Payload format invalid";
    RetainNotSupported = 0x9A, "Retain not supported";
    QosNotSupported = 0x9B, "QoS not supported";
    UseAnotherServer = 0x9C, "Use another server";
    ServerMoved = 0x9D, "Server moved";
    SharedSubscriptionsNotSupported = 0x9E, "Shared Subscriptions not supported";
    ConnectionRateExceeded = 0x9F, "Connection rate exceeded";
    MaximumConnectTime = 0xA0, "Maximum connect time";
    SubscriptionIdentifiersNotSupported = 0xA1, "Subscription Identifiers not supported";
    WildcardSubscriptionsNotSupported = 0xA2, "Wildcard Subscriptions not supported";
}

impl ReasonCode {
    /// 0x00 as DISCONNECT names it.
    pub const NORMAL_DISCONNECTION: Self = Self::Success;
    /// 0x00 as SUBACK names it.
    pub const GRANTED_QOS_0: Self = Self::Success;

    /// True for codes of 0x80 and above: the operation failed (MQTT 5.0 §2.4).
    pub const fn is_error(self) -> bool {
        self as u8 >= 0x80
    }

    /// The return code of a 3.1 / 3.1.1 CONNACK that says the same, or `None` where those versions have no fitting
    /// code and the connection is closed without CONNACK `[MQTT311-3.2.2-6]`.
    ///
    /// A server that is overloaded, stopping or without a leader is 3 (server unavailable), never 4 or 5, which make
    /// clients give up for good.
    pub const fn connack_return_code(self) -> Option<u8> {
        match self {
            Self::Success => Some(0),
            Self::UnsupportedProtocolVersion => Some(1),
            Self::ClientIdentifierNotValid => Some(2),
            Self::ServerUnavailable
            | Self::ServerBusy
            | Self::ServerShuttingDown
            | Self::UseAnotherServer
            | Self::ServerMoved
            | Self::ConnectionRateExceeded
            | Self::QuotaExceeded
            | Self::MessageRateTooHigh => Some(3),
            Self::BadUserNameOrPassword => Some(4),
            Self::NotAuthorized | Self::Banned | Self::BadAuthenticationMethod => Some(5),
            _ => None,
        }
    }

    /// The code a 3.1 / 3.1.1 SUBACK carries in its place: the granted QoS, or 0x80 for every failure
    /// `[MQTT311-3.9.3-2]`.
    pub const fn suback_v3(self) -> u8 {
        if self.is_error() {
            0x80
        } else {
            self as u8 & 0x03
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (0x{:02X})", self.name(), *self as u8)
    }
}

impl From<ReasonCode> for u8 {
    fn from(code: ReasonCode) -> Self {
        code as Self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_are_inverse_over_all_bytes() {
        let known = (0..=u8::MAX)
            .filter_map(ReasonCode::from_u8)
            .collect::<Vec<_>>();
        assert_eq!(known, ReasonCode::ALL);
        assert_eq!(known.len(), 43);
        assert!(
            known
                .iter()
                .all(|code| ReasonCode::from_u8(*code as u8) == Some(*code))
        );
    }

    #[test]
    fn a_node_without_a_leader_never_tells_an_old_client_to_give_up() {
        assert_eq!(ReasonCode::ServerUnavailable.connack_return_code(), Some(3));
        assert_eq!(
            ReasonCode::ServerShuttingDown.connack_return_code(),
            Some(3)
        );
        assert_eq!(ReasonCode::MalformedPacket.connack_return_code(), None);
    }
}
