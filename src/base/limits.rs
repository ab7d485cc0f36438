//! Fixed limits on work, memory and waiting that rooms share, each with its reason.
//!
//! A limit that concerns one file alone stands in that file. What an operator may want to change is in the
//! configuration instead.

use std::time::Duration;

/// Proposals of one node that are on their way at once. Two keep the pipe full while a batch is on disk and on the
/// wire; more would only cut the same commands into smaller batches.
pub const PROPOSALS_IN_FLIGHT: usize = 2;

/// How long PUBACK and PUBCOMP wait to share a proposal with another command. Each commit costs every node a sync, and
/// most clients' next message comes sooner than this.
pub const DEFERRED_COMMANDS: Duration = Duration::from_millis(5);

/// How long the socket of a connection that has ended stays open for the commit of its end. With a leader that takes
/// milliseconds, without one no node opens a session meanwhile; it is as long as a node serves without a quorum.
pub const END_COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long CONNECT waits for the former connection of its client to propose what it has received, and for the commit:
/// as long as a busy cluster takes, and no longer than a client waits without notice.
pub const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the node that is asked takes for it: a slow one is not taken for one that does not answer.
pub const HAND_OVER_ANSWERED_WITHIN: Duration = Duration::from_millis(350);

/// How long the former connection handles what it has read: there is time left for the commit.
pub const HAND_OVER_HANDLED_WITHIN: Duration = Duration::from_millis(200);

/// Hand-overs that a node asks for at once; beyond it, sessions are taken over without.
pub const HAND_OVERS_AT_ONCE: usize = 256;

/// Bytes that a connection reads for a hand-over: what a socket's buffer holds of acknowledgements, and a DISCONNECT
/// behind them.
pub const HAND_OVER_BYTES: usize = 256 << 10;

/// Reads of the socket for that. There may be very many bytes of TLS and WebSocket for few of MQTT.
pub const HAND_OVER_READS: usize = 64;

/// Bytes of commands that may wait to be proposed; connections wait while there are more. Those that the next constants
/// name have room of their own beside it (`replica::share`).
pub const PROPOSAL_QUEUE_BYTES: usize = 64 << 20;

/// Of patches of twins by devices and modules, and of writes of twins by back ends, each: beside their bytes they count
/// what every node does for them. As much as weighs this is applied in some tenths of a second.
pub const PROPOSAL_QUEUE_TWINS_BYTES: usize = PROPOSAL_QUEUE_BYTES / 4;

/// Of writes to the state store with `$high_priority`. Any client may ask for it, so it is room for some such writes of
/// each client, and not a way around what everybody else waits for.
pub const PROPOSAL_QUEUE_URGENT_BYTES: usize = 8 << 20;

/// Of writes of keys with very many watchers ([`MANY_NOTIFICATIONS_BYTES`]). Everybody's commands on the node wait
/// behind those that are taken, so these are few.
pub const PROPOSAL_QUEUE_WATCHED_BYTES: usize = 2 * PROPOSAL_BYTES;

/// What the notifications of a write weigh that counts among them.
pub const MANY_NOTIFICATIONS_BYTES: usize = 256 * LOGGED_NOTIFICATION_BYTES;

/// Of sessions that are opened: a CONNECT is refused where others only wait.
pub const PROPOSAL_QUEUE_SESSIONS_BYTES: usize = PROPOSAL_QUEUE_BYTES;

/// Of what operators change, and of identities of the hub, each: some thousand users, bans or devices that are written
/// at once, or a file of rules beside them.
pub const PROPOSAL_QUEUE_ADMINISTRATION_BYTES: usize = 8 << 20;

/// Bytes of commands in one proposal, the last one not counted. Larger ones would hold up heartbeats, on the wire and
/// in the thread that handles them.
pub const PROPOSAL_BYTES: usize = 1 << 20;

/// Weight beyond bytes of the commands of one client that are not applied, the last one not counted, while
/// [`CROWDED_BYTES`] wait: everybody's commands are proposed in one order, so others wait for what one client has the
/// nodes do.
pub const CLIENT_WEIGHT_UNDER_WAY: usize = PROPOSAL_BYTES / 4;

/// Bytes of commands that have no room of their own and wait to be proposed on a node, weight included, whoever they
/// are of. Where fewer wait, nobody is held up much.
pub const CROWDED_BYTES: usize = PROPOSAL_BYTES / 8;

/// What each connection that gets a message from the log counts in a proposal, bytes: every node hands it the message
/// while it applies the log, and everybody waits for that. As many as fit into [`PROPOSAL_BYTES`] take some ten
/// milliseconds.
pub const LOGGED_DELIVERY_BYTES: usize = 16;

/// What each connection that watches a key counts in the proposal of a write of it, bytes: its node makes it a
/// notification while it applies the log, and apply keeps pace with the threads that send them.
pub const LOGGED_NOTIFICATION_BYTES: usize = 512;

/// What each queue that a message goes into in any case ([`QUEUES_AT_LEAST`]), each message that a client acknowledges,
/// and each filter that it subscribes to or unsubscribes from, counts in a proposal, bytes: rows are read and written
/// for it, which take many times as long as a delivery.
pub const LOGGED_QUEUE_BYTES: usize = 256;

/// What a command that opens or ends a connection or a session counts in a proposal, bytes: some ten rows are read and
/// written for it, whatever the session has. As many as fit into [`PROPOSAL_BYTES`] take some ten milliseconds, a
/// hundred at worst.
pub const LOGGED_SESSION_BYTES: usize = 512;

/// What the write of a section counts in a proposal for each byte of it, as stored when it is applied: every node
/// decodes and writes all of it. As many as fit into [`PROPOSAL_BYTES`] take some ten milliseconds.
pub const SECTION_WEIGHT: usize = 4;

/// Bytes that each byte of a patch makes of a section, at most: members are stored with their stamps.
pub const PATCH_GROWTH: usize = 2;

/// The same for a batch of messages to another node.
pub const MESSAGE_BATCH_BYTES: usize = 1 << 20;

/// Bytes of proposals the leader puts into one log entry.
pub const BATCH_BYTES: usize = 2 << 20;

/// Bytes of proposals under way to a majority above which further ones wait to share the next entry: below it an entry
/// is not worth waiting for.
pub const PIPELINED_BYTES: usize = 2 << 10;

/// Log entries the leader appends beyond the last applied one. The Raft core stalls at 1,024.
pub const ENTRIES_AHEAD_OF_APPLY: u64 = 256;

/// Proposals that wait for the leader's sequencer, of all nodes.
pub const SEQUENCER_QUEUE: usize = 256;

/// How long after quorum contact (a read barrier) a node matches messages without the log. It asks for one every
/// [`QUORUM_CONTACT_INTERVAL`].
pub const ROUTING_LEASE: Duration = Duration::from_millis(350);

/// How often a node asks for quorum contact: often enough that a lease outlasts an answer that takes half as long.
pub const QUORUM_CONTACT_INTERVAL: Duration = Duration::from_millis(100);

/// How long SUBACK waits for nodes that do not answer. Longer than [`ROUTING_LEASE`], by more than clocks run apart:
/// whatever such a node accepts afterwards, it matches against the subscription. With the commit and
/// [`PEER_CHECK_INTERVAL`] on top, a client gets its SUBACK within half a second.
pub const SUBSCRIPTION_TIMEOUT: Duration = Duration::from_millis(440);

/// How often it is looked what waits for silent nodes.
pub const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(25);

const _: () = assert!(
    SUBSCRIPTION_TIMEOUT.as_millis() * 4 >= ROUTING_LEASE.as_millis() * 5,
    "SUBACK must outlast the leases of silent nodes by a quarter"
);

const _: () = assert!(
    SUBSCRIPTION_TIMEOUT.as_millis() + PEER_CHECK_INTERVAL.as_millis() < 475,
    "SUBACK comes within half a second"
);

/// Bytes of messages that wait for one peer node before further QoS 0 messages to it are dropped.
pub const PEER_OUTBOX_BYTES: usize = 64 << 20;

/// How long messages wait for the confirmation of a node that answers nothing before they go through the log: longer
/// than a busy node takes, shorter than a publisher's patience.
pub const FORWARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest message between nodes, bytes.
pub const CLUSTER_MESSAGE_BYTES: usize = 320 << 20;

/// Topics whose route a connection remembers; publishers with more find the others in the node's own cache.
pub const CACHED_ROUTES: usize = 1024;

/// A read buffer per thread. One read takes at most this much of a socket.
pub const READ_BUFFER_BYTES: usize = 128 << 10;

/// Row operations (rows read, looked at, written) that applying one log entry spends beyond what each of its commands
/// does in any case; what is left continues with later entries. One takes one to five microseconds, so this is some ten
/// to thirty milliseconds of apply, for which everybody waits; and it is enough that the sync of an entry costs less
/// than what the entry does.
pub const ROW_OPERATIONS_AT_ONCE: usize = 8192;

/// The same for commands of the hub, which have a budget of their own: whatever publications do, an identity can be
/// disabled or deleted, and its connections end with it. What is done with bytes of documents is counted in it, too.
pub const HUB_OPERATIONS_AT_ONCE: usize = 8192;

/// Items (subscriptions, queue entries, sessions) that a command takes care of although others of its log entry have
/// spent [`ROW_OPERATIONS_AT_ONCE`]: nearly every session is smaller, so nearly nothing needs a continuation. When as
/// many row operations again went into such items, it is one item for each further command.
pub const ITEMS_AT_LEAST: usize = 16;

/// Packet ids of unreleased QoS 2 messages that one log entry reads for sessions that are resumed, the last session's
/// not counted. The CONNECT of one more such session is refused with 0x89, server busy.
pub const RESUMED_IDS_AT_ONCE: usize = 8192;

/// Queues (of sessions and groups) that a publication goes into at its own log entry in any case, however much others
/// of the entry have done: more than nearly every one has, so that nearly none needs a continuation.
pub const QUEUES_AT_LEAST: usize = 32;

/// Messages of a full queue that make room for a new one in any case, however much others of the log entry have done.
/// Where more would have to, the new one is dropped as well.
pub const DROPS_AT_LEAST: usize = 4;

/// Messages that are still to go into queues at once, of all topics: some minutes of work. Above it, further ones with
/// many receivers are refused, or they would wait longer and longer.
pub const FAN_OUTS: usize = 16_384;

/// Bytes of these messages; the last one may exceed them.
pub const FAN_OUT_BYTES: u64 = 64 << 20;

/// The share of both that the messages of one topic may take is one in so many, so that who publishes to another topic
/// is not refused because of it.
pub const FAN_OUT_SHARES: usize = 8;

/// Filters of one SUBSCRIBE or UNSUBSCRIBE command; a packet with more becomes several commands, one after the other.
pub const FILTERS_AT_ONCE: usize = 256;

/// The most messages of one session's queue that are under way at once, whatever its client and the configuration
/// allow: when its connection ends, those that came through groups are looked for among them in one batch.
pub const UNDER_WAY: u16 = 2048;

/// Messages of one session's queue that are granted in one batch; the rest follows in the next, so that no batch takes
/// long to apply.
pub const GRANTS_AT_ONCE: usize = 1024;

/// Retained messages that apply looks at in one batch for new subscriptions of durable sessions; the rest follows in
/// the next, so that no batch takes long.
pub const RETAINED_ROWS_AT_ONCE: usize = 4096;

/// Bytes of retained messages that one batch puts into queues; the last message may exceed them.
pub const RETAINED_BYTES_AT_ONCE: u64 = 4 << 20;

/// Messages that wait in a session's queue before the retained ones of its new subscriptions wait for its client: a few
/// times what is under way, so that it never waits for them.
pub const RETAINED_WAITING: u64 = 1024;

/// Topics whose matching sessions apply remembers.
pub const CACHED_MATCH_SETS: usize = 4096;

/// Matches that all of these may hold together, some 100 bytes each.
pub const REMEMBERED_MATCHES: usize = 1 << 19;

/// Subscriptions, and parts of filters, that apply looks at in one batch because topics have to be looked up anew after
/// the batch has changed subscriptions; the last look-up may exceed it. It takes some ten milliseconds. What is
/// published to further topics then goes on with a later batch.
pub const LOOKED_UP_ANEW_AT_ONCE: usize = 32_768;

/// Topic aliases towards one client, however many it allows: each costs this node memory as long as the connection
/// lasts.
pub const CLIENT_TOPIC_ALIASES: u16 = 64;

/// Packets of a client in one exchange of extended authentication: SCRAM takes three, Kerberos a few more.
pub const AUTHENTICATION_STEPS: usize = 12;

/// Bytes of Authentication Data of a client in one exchange: one field of MQTT's largest size, enough for
/// Kerberos.
pub const AUTHENTICATION_BYTES: usize = 64 << 10;

/// How many times `mqtt.outbox_max_bytes` may wait for one client while publishers wait for it: what they had under way
/// when they were told to wait comes on top.
pub const OUTBOX_OVERRUN: usize = 4;

/// Bytes of one publisher's messages that may wait for slow subscribers before its next ones to them are not read. It
/// keeps what many publishers have under way for one subscriber small, and is more than a round trip between nodes
/// needs.
pub const PUBLISHER_UNACKNOWLEDGED_BYTES: usize = 128 << 10;

/// Bytes of a message body from which its subscribers share one copy. Smaller ones are copied into each subscriber's
/// buffer, which is faster than a segment of their own.
pub const SHARED_BODY_BYTES: usize = 8 << 10;

/// Bytes of topics that one client's aliases may name, those of this node towards it: a long topic saves more when it
/// is sent as an alias, but each is kept as long as the connection lasts.
pub const CLIENT_TOPIC_ALIAS_BYTES: usize = 64 << 10;

/// Bytes of a client's packets that are read while its PUBLISH packets wait. What does not depend on them, such as
/// PINGREQ and PUBACK, is found among them and handled; above this the client is not read.
pub const HELD_INPUT_BYTES: usize = 256 << 10;

/// Work of one turn of a connection: packets, and deliveries to connections of this node (a delivery of a long packet
/// counts more). Some milliseconds; after it other connections have their turn.
pub const TURN_WORK: usize = 4_096;

/// Bytes that a connection writes in one turn. Where a message goes to thousands of connections of a thread, others
/// wait for a turn of each.
pub const TURN_WRITTEN_BYTES: usize = 16 << 10;

/// Bytes of a connection's output while packets wait that expire: in the output their time would not count. Enough for
/// a few turns.
pub const EXPIRING_OUTPUT_BYTES: usize = 64 << 10;

/// Bytes that a connection with more than that writes in one turn, when it has waited for its place among the few that
/// do so at once: whatever goes to thousands, others wait for those few. Whoever waits for its place is read meanwhile.
pub const BULK_WRITTEN_BYTES: usize = 128 << 10;

/// Connections that do so at once, for each thread.
pub const BULK_TURNS_PER_THREAD: usize = 2;

/// How long a connection waits for its place among them: a thread that does not come round may have them all.
pub const BULK_TURN_WITHIN: Duration = Duration::from_secs(1);

/// How long many connections that get a message wait until those that got one before have been woken.
pub const WAKE_TURN_WITHIN: Duration = Duration::from_millis(250);

/// Remembered replies that a request is compared with. More than one of a client have the same correlation data and
/// 64-bit fingerprint only if somebody constructed them; such a client loses the older ones.
pub const SIMILAR_REQUESTS: usize = 8;

/// Bytes of commands in a proposal above which the leader refuses it. It must fit into one message of Raft beside what
/// it shares its log entry with, or the entry could never be replicated.
pub const LARGEST_PROPOSAL_BYTES: usize = 60 << 20;

/// Largest message of the Raft service, bytes: one oversized entry, with room for what it shares the message with.
pub const RAFT_MESSAGE_BYTES: usize = LARGEST_PROPOSAL_BYTES + 2 * BATCH_BYTES;

/// Elements of the lists in one command. More than a packet of ordinary size has; they bound the memory that decoding
/// takes, as an element of two bytes becomes a structure of fifty.
pub const ELEMENTS_PER_COMMAND: usize = 1 << 20;

/// Proposals in one log entry: more than [`SEQUENCER_QUEUE`], which the leader puts into one. Replicas pass over an
/// entry with more, so a change of it is a change of the machine's version.
pub const PROPOSALS_PER_ENTRY: usize = 4 * SEQUENCER_QUEUE;

/// Entries of the directory: users of a large fleet, with room for rules, bans and tokens. A node keeps none of them in
/// memory for the sake of the directory itself.
pub const DIRECTORY_ENTRIES: u64 = 1_000_000;

/// Bytes of them, names and values.
pub const DIRECTORY_BYTES: u64 = 1 << 30;

/// Entries beside them that bans may take when the directory is full.
pub const RESERVED_DIRECTORY_ENTRIES: u64 = 50_000;

/// Bytes of these, and of what users grow by when they are disabled.
pub const RESERVED_DIRECTORY_BYTES: u64 = 128 << 20;

/// Changes of the directory in one command: each takes up to five row operations, so all of them are about as much as a
/// log entry may do. Replicas refuse a command with more, so a change of it is a change of the machine's version, as of
/// the next two.
pub const DIRECTORY_CHANGES: usize = 1024;

/// Bytes of a name in the directory.
pub const DIRECTORY_NAME_BYTES: usize = 1024;

/// Bytes of a value in the directory: some ten thousand rules.
pub const DIRECTORY_VALUE_BYTES: usize = 1 << 20;

/// Entries of the directory that one identity may rest on.
pub const PROOFS: usize = 16;

/// Event subscriptions, those included of which rows are still to go. Each has a request under way and a cursor that
/// every progress writes.
pub const EVENT_SUBSCRIPTIONS: usize = 32;

/// Bytes of the name of an event subscription.
pub const EVENT_SUBSCRIPTION_NAME_BYTES: usize = 64;

/// Bytes of what an operator asks for with an event subscription: ten headers of 4 KiB each, and room for the rest.
pub const EVENT_SUBSCRIPTION_BYTES: usize = 64 << 10;

/// Events that one account of a deliverer parks, takes out or gives up; each takes up to twelve row operations, those
/// that make room included, and one log entry may hold an account of every event subscription. Replicas refuse an
/// account with more, so a change of it is a change of the machine's version, as of those above and the next one.
pub const EVENT_PROGRESS_ITEMS: usize = 64;

/// Parked events of one event subscription into which dead letters are replayed.
pub const EVENTS_PARKED: u64 = 1000;

/// Bytes of the parked events of one event subscription, with the same consequences; the last one may exceed them.
pub const EVENTS_PARKED_BYTES: u64 = 16 << 20;

/// Bytes for which a dead letter may count on average: there are no more than `events.dead_letters_max` of them, and no
/// more bytes than so many of this size have, since clients choose the size of a letter.
pub const DEAD_LETTER_BYTES: u64 = 1024;

/// A client with dead letters for one in so many of both, or more than all others together, makes no others go: its own
/// new ones go where there is no room.
pub const DEAD_LETTER_SHARES: u64 = 8;

/// The same as [`DEAD_LETTER_BYTES`] for a row with the number of a session, its place included, and
/// `events.sequences_max`.
pub const EVENT_SEQUENCE_BYTES: u64 = 512;

/// How long the number of a session is kept whose client id the server made, once the session has ended, milliseconds:
/// its client knows the id and may come again under it.
pub const ASSIGNED_SEQUENCE_KEEP_MS: u64 = 3_600_000;

/// Events that one batch removes from the outbox, however little else it does.
pub const EVENTS_TRIMMED: usize = 4096;

/// Bytes of them, of dead letters, and of places of numbers that one batch looks at; the last one may exceed them.
pub const EVENTS_TRIMMED_BYTES: u64 = 8 << 20;

/// Bytes of retained messages, with their topics, that one batch looks at to delete what identities have retained that
/// are no more; the last one may exceed them. A device with its modules may have hundreds of megabytes.
pub const RETAINED_PURGED_BYTES: u64 = 4 << 20;

/// Modules of one device: as many as the service whose clients are served allows.
pub const MODULES_PER_DEVICE: u32 = 50;
