//! The one definition of every configuration key: name, type, default, unit, range and meaning.
//!
//! Adding a key here adds it to [`Config`], to the loader, to `quorumq check` and to `docs/configuration.md`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use uuid::Uuid;

use super::bounds;
use super::definition::config;
use super::events_keys::EventsConfig;
use super::hub_keys::HubConfig;
use super::listener::Listener;
use super::section::{Section, SectionKey};
use super::setting::{
    Address, CertificateGroups, CertificateName, CertificatePair, ClientCertificates, ClusterName,
    HttpAuthentication, Input, LogFormat, LogLevel, Member, NamedScope, OutboxPolicy, QueuePolicy,
    RefusedPublish, Setting, SettingError, WhenUnavailable,
};
use super::token_issuer::TokenIssuer;

/// One key, as the loader and the reference page see it.
pub struct Key {
    /// Full name, `section.key`.
    pub name: &'static str,
    /// What it means and when to change it.
    pub doc: &'static str,
    /// Unit of a number, empty for everything else.
    pub unit: &'static str,
    /// The kind of value.
    pub kind: &'static str,
    /// Smallest and largest number that is accepted.
    pub range: Option<RangeInclusive<u64>>,
    /// Whether the value must not be shown.
    pub secret: bool,
    pub(super) set: Set,
    show: Show,
}

/// Reads a value into its place.
type Set = Box<dyn Fn(&mut Config, &Input<'_>) -> Result<(), SettingError>>;

/// Shows the value of a place.
type Show = Box<dyn Fn(&Config) -> String>;

impl Key {
    /// The effective value as it would be written in TOML; a secret is never shown.
    pub fn show(&self, config: &Config) -> String {
        if self.secret {
            "\"…\"".to_owned()
        } else {
            (self.show)(config)
        }
    }
}

/// The list of tables, as one key: so it is given in the environment and on the command line.
fn listeners_key() -> Key {
    Key {
        name: "listeners",
        doc: " Where clients connect, one table for each place. Without any, `mqtt.listen` alone says it. In the\n environment \
              and on the command line: a TOML list of inline tables.\n",
        unit: "",
        kind: <Vec<Listener> as Setting>::KIND,
        range: None,
        secret: false,
        set: Box::new(|config, input| {
            config.listeners = Setting::read(input)?;
            Ok(())
        }),
        show: Box::new(|config| Setting::show(&config.listeners)),
    }
}

/// The keys of a section, which has a place in the tree.
fn of_section<S: 'static>(
    keys: Vec<SectionKey<S>>,
    place: fn(&Config) -> &S,
    place_mut: fn(&mut Config) -> &mut S,
) -> impl Iterator<Item = Key> {
    keys.into_iter().map(move |key| Key {
        name: key.name,
        doc: key.doc,
        unit: key.unit,
        kind: key.kind,
        range: key.range,
        secret: false,
        set: Box::new(move |config, input| (key.set)(place_mut(config), input)),
        show: Box::new(move |config| (key.show)(place(config))),
    })
}

config! {
    elsewhere {
        /// Device and module twins, and who they belong to: the connections of devices and modules, and the HTTPS API
        /// of back ends (docs/spec/hub-connections.md).
        hub: HubConfig;
        /// Events of the life of clients: who connects, who disconnects and why, which identities change. Nothing is
        /// recorded until there is an event subscription, `events.mqtt`, or `events.keep_s` above 0. What replicas must
        /// know alike is told by the leader as it is configured: give all nodes the same.
        events: EventsConfig;
    }

    /// Who this node is and where it keeps what it acknowledged.
    node: NodeConfig {
        /// Number of this node, unique in the cluster and never reused for another data directory.
        id: u64 = 1, "", 1..=bounds::MAX_NODE_ID;
        /// Directory of the log and of the state. Created when missing. It belongs to one node for ever.
        data_dir: PathBuf = PathBuf::from("./data"), "";
        /// Time after which this process ends when one of its threads does not come round: clients are better off on
        /// another node then. It ends with SIGABRT, so that a core dump shows where the thread is. The log, the metric
        /// `quorumq_threads_stuck` and `/livez` name such a thread after five seconds. Time in which the process was
        /// stopped or the machine suspended does not count, nor does the wait for a disk that pauses. 0: never.
        stuck_s: u64 = 30, "s", 0..=3_600;
    }

    /// The nodes that replicate each other.
    cluster: ClusterConfig {
        /// Name of the cluster. Nodes with different names never talk to each other.
        name: ClusterName = "quorumq".parse().expect("a short word is a cluster name"), "";
        /// Identity of the cluster, checked on every connection between nodes. Derived from the name when empty.
        id: Option<Uuid> = None, "";
        /// The voters that the cluster starts with; the same list on each of them. Empty: this node alone is the
        /// cluster.
        members: Vec<Member> = Vec::new(), "";
        /// Nodes of a running cluster that this node asks to be added, as long as its data directory is empty. Used
        /// instead of `cluster.members`, which is for the nodes that make a new cluster.
        join: Vec<Address> = Vec::new(), "";
        /// Where this node listens for the other nodes.
        listen: Address = Address::loopback(7883), "";
        /// Where the other nodes reach this node. Empty: its address in `cluster.members`, else `cluster.listen`.
        advertise: Option<Address> = None, "";
        /// Time between two heartbeats of the leader to its followers.
        heartbeat_ms: u64 = 50, "ms", 5..=10_000;
        /// A follower starts a campaign when it has heard nothing from the leader for `cluster.election_max_ms` plus a
        /// random time between this value and `cluster.election_max_ms`. At least three heartbeats.
        election_min_ms: u64 = 150, "ms", 20..=60_000;
        /// The leader's lease, and the longest random time that a follower adds to it. With the defaults writes pause
        /// for some 0.33 s when the leader's process dies, which breaks its connections, and for 0.5 to 0.7 s when the
        /// leader only falls silent.
        election_max_ms: u64 = 300, "ms", 21..=120_000;
        /// Silence of a node after which the leader declares it down. The connections of its clients then count as
        /// lost: sessions without an expiry interval end, and wills are published after their delay.
        node_lease_ms: u64 = 5_000, "ms", 500..=600_000;
        /// Time without a leader after which this node stops serving and disconnects its clients. Shorter than
        /// `cluster.node_lease_ms`, so that a session never has two live owners.
        give_up_ms: u64 = 3_000, "ms", 200..=600_000;
        /// This node's certificate and those between it and the authority, in PEM. With it every connection between
        /// nodes is encrypted (TLS 1.3), and both sides prove which node they are: the certificate has the URI
        /// `quorumq://NAME/nodes/ID` among its alternative names, with `cluster.name` and `node.id`, and is valid for
        /// servers and for clients. It is read again when it changes, and on SIGHUP.
        certificate: Option<PathBuf> = None, "";
        /// The key of `cluster.certificate`, in PEM. Other users of the machine must not be able to read it.
        key: Option<PathBuf> = None, "";
        /// Certificates of the authorities that sign nodes' certificates, in PEM. While one authority replaces another,
        /// both are in here. Nodes of one cluster should have an authority of their own.
        ca_file: Option<PathBuf> = None, "";
        /// Lists of revoked certificates, PEM, 1 MiB each at most, read again like the others: connections of a node
        /// that is on one end. With any, each certificate of a node's chain, also this one's, must be covered by its
        /// issuer's.
        crl_files: Vec<PathBuf> = Vec::new(), "";
        /// File of a secret that all nodes have, 32 bytes or more in a line, for a cluster on one machine and for
        /// tests. Nodes prove to each other that they know it when they connect. It does not encrypt, and does not tell
        /// nodes apart: whoever has it can be any node. Further lines are accepted, too, while one secret replaces
        /// another. The connections of a line that is removed end.
        secret_file: Option<PathBuf> = None, "";
        /// Whether this node may listen for other nodes on an address that other machines reach without any proof of
        /// who they are. Whoever reaches the port can then read and change everything. Named at every start.
        insecure: bool = false, "";
    }

    /// The port for MQTT 5, 3.1.1 and 3.1 clients.
    mqtt: MqttConfig {
        /// Where clients connect over TCP, with the defaults of a listener. With `[[listeners]]` the default is
        /// nowhere.
        listen: Vec<Address> = vec![Address::loopback(1883)], "";
        /// Largest packet that is read; announced in CONNACK. A larger one ends the connection with reason 0x95.
        max_packet_size_bytes: u32 = bounds::DEFAULT_MAX_PACKET_BYTES, "bytes", 128..=bounds::LARGEST_PACKET_BYTES;
        /// QoS 1 and 2 messages that a client may have in flight at once; announced in CONNACK.
        receive_maximum: u16 = 1_024, "messages", 1..=65_535;
        /// Topic aliases that a client may use; announced in CONNACK. 0 refuses aliases.
        topic_alias_maximum: u16 = 32, "aliases", 0..=65_535;
        /// Longest keep-alive that a client may ask for; a longer one, or none at all, is replaced by this. 0: no
        /// bound.
        max_keep_alive_s: u16 = 0, "s", 0..=65_535;
        /// Longest time that a session is kept after its connection ended. 4294967295: for ever.
        session_expiry_max_s: u32 = u32::MAX, "s";
        /// Connections that this node accepts; one more is refused with reason 0x97 (quota exceeded).
        max_connections: usize = 100_000, "connections", 1..=bounds::MOST_CONNECTIONS;
        /// Connections of one address (with IPv6 of a /64) whose clients have not proved who they are; one more is
        /// closed. 0, and for addresses in `auth.failures_exempt` (a balancer without the PROXY protocol): no bound.
        unfinished_per_address: usize = 4_096, "connections", 0..=bounds::MOST_CONNECTIONS;
        /// Bytes of messages that may wait in memory for one slow client. Further messages with QoS 0 are dropped and
        /// counted. For messages with QoS 1 and 2 that are not queued on disk, PUBACK and PUBREC are deferred while
        /// more than half of this waits before the message, so that publishers send no faster than the client reads.
        /// Messages that were under way before may exceed the bound, up to four times this.
        outbox_max_bytes: usize = 1_048_576, "bytes", 4_096..=1_073_741_824;
        /// How long publishers wait for a client that reads less than an eighth of `mqtt.outbox_max_bytes` in this
        /// time. After it the client is stalled: publishers do not wait for it until it has read half of its outbox,
        /// and `mqtt.outbox_full` applies. 0: publishers never wait.
        outbox_stall_s: u16 = 5, "s", 0..=3_600;
        /// What happens to messages with QoS 1 and 2 that do not fit because the client is stalled. Their publishers
        /// get the acknowledgement all the same. Only the end of the connection (reason 0x97, quota exceeded) tells the
        /// subscriber that messages are missing; therefore it is the default. `drop` drops and counts the messages, for
        /// clients that would rather miss messages than connect again. Sessions that outlive their connection have
        /// `mqtt.queue_full` instead. Who asks the state store and whose answer does not fit is disconnected in either
        /// case: there would be an acknowledgement without an answer.
        outbox_full: OutboxPolicy = OutboxPolicy::Disconnect, "";
        /// What happens when a client before MQTT 5 publishes with QoS 1 or 2 what the rules do not let it publish: its
        /// acknowledgements have no reason code. `acknowledge` acknowledges the message, drops and counts it;
        /// `disconnect` ends the connection. MQTT 5 clients get reason 0x87 (not authorized) in either case.
        refused_publish: RefusedPublish = RefusedPublish::Acknowledge, "";
        /// Sessions of the whole cluster; the CONNECT of one more client is refused with reason 0x97 (quota exceeded).
        max_sessions: u64 = 1_000_000, "sessions", 1..=u64::MAX;
        /// Subscriptions of one session; the SUBSCRIBE of one more filter is answered with reason 0x97 (quota
        /// exceeded).
        max_subscriptions: u64 = 10_000, "subscriptions", 1..=u64::MAX;
        /// Shared subscriptions of the whole cluster: pairs of a share name and a filter, however many subscribers each
        /// has. The SUBSCRIBE that would make one more gets the same answer.
        max_shared_subscriptions: u64 = 100_000, "subscriptions", 1..=u64::MAX;
        /// Bytes that the subscriptions of one session may count, since every node keeps them in memory: each the bytes
        /// of its filter, 64 for each level, and 256. The SUBSCRIBE that would exceed them is answered with reason 0x97
        /// (quota exceeded).
        max_subscription_bytes: u64 = 8_388_608, "bytes", 4_096..=u64::MAX;
        /// The same of all sessions of the cluster together; two million ordinary subscriptions take half of the
        /// default.
        subscribed_max_bytes: u64 = 2_147_483_648, "bytes", 4_096..=u64::MAX;
        /// Wildcard patterns of one session's filters: the places of `+` in a filter that has a wildcard, and in each
        /// of its beginnings. `a/+/b`, `x/+/y/#` and a thousand others of this kind have three together. They bound
        /// what looking up a topic costs. The SUBSCRIBE that needs one more is answered with reason 0x97 (quota
        /// exceeded).
        max_wildcard_patterns: u64 = 128, "patterns", 1..=u64::MAX;
        /// Those of all sessions of the cluster together that have more than ten levels, in the same way.
        deep_wildcard_patterns_max: u64 = 8_192, "patterns", 1..=u64::MAX;
        /// Levels of a topic name or topic filter. A PUBLISH to a deeper one is not delivered and answered with reason
        /// 0x90 (topic name invalid), a deeper filter with 0x8F (topic filter invalid).
        max_topic_levels: usize = 128, "levels", 1..=bounds::MOST_TOPIC_LEVELS;
        /// Bytes of a topic name or topic filter; longer ones are answered in the same way.
        max_topic_bytes: usize = 65_535, "bytes", 16..=bounds::LONGEST_TOPIC_BYTES;
        /// Messages of a session's queue that may be in flight to its client at once, unless the client's receive
        /// maximum is lower. They stay in this node's memory until they are acknowledged.
        max_inflight: u16 = 256, "messages", 1..=2_048;
        /// Messages in a session's queue, those in flight included. For a shared subscription: messages that wait for
        /// one of its subscribers.
        queue_max_messages: u64 = 100_000, "messages", 1..=u64::MAX;
        /// Bytes of topic, payload and properties in such a queue.
        queue_max_bytes: u64 = 268_435_456, "bytes", 1..=u64::MAX;
        /// Bytes of topic, payload and properties in all queues of the cluster together; one that waits in two counts
        /// twice. While there are more, messages that would be queued are refused with reason 0x97 (quota exceeded);
        /// those with QoS 0 are dropped and counted. Wills do not count.
        queued_max_bytes: u64 = 17_179_869_184, "bytes", 1..=u64::MAX;
        /// What is dropped when a queue is full. Every drop is counted.
        queue_full: QueuePolicy = QueuePolicy::DropOldest, "";
        /// Whether messages with QoS 0 are queued for durable sessions whose client is not connected; for a shared
        /// subscription, when none of its subscribers is connected.
        queue_qos_0: bool = false, "";
        /// Retained messages of the whole cluster; one more is refused (0x97), and one more will is not retained.
        retained_max: u64 = 1_000_000, "messages", 1..=u64::MAX;
        /// Time between two updates of the topics below `$SYS/`; what has not changed is not sent again. 0: never.
        sys_interval_s: u16 = 10, "s", 0..=65_535;
        /// The Response Information that a client gets when it asks for it (MQTT 5): the prefix of its response topics.
        /// `{client_id}` stands for its client identifier. Empty: none is sent.
        response_information: String = "clients/{client_id}".into(), "";
        /// Bytes of everything that this node keeps in memory for one client: what waits for it, what it has sent and
        /// waits to be handled, and what it has set up. A client is read no further before it comes to that; where
        /// reading less does not help, the connection ends with reason 0x97. 0: ten times `mqtt.outbox_max_bytes`,
        /// and at least ten times `mqtt.max_packet_size_bytes`, and at least 2 MiB.
        connection_memory_bytes: usize = 0, "bytes", 0..=bounds::MOST_MEMORY_BYTES;
        /// Largest CONNECT: it is kept in memory before its client has proved who it is.
        connect_max_bytes: u32 = 65_536, "bytes", 128..=bounds::LARGEST_PACKET_BYTES;
        /// Longest client identifier; a CONNECT with a longer one is refused with reason 0x85 (client identifier not
        /// valid). Rows of its session and events of its life have it several times, so this bounds what one client can
        /// take of what all of them share.
        max_client_id_bytes: usize = 2_048, "bytes", bounds::LEAST_CLIENT_ID_BYTES..=bounds::LONGEST_CLIENT_ID_BYTES;
        /// Connections that this node accepts per second; further ones wait in the system's queue. 0: no bound.
        connection_rate: u32 = 0, "connections/s", 0..=1_000_000;
        /// PUBLISH packets that one client may send per second, a second's worth at once. Those above it wait, and what
        /// else the client sends is handled meanwhile; with 256 KiB of them it is read no further, unless something
        /// waits for what it has to acknowledge. Nothing is dropped as long as the client is connected; one that leaves
        /// is given half a minute. 0: no bound.
        client_message_rate: u32 = 0, "messages/s", 0..=10_000_000;
        /// Bytes that one client may send per second, a second's worth at once. It is read more slowly. 0: no bound.
        client_byte_rate: u64 = 0, "bytes/s", 0..=1_000_000_000_000;
        /// Time after which a connection ends when nothing is heard of the client's machine: what was sent is not
        /// acknowledged by its TCP, or probes of an idle connection are not answered. It finds dead clients that have
        /// no keep-alive. A client that reads nothing for so long while something waits for it ends, too. 0: never.
        tcp_timeout_s: u16 = 120, "s", 0..=32_767;
        /// Longest time from the TCP connection to the end of authentication; also the longest time of a
        /// re-authentication.
        connect_timeout_s: u16 = 10, "s", 1..=600;
    }

    /// Who may connect. Without a setting here, or a listener that names its methods, everybody may.
    auth: AuthConfig {
        /// File of the users that may log in with the MQTT 5 Authentication Method SCRAM-SHA-256. With it every client
        /// must log in: another client, and every MQTT 3 client, is refused as not authorized. One line per user as
        /// `quorumq password` writes it, which is PostgreSQL's form after the name:
        /// `user:SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`. Empty lines and lines that begin with `#`
        /// are skipped. The file is read when the node starts; give every node the same file.
        scram_file: Option<PathBuf> = None, "";
        /// What of a client's certificate is its name, where a listener has the method `certificate`: `common_name`;
        /// the first `dns` name, `uri` or `email` of its alternative names; or its `fingerprint`, the SHA-256 of the
        /// certificate in lower-case hexadecimal digits. A certificate without it is refused.
        certificate_name: CertificateName = CertificateName::CommonName, "";
        /// What of its subject are the client's groups: `none`, `organization` or `organizational_unit`.
        certificate_groups: CertificateGroups = CertificateGroups::None, "";
        /// Whether its `common_name`, `organization`, `organizational_unit` and `fingerprint` are attributes of the
        /// client.
        certificate_attributes: bool = false, "";
        /// Who makes tokens, one table `[[auth.jwt]]` for each, where a listener has the method `jwt`. In the
        /// environment and on the command line: a TOML list of inline tables.
        jwt: Vec<TokenIssuer> = Vec::new(), "";
        /// URL of the service that judges clients where a listener has the method `http`. It gets a POST with
        /// `{"client_id", "user_name", "password", "address", "listener", "certificate_name"}`, `password_base64` for a
        /// password that is not UTF-8; what the client did not send is left out. It answers 200 and `{"result": "allow"
        /// | "deny" | "ignore"}`, and with `allow` what it knows: `"name"` (if it is not the user name), `"groups":
        /// ["…"]`, `"attributes": {"…": "…"}`, `"expires_at"` in seconds since 1970, when the connection ends. Over
        /// HTTPS; over HTTP to this machine only.
        http_url: String = String::new(), "";
        /// PEM file of the CAs that may vouch for the service, instead of the system's.
        http_ca_file: Option<PathBuf> = None, "";
        /// PEM file with this node's certificate for the service, and the chain that leads to its CA.
        http_certificate_file: Option<PathBuf> = None, "";
        /// PEM file with the key of that certificate.
        http_key_file: Option<PathBuf> = None, "";
        /// File with a bearer token for the service. A log-in reads it again if it has changed, at most every 2 s.
        http_token_file: Option<PathBuf> = None, "";
        /// Longest time for one answer; `mqtt.connect_timeout_s` bounds it together with everything else that the
        /// client has to do.
        http_timeout_ms: u32 = 3_000, "ms", 10..=60_000;
        /// Requests to the service at once; sixteen times as many clients may wait, half of them from one address (of
        /// IPv6: one /64 network) that is not in `auth.failures_exempt`.
        http_concurrency: u32 = 64, "requests", 1..=4_096;
        /// How long an answer `allow` holds for the same client with the same credentials from the same address. 0: it
        /// is asked each time.
        http_cache_s: u32 = 60, "s", 0..=86_400;
        /// The same for `deny` and `ignore`.
        http_cache_denied_s: u32 = 5, "s", 0..=86_400;
        /// Answers that are kept, some 200 bytes each.
        http_cache_entries: usize = 10_000, "answers", 1..=10_000_000;
        /// What becomes of a client when the service does not answer, or not as it should: `refuse`, or `ignore`, and
        /// the listener's next method decides.
        http_unavailable: WhenUnavailable = WhenUnavailable::Refuse, "";
        /// Memory of one Argon2id hash. More makes stolen hashes harder to use; every log-in with a password takes this
        /// much for some milliseconds on one of `auth.password_threads`.
        password_memory_kib: u32 = 19_456, "KiB", 8..=131_072;
        /// Passes over that memory. Memory times passes is at most 524288 KiB.
        password_passes: u32 = 2, "passes", 1..=16;
        /// Threads that hash passwords, so that no other client waits for it. 0: half of the processors.
        password_threads: usize = 0, "threads", 0..=256;
        /// Log-ins that may wait for these threads; further ones are refused with reason 0x89, Server busy. One address
        /// (of IPv6: one /64 network) has half of the places, those with the threads included, unless it is in
        /// `auth.failures_exempt`.
        password_queue: usize = 256, "log-ins", 1..=65_536;
        /// Iterations of SCRAM for users of the cluster whose password is set: what each of their clients computes at a
        /// log-in by SCRAM.
        scram_iterations: u32 = 15_000, "iterations", 4_096..=10_000_000;
        /// Whether the hash of an imported user is replaced by an Argon2id hash, and SCRAM verifiers are made, at the
        /// next log-in with the password.
        replace_hashes: bool = true, "";
        /// Failed log-ins from one address (of IPv6: one /64 network) in a window, after which it is not listened to
        /// for a while. Counted by each node for itself, as are the next ones. 0: no bound.
        failures_per_address: u32 = 50, "log-ins";
        /// The same for one user name whose password is asked for. From an address where that user has shown it to this
        /// node before, it may go on. 0: no bound.
        failures_per_user: u32 = 20, "log-ins";
        /// How long a window lasts.
        failures_window_s: u32 = 60, "s", 1..=86_400;
        /// How long an address, or a user name, is not listened to.
        failures_pause_s: u32 = 300, "s", 1..=86_400;
        /// How long the answer to the first failed log-in of a window waits; twice as long for each further one, at
        /// most four seconds.
        failure_delay_ms: u32 = 100, "ms", 0..=4_000;
        /// Addresses and networks that are not counted and not delayed, for example those of a proxy.
        failures_exempt: Vec<String> = vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()], "";
        /// Log-ins of one principal with one client id in a window, after which that client is refused for a while with
        /// reason 0x97, Quota exceeded. 0: no bound.
        flapping_connects: u32 = 0, "connects";
        /// How long that window lasts.
        flapping_window_s: u32 = 60, "s", 1..=86_400;
        /// How long such a client is refused.
        flapping_pause_s: u32 = 60, "s", 1..=86_400;
    }

    /// The replicated state store.
    store: StoreConfig {
        /// Keys in the store; a SET of one more is answered `the quota has been exceeded`.
        max_keys: u64 = 10_000_000, "keys", 1..=u64::MAX;
        /// Bytes of all keys and values together; a SET that exceeds them gets the same answer.
        max_bytes: u64 = 17_179_869_184, "bytes", 1..=u64::MAX;
        /// Keys that one client may watch at once (KEYNOTIFY); one more is answered in the same way. A key of more than
        /// 256 bytes counts as several.
        max_watches_per_client: u64 = 10_000, "keys", 1..=u64::MAX;
        /// Bytes that the watched keys of all clients of the cluster may count, since every node keeps them in memory:
        /// of each client and key the bytes of the key, and 640. One more is answered in the same way, unless it is
        /// one of the first four of its connection; a long key counts as several of them, as above.
        watched_max_bytes: u64 = 1_073_741_824, "bytes", 1..=u64::MAX;
        /// Memory for metadata (version, expiry, length of the value) of keys that were written lately: a SET or DEL of
        /// one does not read its row, unless the key has a fencing token, has expired or was deleted, or the value is
        /// compared (NEX, VDEL). Each key takes 100 to 200 bytes of it. 0: a 64th of the machine's memory, or of the
        /// control group's limit if that is lower, and 256 MiB at most. Less than 170000: no metadata are kept.
        metadata_cache_bytes: usize = 0, "bytes", 0..=bounds::MOST_METADATA_CACHE_BYTES;
        /// Keys on one page of a SCAN.
        scan_page_keys: usize = 64, "keys", 4..=bounds::MOST_SCAN_PAGE_KEYS;
    }

    /// Probes, metrics and administration. Probes and metrics are free; `/v1/…` asks for a token or a client
    /// certificate (`quorumq token`), see docs/security.md.
    http: HttpConfig {
        /// Where `/livez`, `/readyz` and `/metrics` are served, and `/v1/…`, unless that is at `http.admin_listen`.
        /// Empty: nowhere.
        listen: Option<Address> = Some(Address::loopback(8080)), "";
        /// Where `/v1/…` is served, beside `/livez` and `/readyz`; the keys about TLS are about this port then, and
        /// what is at `http.listen` is plain HTTP. Empty: at `http.listen`.
        admin_listen: Option<Address> = None, "";
        /// Names under which `/v1/…` may be asked for, beside IP addresses, `localhost` and the hosts of
        /// `cluster.members`. Requests under other names are refused, so that no web page can reach this port through
        /// its visitor's browser.
        hosts: Vec<String> = Vec::new(), "";
        /// Whether `/v1/…` asks for a token or a client certificate. `auto`: when the cluster has a token, when
        /// `http.token_file` or `http.client_scopes` is set, or when the address is not on loopback. `off` leaves it to
        /// whoever reaches the port; the log says so at every start.
        authentication: HttpAuthentication = HttpAuthentication::Auto, "";
        /// File whose first line is a token with the scope `admin`, valid at this node, of 32 characters at least: for
        /// making the first token of the cluster, and when all others are lost. Read when the node starts. Other users
        /// of the machine must not be able to read it.
        token_file: Option<PathBuf> = None, "";
        /// Certificates with their keys, PEM: with them the port speaks TLS. They are read again when they change.
        certificates: Vec<CertificatePair> = Vec::new(), "";
        /// Whether clients are asked for a certificate: `off`, `optional`, `required`.
        client_certificates: ClientCertificates = ClientCertificates::Off, "";
        /// PEM: the CAs that clients' certificates come from.
        client_ca_file: Option<PathBuf> = None, "";
        /// PEM: the lists of revoked certificates of these CAs.
        crl_files: Vec<PathBuf> = Vec::new(), "";
        /// What holders of certificates may do, by the subject's common name: `name=read`, `name=operate`,
        /// `name=admin`.
        client_scopes: Vec<NamedScope> = Vec::new(), "";
    }

    /// The log, which is written to standard error.
    log: LogConfig {
        /// Lowest level that is written. `QUORUMQ_LOG` overrides it with a filter such as `info,quorumq::raft=debug`.
        level: LogLevel = LogLevel::Info, "";
        /// Lines for people or JSON objects for machines.
        format: LogFormat = LogFormat::Text, "";
    }

    /// The audit log: log-ins, refusals and administrative changes, one JSON object per line.
    audit: AuditConfig {
        /// File that lines are appended to, created with mode 0600. It is opened again on SIGHUP, for log rotation.
        /// `-` is standard error. Empty: there is no audit log.
        file: Option<PathBuf> = None, "";
    }

    /// The reserve on the disk of `node.data_dir`. While less is free, this node refuses what would be stored (reason
    /// 0x97, or the state store's quota error), and it is not ready; reads, deletions and acknowledgements go on. So do
    /// all nodes when the cluster could not lose one more voter without it. With a quarter of the reserve left (128 MiB
    /// at least, or half of a reserve that is smaller than twice that; 512 MiB at most), the node stops.
    disk: DiskConfig {
        /// The reserve as a share of the volume: 256 MiB at least (half of a volume that is smaller than 512 MiB), and
        /// at most `disk.reserve_bytes`. 0: the disk is not watched.
        reserve_percent: u64 = 5, "%", 0..=99;
        /// The most that is reserved, whatever the volume's size.
        reserve_bytes: u64 = 2_147_483_648, "bytes", 0..=u64::MAX;
    }

    /// Replication: what the log keeps.
    raft: RaftConfig {
        /// Bytes written to the log since the last snapshot after which the next one is built.
        snapshot_log_bytes: u64 = 268_435_456, "bytes", 1_048_576..=u64::MAX;
        /// Age that log entries must have before a snapshot removes them: a node that was away for less catches up from
        /// the log.
        keep_log_s: u64 = 600, "s", 0..=604_800;
        /// Time between two comparisons of the nodes' states. Each node hashes its rows as they are after the same log
        /// entry, at 64 MiB/s at most; one that differs from a majority stops. A tenth of it suffices after a
        /// snapshot, or ten times as long as the last comparison took where that is longer. Nothing happens while
        /// nothing is written. 0: only on request (`quorumq cluster verify`).
        state_hash_interval_s: u64 = 600, "s", 0..=604_800;
    }

    /// Resources of the machine.
    runtime: RuntimeConfig {
        /// Threads that serve connections; replication has one of its own, and HTTP two. 0: one per core.
        worker_threads: usize = 0, "threads", 0..=bounds::MOST_WORKER_THREADS;
        /// Memory for clients: what waits for them, and what they have sent and waits to be handled. When it is used
        /// up, new connections are refused with reason 0x97 (quota exceeded), and those that have the most of it end
        /// with the same reason. A quarter of it is for clients whose handshake is not done, so that they can't use up
        /// that of others. 0: a quarter of the machine's memory, or of the control group's limit if that is lower.
        client_memory_bytes: usize = 0, "bytes", 0..=bounds::MOST_MEMORY_BYTES;
    }

    /// What happens on SIGTERM and Ctrl-C.
    shutdown: ShutdownConfig {
        /// Longest time to disconnect the clients and to hand over leadership before the process ends.
        drain_s: u64 = 10, "s", 0..=3_600;
    }
}
