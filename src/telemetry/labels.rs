//! The labels of the metrics: each an enum, so that every series exists from the start and none is invented later.

use super::cells::Label;

macro_rules! labels {
    ($(
        $(#[$doc:meta])*
        $type:ident = $name:literal { $($(#[$variant_doc:meta])* $variant:ident = $value:literal),+ $(,)? }
    )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$variant_doc])* $variant),+
        }

        impl Label for $type {
            const NAME: &'static str = $name;
            const ALL: &'static [Self] = &[$($type::$variant),+];

            fn index(self) -> usize {
                self as usize
            }

            fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $value),+
                }
            }
        }
    )+};
}

labels! {
    /// Quality of service of a message.
    #[expect(clippy::enum_variant_names, reason = "the standard's names")]
    Qos = "qos" {
        /// At most once.
        AtMostOnce = "0",
        /// At least once.
        AtLeastOnce = "1",
        /// Exactly once.
        ExactlyOnce = "2",
    }

    /// A state store command.
    Verb = "verb" {
        /// SET
        Set = "set",
        /// GET
        Get = "get",
        /// DEL
        Del = "del",
        /// VDEL
        Vdel = "vdel",
        /// KEYNOTIFY
        Keynotify = "keynotify",
        /// SCAN
        Scan = "scan",
        /// Anything else.
        Unknown = "unknown",
    }

    /// How a state store command was answered.
    Outcome = "outcome" {
        /// Done, or the value was there.
        Ok = "ok",
        /// The key was absent.
        Absent = "absent",
        /// A condition (NX, NEX, VDEL's value) refused it.
        Refused = "refused",
        /// `-ERR`.
        Error = "error",
    }

    /// What a client has asked for.
    Action = "action" {
        /// CONNECT, or to stay connected.
        Connect = "connect",
        /// A will.
        Will = "will",
        /// PUBLISH.
        Publish = "publish",
        /// A filter of a SUBSCRIBE.
        Subscribe = "subscribe",
        /// GET, KEYNOTIFY, SCAN, or the notification of a key.
        Read = "read",
        /// SET, DEL, VDEL.
        Write = "write",
    }

    /// How a TLS handshake ended.
    TlsHandshake = "result" {
        /// Both sides have proved who they are.
        Full = "full",
        /// A session of before goes on.
        Resumed = "resumed",
        /// The client went away or was refused.
        Failed = "failed",
    }

    /// A bounded queue.
    Queue = "queue" {
        /// Commands waiting to be proposed.
        Proposals = "proposals",
        /// Commands proposed and not yet applied here.
        Unapplied = "unapplied",
        /// Committed log entries waiting to be applied.
        Apply = "apply",
        /// Reads waiting for a ReadIndex.
        Reads = "reads",
        /// Bytes of messages waiting to be sent to other nodes.
        Peers = "peer_bytes",
    }

    /// Why a message was not delivered.
    DropReason = "reason" {
        /// The client reads too slowly: its outbox was full.
        OutboxFull = "outbox_full",
        /// The message is larger than the client accepts.
        TooLarge = "too_large",
        /// Its expiry passed before it could be sent.
        Expired = "expired",
        /// The queue to another node was full (QoS 0).
        PeerQueueFull = "peer_queue_full",
        /// The session's queue was full.
        QueueFull = "queue_full",
        /// A state store request from an MQTT 3 client, which cannot be answered.
        Unanswerable = "unanswerable",
        /// Disks are nearly full, so nothing more is stored (QoS 0).
        DiskLow = "disk_low",
        /// Its topic name is longer or has more levels than this server takes.
        TopicRefused = "topic_refused",
        /// The rules let its publisher not publish it, or its subscriber not get it.
        NotAuthorized = "not_authorized",
    }

    /// Why a connection ended.
    DisconnectReason = "reason" {
        /// The client sent DISCONNECT.
        Client = "client",
        /// The client closed its socket, or the network did.
        Network = "network",
        /// Nothing arrived for one and a half times the keep-alive.
        KeepAlive = "keep_alive",
        /// Bytes that are not MQTT.
        Malformed = "malformed",
        /// MQTT that breaks a rule.
        Protocol = "protocol",
        /// A packet larger than announced.
        PacketTooLarge = "packet_too_large",
        /// No CONNECT in time.
        ConnectTimeout = "connect_timeout",
        /// TLS, WebSocket or the PROXY header was not as it should be.
        Transport = "transport",
        /// The client did not prove who it is, at its CONNECT or later.
        NotAuthenticated = "not_authenticated",
        /// The rules do not let the client connect, or not do what it did.
        NotAuthorized = "not_authorized",
        /// CONNECT was refused.
        Refused = "refused",
        /// Another connection took the session over.
        TakenOver = "taken_over",
        /// The client did not read what it was sent.
        SlowConsumer = "slow_consumer",
        /// More under way than the receive maximum.
        ReceiveMaximum = "receive_maximum",
        /// The node lost its leader and gave up serving.
        NoLeader = "no_leader",
        /// The node shuts down.
        Shutdown = "shutdown",
        /// An operator closed it.
        Administrative = "administrative",
        /// More connections than allowed.
        TooMany = "too_many",
        /// More was kept for the client than one connection may have.
        ConnectionMemory = "connection_memory",
        /// The node's memory for clients was used up: the connection had much of it, or was new.
        NodeMemory = "node_memory",
    }
}
