//! Why bytes were refused, and why a packet could not be written.
//!
//! A [`DecodeError`] is one small fact: it knows the reason code that goes into DISCONNECT or CONNACK, a sentence for
//! the log and the numbered statement it enforces. Whoever holds the connection decides what is sent before closing it.

use super::reason::ReasonCode;

macro_rules! decode_errors {
    ($($(#[$doc:meta])* $name:ident: $code:ident, $rule:literal, $text:literal;)+) => {
        /// A violation of the protocol found while decoding. Each closes the connection `[MQTT-4.13.1-1]`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[error("{} [{}]", self.text(), self.rule())]
        pub enum DecodeError {
            $($(#[$doc])* $name,)+
        }

        impl DecodeError {
            /// Every violation the decoders know.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The reason code for the DISCONNECT or CONNACK that answers it.
            pub const fn reason(self) -> ReasonCode {
                match self {
                    $(Self::$name => ReasonCode::$code,)+
                }
            }

            /// The numbered statement of MQTT 5.0, or the section where a statement has no number.
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$name => $rule,)+
                }
            }

            /// What is wrong, as half a sentence.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

decode_errors! {
    // Frame.
    PacketTypeReserved: MalformedPacket, "MQTT 2.1.2", "packet type 0 is reserved";
    HeaderFlags: MalformedPacket, "MQTT-2.1.3-1", "reserved bits of the fixed header are not what the standard fixes";
    RemainingLengthTooLong: MalformedPacket, "MQTT 2.1.4", "remaining length takes more than four bytes";
    RemainingLengthNotMinimal: MalformedPacket, "MQTT-1.5.5-1", "remaining length is not written in the fewest bytes";
    PacketTooLarge: PacketTooLarge, "MQTT-3.2.2-15", "packet is larger than this server accepts";

    // Fields.
    BodyTooShort: MalformedPacket, "MQTT 2.1.4", "a field reaches beyond the end of the packet";
    BodyTooLong: MalformedPacket, "MQTT 2.1.4", "bytes are left over after the last field of the packet";
    VariableByteIntegerTooLong: MalformedPacket, "MQTT 1.5.5", "variable byte integer takes more than four bytes";
    VariableByteIntegerNotMinimal: MalformedPacket, "MQTT-1.5.5-1", "variable byte integer is not written in the fewest bytes";
    StringNotUtf8: MalformedPacket, "MQTT-1.5.4-1", "string is not well-formed UTF-8";
    StringHasNul: MalformedPacket, "MQTT-1.5.4-2", "string holds U+0000";
    PacketIdZero: ProtocolError, "MQTT-2.2.1-3", "packet identifier is zero";
    ReasonCodeNotAllowed: ProtocolError, "MQTT 2.4", "reason code is not one this packet may carry";

    // Properties.
    PropertyUnknown: MalformedPacket, "MQTT 2.2.2.2", "property identifier is not defined";
    PropertyNotAllowed: MalformedPacket, "MQTT 2.2.2.2", "property is not allowed in this packet";
    PropertyRepeated: ProtocolError, "MQTT 2.2.2.2", "property occurs more than once";
    PropertyOutOfRange: ProtocolError, "MQTT 2.2.2.2", "property has a value outside its range";
    PropertyLength: MalformedPacket, "MQTT 2.2.2.1", "property length does not end where the last property ends";
    TopicAliasZero: TopicAliasInvalid, "MQTT-3.3.2-8", "topic alias is zero";
    ResponseTopicInvalid: ProtocolError, "MQTT-3.3.2-14", "response topic is empty or has a wildcard";
    SubscriptionIdFromClient: ProtocolError, "MQTT-3.3.4-6", "client sent a subscription identifier in PUBLISH";
    AuthenticationDataWithoutMethod: ProtocolError, "MQTT 3.1.2.11.10", "authentication data without authentication method";
    AuthenticationMethodMissing: ProtocolError, "MQTT 3.15.2.2.2", "AUTH without authentication method";

    // CONNECT.
    FirstPacketNotConnect: ProtocolError, "MQTT-3.1.0-1", "first packet is not CONNECT";
    SecondConnect: ProtocolError, "MQTT-3.1.0-2", "second CONNECT on one connection";
    ProtocolName: UnsupportedProtocolVersion, "MQTT-3.1.2-1", "protocol name is neither MQTT nor MQIsdp";
    ProtocolLevel: UnsupportedProtocolVersion, "MQTT-3.1.2-2", "protocol version is not 3.1, 3.1.1 or 5.0";
    ConnectFlagReserved: MalformedPacket, "MQTT-3.1.2-3", "reserved connect flag is set";
    WillFlagsWithoutWill: MalformedPacket, "MQTT-3.1.2-11", "will QoS or will retain without a will";
    WillQosInvalid: MalformedPacket, "MQTT-3.1.2-12", "will QoS is 3";
    WillTopicInvalid: TopicNameInvalid, "MQTT-4.7.0-1", "will topic is empty or has a wildcard";
    PasswordWithoutUserName: MalformedPacket, "MQTT311-3.1.2-22", "password without user name before MQTT 5.0";
    ClientIdMissing: ClientIdentifierNotValid, "MQTT311-3.1.3-8", "empty client identifier without clean session before MQTT 5.0";

    // PUBLISH.
    PublishQosInvalid: MalformedPacket, "MQTT-3.3.1-4", "both QoS bits are set";
    DupWithoutQos: MalformedPacket, "MQTT-3.3.1-2", "DUP is set on a QoS 0 message";
    TopicNameWildcard: TopicNameInvalid, "MQTT-3.3.2-2", "topic name has a wildcard";
    TopicNameEmpty: ProtocolError, "MQTT-4.7.3-1", "topic name is empty and no topic alias stands for it";

    // SUBSCRIBE, UNSUBSCRIBE.
    NoTopicFilter: ProtocolError, "MQTT-3.8.3-2", "no topic filter";
    SubscriptionOptionsReserved: MalformedPacket, "MQTT-3.8.3-5", "reserved bits of the subscription options are set";
    SubscriptionQosInvalid: ProtocolError, "MQTT 3.8.3.1", "requested QoS is 3";
    RetainHandlingInvalid: ProtocolError, "MQTT 3.8.3.1", "retain handling is 3";
    NoLocalOnShared: ProtocolError, "MQTT-3.8.3-4", "no local on a shared subscription";

    // Direction and version.
    PacketFromWrongSide: ProtocolError, "MQTT 2.1.2", "packet type only the other side sends";
    AuthBeforeV5: MalformedPacket, "MQTT311 2.2.1", "packet type 15 is reserved before MQTT 5.0";
    ConnAckFlagsReserved: MalformedPacket, "MQTT-3.2.2-1", "reserved connect acknowledge flags are set";
    SessionPresentOnRefusal: ProtocolError, "MQTT-3.2.2-6", "session present on a refused connection";
}

/// Why a packet was not written. The output buffer is as it was before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A string or binary field is longer than its two-byte length can say (MQTT 5.0 §1.5.4).
    #[error("field of {0} bytes is longer than 65535")]
    FieldTooLong(usize),
    /// The packet is larger than the receiver accepts, or than the protocol can express (268,435,455). A PUBLISH that
    /// does not fit is dropped and counts as delivered `[MQTT-3.1.2-24]` `[MQTT-3.1.2-25]`.
    #[error("packet of {size} bytes is larger than {max}")]
    TooLarge {
        /// Size of the whole packet in bytes.
        size: usize,
        /// The limit it passes, in bytes.
        max: u32,
    },
    /// A variable byte integer above 268,435,455 (MQTT 5.0 §1.5.5).
    #[error("{0} does not fit a variable byte integer")]
    VariableByteInteger(u32),
    /// A reason code the packet does not carry in this version `[MQTT-3.2.2-8]` and the like.
    #[error("reason code {0} is not one of this packet and version")]
    ReasonCodeNotAllowed(ReasonCode),
    /// A QoS above 0 without a packet identifier `[MQTT-2.2.1-4]`.
    #[error("QoS above 0 without packet identifier")]
    PacketIdMissing,
    /// The packet does not exist in the version of the connection.
    #[error("packet does not exist in this protocol version")]
    Version,
}
