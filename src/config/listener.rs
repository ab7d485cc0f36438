//! The keys of a listener, one table of `[[listeners]]` each: name, type, default, unit, range and meaning.

use std::path::PathBuf;

use super::setting::{
    Address, AuthenticationMethod, CertificatePair, ClientCertificates, FileMode, ListenAddress,
    Transport,
};
use super::table::table;

/// The name of the listeners that `mqtt.listen` makes.
pub const DEFAULT_LISTENER: &str = "default";

/// Path of a WebSocket's URL where nothing else is said.
const DEFAULT_PATH: &str = "/mqtt";

/// Permissions of a Unix socket's file where nothing else is said.
const DEFAULT_MODE: FileMode = FileMode(0o660);

table! {
    /// A place where clients connect, and what holds for those that do.
    Listener, "{ name = \"…\", address = \"host:port\", … }", {
        /// What the log, the rules and the limits call it: 1 to 64 letters, digits, dots, dashes or underscores. The
        /// listeners that `mqtt.listen` makes are called `default`.
        name: String = String::new(), "";
        /// Where clients connect: `host:port`, or `unix:/path` for a socket in the file system.
        address: ListenAddress = "127.0.0.1:1883".parse().expect("a valid address"), "";
        /// What carries MQTT: `tcp`, `tls`, `ws` (WebSocket) or `wss` (WebSocket over TLS).
        transport: Transport = Transport::Tcp, "";
        /// Whether a PROXY header (version 1 or 2) comes before everything else on each connection. The address that it
        /// tells is then the client's. A connection without one is closed; so only a load balancer may reach the
        /// listener.
        proxy_protocol: bool = false, "";
        /// Who may connect to a Unix socket: the permissions of its file, in octal digits. Empty: `0660`. An address
        /// that is no file has none.
        unix_mode: Option<FileMode> = None, "";
        /// Certificates and keys of TLS, PEM files. A client that names a server (SNI) gets the first one that is valid
        /// for this name, any other client the first of all. They are read again when a file changes, and on SIGHUP.
        certificates: Vec<CertificatePair> = Vec::new(), "";
        /// Whether clients show a certificate: `off`, `optional` or `required`.
        client_certificates: ClientCertificates = ClientCertificates::Off, "";
        /// PEM file of the CAs whose client certificates are accepted.
        client_ca_file: Option<PathBuf> = None, "";
        /// PEM files of certificate revocation lists. With any, each certificate of a client's chain must be covered by
        /// a list of its issuer.
        crl_files: Vec<PathBuf> = Vec::new(), "";
        /// Path of a WebSocket's URL; `/` alone is another path. Empty: `/mqtt`. Other transports have none.
        websocket_path: String = String::new(), "";
        /// Origins of web pages that may connect (`https://example.org`); `*` allows all. Empty: pages of the host that
        /// they connect to; without TLS only if that is an IP address or `localhost`, because whoever owns a name can
        /// have it point to this node. A client that is no browser sends no origin, and is not judged by it.
        websocket_origins: Vec<String> = Vec::new(), "";
        /// Ways to show who a client is, tried in this order: `certificate`, `password`, `scram`, `jwt`, `http`, and
        /// `anonymous`, which lets everybody in and so comes last. Empty: `password` and `scram`; without an
        /// `auth.scram_file` everybody is let in as long as the cluster has no user.
        authentication: Vec<AuthenticationMethod> = Vec::new(), "";
        /// Connections of this listener; one more is refused with reason 0x97 (quota exceeded). 0: only
        /// `mqtt.max_connections` bounds them.
        max_connections: usize = 0, "connections", 0..=super::bounds::MOST_CONNECTIONS;
        /// Connections that this listener accepts per second; further ones wait in the system's queue. 0: only
        /// `mqtt.connection_rate` bounds them.
        connection_rate: u32 = 0, "connections/s", 0..=1_000_000;
        /// PUBLISH packets that one client of this listener may send per second. 0: only `mqtt.client_message_rate` and
        /// the rules bound them; otherwise the lowest counts.
        client_message_rate: u32 = 0, "messages/s", 0..=10_000_000;
        /// Bytes that one client of this listener may send per second. 0: only `mqtt.client_byte_rate` and the rules
        /// bound them; otherwise the lowest counts.
        client_byte_rate: u64 = 0, "bytes/s", 0..=1_000_000_000_000;
        /// PUBLISH packets that one client of this listener is sent per second; further ones wait as for a slow client.
        /// 0: only the rules bound them; otherwise the lower one counts.
        delivery_message_rate: u32 = 0, "messages/s", 0..=10_000_000;
        /// Bytes that one client of this listener is sent per second. 0: only the rules bound them; otherwise the lower
        /// one counts.
        delivery_byte_rate: u64 = 0, "bytes/s", 0..=1_000_000_000_000;
        /// Largest packet that is read from a client of this listener, its CONNECT included; announced in CONNACK. A
        /// larger one ends the connection with reason 0x95. 0: no bound of its own. This and the following bounds only
        /// lower what `mqtt` and the rules say.
        max_packet_size_bytes: u32 = 0, "bytes", 0..=super::bounds::LARGEST_PACKET_BYTES;
        /// The highest QoS that a client may publish with: 0, 1 or 2; announced in CONNACK. A message, or a will, with
        /// a higher one ends the connection with reason 0x9B (QoS not supported). Subscriptions may have every QoS.
        max_qos: u16 = 2, "", 0..=2;
        /// Whether a client may have messages retained; announced in CONNACK. A retained message, or will, ends the
        /// connection with reason 0x9A (retain not supported) where it may not.
        retain: bool = true, "";
        /// Longest time that a session is kept after its connection ended; announced in CONNACK where a client asks for
        /// more. 0: sessions end with their connections. 4294967295: no bound of its own. Devices and modules of the
        /// hub are not bounded by it.
        session_expiry_max_s: u32 = u32::MAX, "s";
        /// Longest keep-alive that a client may ask for; a longer one, or none at all, is replaced by this; announced
        /// in CONNACK. 0: no bound of its own.
        max_keep_alive_s: u16 = 0, "s", 0..=65_535;
        /// QoS 1 and 2 messages that a client may have in flight at once; announced in CONNACK. 0: no bound of its own.
        receive_maximum: u16 = 0, "messages", 0..=65_535;
        /// Messages of a session's queue that may be in flight to its client at once. 0: no bound of its own.
        max_inflight: u16 = 0, "messages", 0..=2_048;
        /// Sessions that a principal may have in the cluster: while it has as many, its clients open no further one at
        /// this listener (0x97, quota exceeded). Clients without a name are one principal. 0: no bound of its own.
        max_sessions: u64 = 0, "sessions", 0..=u64::MAX;
        /// Subscriptions of one session; the SUBSCRIBE of one more filter is answered with reason 0x97 (quota
        /// exceeded). 0: no bound of its own.
        max_subscriptions: u64 = 0, "subscriptions", 0..=u64::MAX;
        /// Bytes of topic, payload and properties in a session's queue, from the CONNECT at this listener on. 0: no
        /// bound of its own.
        queue_max_bytes: u64 = 0, "bytes", 0..=u64::MAX;
    }
}

impl Listener {
    /// The listener that an address of `mqtt.listen` makes.
    pub fn of_address(address: Address) -> Listener {
        Listener {
            name: DEFAULT_LISTENER.to_owned(),
            address: ListenAddress::Tcp(address),
            ..Listener::default()
        }
    }

    /// The permissions of a Unix socket's file.
    pub fn file_mode(&self) -> FileMode {
        self.unix_mode.unwrap_or(DEFAULT_MODE)
    }

    /// The path of a WebSocket's URL.
    pub fn url_path(&self) -> &str {
        match self.websocket_path.as_str() {
            "" => DEFAULT_PATH,
            path => path,
        }
    }
}
