//! The command line of `quorumq bench`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use quorumq::cli::output::Format;
use quorumq::codec::Version;
use quorumq::config::Address;

/// Generate load and measure it; also drives other MQTT brokers.
#[derive(Parser)]
#[command(
    name = "quorumq-bench",
    bin_name = "quorumq bench",
    version,
    max_term_width = 110,
    propagate_version = true
)]
pub struct Bench {
    /// How results are written.
    #[arg(short, long, value_enum, global = true, default_value_t)]
    pub output: Format,

    /// MQTT servers, comma separated or repeated; clients are spread over them.
    #[arg(
        global = true,
        short,
        long = "server",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        env = "QUORUMQ_SERVER",
        default_value = "127.0.0.1:1883"
    )]
    pub servers: Vec<Address>,

    /// Measured time of each run, in seconds.
    #[arg(
        global = true,
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 5.0
    )]
    pub duration: f64,

    /// Time before it in which nothing is measured, in seconds.
    #[arg(
        global = true,
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 1.0
    )]
    pub warmup: f64,

    /// Process ids of the servers, to report their CPU time and memory. Repeatable.
    #[arg(global = true, long, value_name = "PID", value_delimiter = ',')]
    pub pid: Vec<u32>,

    /// Connections being opened at the same time. Some brokers refuse subscriptions when it is many.
    #[arg(global = true, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub opening: u32,

    /// Speak TLS with servers whose certificates name their IP address and come from the CA of this PEM file.
    #[arg(global = true, long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// Make each TLS connection by a full handshake instead of resuming a session.
    #[arg(global = true, long, requires = "ca_file")]
    pub no_resumption: bool,

    /// Speak MQTT over WebSocket, with --ca-file over TLS.
    #[arg(global = true, long)]
    pub ws: bool,

    /// What to measure.
    #[command(subcommand)]
    pub mode: Mode,
}

/// Flags of the state store modes.
#[derive(Args, Clone)]
pub struct KvArgs {
    /// Numbers of clients, each a run of its own.
    #[arg(
        short = 'C',
        long,
        value_delimiter = ',',
        default_value = "1,16,64,256"
    )]
    pub clients: Vec<usize>,

    /// Bytes of a value.
    #[arg(long, default_value_t = 256)]
    pub value_bytes: usize,

    /// Keys of each client.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,

    /// QoS at which answers are subscribed to; real clients use 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub response_qos: u8,
}

/// Protocol version.
#[derive(Clone, Copy, ValueEnum)]
pub enum Protocol {
    /// MQTT 3.1.1
    #[value(name = "3.1.1")]
    V311,
    /// MQTT 5
    #[value(name = "5")]
    V5,
}

impl Protocol {
    /// The codec's name of the version.
    pub fn version(self) -> Version {
        match self {
            Protocol::V311 => Version::V311,
            Protocol::V5 => Version::V5,
        }
    }
}

/// Who publishes to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topology {
    /// Publisher i to subscriber i.
    OneToOne,
    /// Every publisher to every subscriber over one topic.
    FanOut,
    /// Every publisher to its own topic, every subscriber to all of them by a wildcard.
    FanIn,
    /// Filters with wildcards, shared out to the subscribers; every message matches one of them, each in turn.
    Wildcards,
}

/// Flags of `mqtt`.
#[derive(Args, Clone)]
pub struct MqttArgs {
    /// Publishers.
    #[arg(short = 'P', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub publishers: u32,

    /// Subscribers.
    #[arg(short = 'S', long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub subscribers: u32,

    /// Quality of service; several make a run each.
    #[arg(short, long, value_delimiter = ',', default_value = "0,1", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: Vec<u8>,

    /// Unacknowledged messages of one publisher (QoS 1 and 2).
    #[arg(short = 'W', long, default_value_t = 16)]
    pub window: u64,

    /// Messages of one publisher that its subscribers may not have got yet.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub lag: u64,

    /// Bytes of a payload.
    #[arg(short, long, default_value_t = 64)]
    pub payload_bytes: usize,

    /// Who publishes to whom.
    #[arg(short, long, value_enum, default_value = "one-to-one")]
    pub topology: Topology,

    /// Filters of all subscribers together (topology wildcards).
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub filters: u32,

    /// Protocol version.
    #[arg(long, value_enum, default_value = "5")]
    pub protocol: Protocol,

    /// Give the subscribers durable sessions.
    #[arg(long)]
    pub durable: bool,
}

/// Flags of `backlog`.
#[derive(Args, Clone)]
pub struct BacklogArgs {
    /// Messages; each session gets all of them.
    #[arg(short = 'N', long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: u64,

    /// Sessions that wait for them.
    #[arg(short = 'S', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sessions: u32,

    /// Bytes of a payload; they are random, so that nobody compresses them.
    #[arg(short, long, default_value_t = 64)]
    pub payload_bytes: usize,

    /// Unacknowledged messages of each of the 8 publishers.
    #[arg(short = 'W', long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub window: u64,

    /// Leave the backlog where it is.
    #[arg(long)]
    pub no_drain: bool,

    /// Protocol version.
    #[arg(long, value_enum, default_value = "5")]
    pub protocol: Protocol,
}

/// Flags of `connect`.
#[derive(Args, Clone)]
pub struct ConnectArgs {
    /// Connections that are being made at the same time.
    #[arg(short = 'C', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,

    /// Protocol version.
    #[arg(long, value_enum, default_value = "5")]
    pub protocol: Protocol,

    /// Give each a durable session with one QoS 1 subscription.
    #[arg(long)]
    pub durable: bool,

    /// User name to log in with. The password is in --password-file, or in QUORUMQ_PASSWORD.
    #[arg(long, env = "QUORUMQ_USERNAME", hide_env_values = true)]
    pub username: Option<String>,

    /// File whose first line is the password.
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORUMQ_PASSWORD_FILE",
        requires = "username"
    )]
    pub password_file: Option<PathBuf>,

    /// Shake hands with TLS 1.3 and do no more: no CONNECT is sent.
    #[arg(long, requires = "ca_file", conflicts_with_all = ["durable", "username", "pingers", "ws"])]
    pub handshakes: bool,

    /// Most connections in a second beside clients that send PINGREQ; without it, as many as there can be.
    #[arg(long, requires = "pingers", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connects: Option<u32>,

    /// Clients beside them that send PINGREQ all the time, for as long again before the connects, too.
    #[arg(long, default_value_t = 0)]
    pub pingers: u32,

    /// Between two PINGREQ of one of them, in milliseconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub ping_interval_ms: u64,
}

/// What is asked of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TwinWork {
    /// Devices report a property, over MQTT.
    Patch,
    /// Devices read their twins, over MQTT.
    Get,
    /// The back end reads twins, over HTTP.
    HttpGet,
    /// The back end changes a desired property; latencies are those of the device's notification.
    Desired,
    /// The back end makes devices.
    Create,
}

/// Flags of `twin`.
#[derive(Args, Clone)]
pub struct TwinArgs {
    /// What is asked; several make a run each, for each number of clients.
    #[arg(value_enum, required = true, value_delimiter = ',')]
    pub work: Vec<TwinWork>,

    /// Numbers of devices, each with one request under way.
    #[arg(short = 'C', long, value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: Vec<u32>,

    /// Bytes of a property's value.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(16..=4096))]
    pub value_bytes: u32,

    /// The hub.
    #[command(flatten)]
    pub hub: HubArgs,
}

/// Flags of whoever is a back end of a hub.
#[derive(Args, Clone)]
pub struct HubArgs {
    /// Where nodes have the API of the back ends, without TLS (hub.allow_plaintext).
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        env = "QUORUMQ_HUB",
        default_value = "127.0.0.1:8443"
    )]
    pub hub: Vec<Address>,

    /// Name of the hub, one of hub.host_names.
    #[arg(
        long,
        value_name = "NAME",
        env = "QUORUMQ_HUB_NAME",
        default_value = "localhost"
    )]
    pub host_name: String,

    /// Shared access policy of the back end.
    #[arg(
        long,
        value_name = "POLICY",
        env = "QUORUMQ_HUB_POLICY",
        default_value = "iothubowner"
    )]
    pub policy: String,

    /// File whose first line is the policy's key.
    #[arg(long, value_name = "FILE", env = "QUORUMQ_HUB_KEY_FILE")]
    pub policy_key_file: PathBuf,
}

/// Flags of `fleet`.
#[derive(Args, Clone)]
pub struct FleetArgs {
    /// Devices, each with tags and a desired property. They stay behind.
    #[arg(short = 'N', long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub devices: u64,

    /// Requests under way while they are made.
    #[arg(short = 'C', long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,

    /// Devices that connect in the end, and observe their desired properties.
    #[arg(long, default_value_t = 1000)]
    pub observers: u32,

    /// Bytes of the desired property of each.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub value_bytes: u32,

    /// The hub.
    #[command(flatten)]
    pub hub: HubArgs,
}

/// Flags of `events`.
#[derive(Args, Clone)]
pub struct EventArgs {
    /// HTTP port of a node that takes event subscriptions without a token.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub http: Address,

    /// Connections that are being made at the same time.
    #[arg(short = 'C', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,

    /// Most events of a request.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub batch: u32,

    /// Connections in a second where they come at a steady rate, without and with events recorded.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connects: u32,

    /// Events in a second while their lag is measured; each connection makes two.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    pub rate: u32,
}

/// Flags of `events-outage`.
#[derive(Args, Clone)]
pub struct OutageArgs {
    /// HTTP port of a node that takes event subscriptions without a token.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub http: Address,

    /// Events that are recorded while the endpoint is away; the default is a day at ten in a second.
    #[arg(short = 'N', long, default_value_t = 864_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub events: u64,

    /// Connections that are being made at the same time.
    #[arg(short = 'C', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,
}

/// Flags of `events-death`.
#[derive(Args, Clone)]
pub struct DeathArgs {
    /// HTTP port of a node that stays, and takes event subscriptions without a token.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    pub http: Address,

    /// The MQTT port of the node that is killed.
    #[arg(long, value_name = "HOST:PORT")]
    pub victim: Address,

    /// Its process.
    #[arg(long, value_name = "PID")]
    pub kill: u32,

    /// Clients of that node.
    #[arg(short = 'N', long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub clients: u32,

    /// Clients of the other nodes, each of which publishes ten times in a second.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub others: u32,
}

/// What to measure.
#[derive(Subcommand)]
pub enum Mode {
    /// SET from C clients, one request each under way.
    KvSet(KvArgs),
    /// GET of existing keys.
    KvGet(KvArgs),
    /// SET and GET in turn.
    KvMixed(KvArgs),
    /// Publishers to subscribers.
    Mqtt(MqttArgs),
    /// Connect and disconnect, C at a time.
    Connect(ConnectArgs),
    /// Devices of the hub that read and write their twins, and their back end. The run registers its devices.
    Twin(TwinArgs),
    /// Make many devices with twins, query them, and connect some.
    Fleet(FleetArgs),
    /// Connect and disconnect without and with events recorded, then have the events delivered to a local webhook.
    Events(EventArgs),
    /// Have as many events recorded as come in a day while their endpoint is away, then drain them.
    EventsOutage(OutageArgs),
    /// Kill a node that has many clients, and wait until their endpoint was told of all of them.
    EventsDeath(DeathArgs),
    /// Fill the queues of durable sessions whose clients are away, then drain them.
    Backlog(BacklogArgs),
    /// Open idle connections and report what each costs the servers named by --pid.
    Idle {
        /// Connections.
        #[arg(short = 'N', long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
        connections: u32,
        /// Subscribe each to a topic of its own.
        #[arg(long)]
        subscribe: bool,
        /// Seconds to wait before the memory is read.
        #[arg(long, default_value_t = 2.0)]
        settle: f64,
        /// Protocol version.
        #[arg(long, value_enum, default_value = "5")]
        protocol: Protocol,
    },
    /// SET without pause from clients that survive lost servers; reports the longest time without an acknowledgement.
    Failover {
        /// Clients.
        #[arg(short = 'C', long, default_value_t = 16)]
        clients: usize,
        /// Bytes of a value.
        #[arg(long, default_value_t = 256)]
        value_bytes: usize,
        /// Milliseconds without an answer after which a client tries the next server.
        #[arg(long, default_value_t = 2000)]
        silence_ms: u64,
    },
}
