//! The labels of the metrics: each an enum, so that every series exists from the start and none is invented later.

use super::cells::Label;
use crate::events;
use crate::events::answer::DeathReason;
use crate::events::standing::Standing;

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
        /// A route of the HTTP port, within the scope of who asked.
        Http = "http",
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
        /// Its publisher's connection ended before it was taken: it was above the publisher's rate, or had to wait for
        /// another reason (QoS 0).
        Unhandled = "unhandled",
    }

    /// What a device, a module or a back end asks of the hub.
    HubOperation = "operation" {
        /// A device or a module gets its twin.
        Get = "get",
        /// It changes its reported properties.
        PatchReported = "patch_reported",
        /// A back end asks for an identity.
        GetIdentity = "get_identity",
        /// It asks for identities.
        ListIdentities = "list_identities",
        /// It makes or changes an identity.
        PutIdentity = "put_identity",
        /// It deletes an identity.
        DeleteIdentity = "delete_identity",
        /// It asks for a twin.
        GetTwin = "get_twin",
        /// It patches a twin.
        PatchTwin = "patch_twin",
        /// It replaces sections of a twin.
        ReplaceTwin = "replace_twin",
        /// It looks for twins.
        Query = "query",
        /// It asks for something that there is not.
        Other = "other",
    }

    /// What became of a change of desired properties that a connected device or module is to hear of.
    TwinNotification = "kind" {
        /// It was told.
        Sent = "sent",
        /// Another one says it, too, because the client reads slowly.
        Folded = "folded",
    }

    /// Why the CONNECT of a device or a module was refused, or one under the name of such.
    HubRefusal = "reason" {
        /// The node has no contact with the majority, or could not read the identity.
        NoLeader = "no_leader",
        /// The user name names no identity, or has no `api-version`.
        UserName = "user_name",
        /// The connection is not encrypted.
        Plaintext = "plaintext",
        /// There is no such identity.
        UnknownIdentity = "unknown_identity",
        /// The client id is not the identity of the user name.
        ClientId = "client_id",
        /// There is neither a token nor a certificate.
        NoCredential = "no_credential",
        /// The password is no token.
        Token = "token",
        /// No key of the identity, or of the policy that is named, has signed the token.
        Signature = "signature",
        /// The policy does not let its holder connect.
        Permission = "permission",
        /// The token is for something else.
        Scope = "scope",
        /// The token or the certificate has expired, or is not valid yet.
        Expired = "expired",
        /// The certificate is not the identity's, or no authority vouches for it.
        Certificate = "certificate",
        /// The device is disabled.
        Disabled = "disabled",
        /// The will is not for the identity's own messages.
        Will = "will",
        /// The identity, or its credential, was changed while it connected.
        Changed = "changed",
        /// An ordinary client has used the client id of an identity.
        Reserved = "reserved",
        /// An operator has banned the client.
        Banned = "banned",
        Throttled = "throttled",
    }

    /// Why events were dropped.
    EventDrop = "reason" {
        /// The outbox held as much as it may.
        OutboxFull = "outbox_full",
        /// An event subscription had as many dead letters as it may have.
        DeadLettersFull = "dead_letters_full",
        /// The topic of an event would be longer than topics may be.
        TopicTooLong = "topic_too_long",
        /// As many events as may do so waited for going into queues of subscribers.
        Crowded = "crowded",
    }

    /// How a request with events has ended.
    Delivery = "outcome" {
        /// The endpoint has taken the events.
        Delivered = "delivered",
        /// It has not taken the event, which is delivered later, apart from the others.
        Parked = "parked",
        /// It has not taken the events: they go singly, or are given up.
        Refused = "refused",
        /// It is down, gone or set up wrongly.
        EndpointDown = "endpoint_down",
        /// It has not answered in time.
        TimedOut = "timed_out",
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

    /// Whom an identity of the hub is of.
    IdentityKind = "kind" {
        /// A device.
        Device = "device",
        /// A module of one.
        Module = "module",
    }
}

impl Label for Standing {
    const NAME: &'static str = "state";
    const ALL: &'static [Self] = &Standing::ALL;

    fn index(self) -> usize {
        self as usize
    }

    fn as_str(self) -> &'static str {
        Standing::as_str(self)
    }
}

impl Label for DeathReason {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &DeathReason::ALL;

    fn index(self) -> usize {
        self as usize - 1
    }

    fn as_str(self) -> &'static str {
        DeathReason::as_str(self)
    }
}

impl Label for events::Kind {
    const NAME: &'static str = "type";
    const ALL: &'static [Self] = &events::Kind::ALL;

    fn index(self) -> usize {
        self as usize - 1
    }

    fn as_str(self) -> &'static str {
        match self {
            events::Kind::Connected => "connected",
            events::Kind::Disconnected => "disconnected",
            events::Kind::ClientUpdated => "updated",
            events::Kind::ClientDeleted => "deleted",
            events::Kind::Hub => "hub",
        }
    }
}

impl Label for events::DisconnectionReason {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &events::DisconnectionReason::ALL;

    fn index(self) -> usize {
        self as usize - 1
    }

    fn as_str(self) -> &'static str {
        events::DisconnectionReason::as_str(self)
    }
}
