//! The keys of a listener, one table of `[[listeners]]` each: name, type, default, unit, range and meaning.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::Serialize;
use toml::de::DeValue;

use super::setting::{
    Address, AuthenticationMethod, CertificatePair, ClientCertificates, FileMode, Input,
    ListenAddress, Setting, SettingError, Transport, in_range,
};

/// The name of the listeners that `mqtt.listen` makes.
pub const DEFAULT_LISTENER: &str = "default";

/// One key of a listener, as the loader and the reference page see it.
pub struct ListenerKey {
    /// Its name in the table.
    pub name: &'static str,
    /// What it means and when to change it.
    pub doc: &'static str,
    /// Unit of a number, empty for everything else.
    pub unit: &'static str,
    /// The kind of value.
    pub kind: &'static str,
    /// Smallest and largest number that is accepted.
    pub range: Option<RangeInclusive<u64>>,
    pub(super) set: fn(&mut Listener, &Input<'_>) -> Result<(), SettingError>,
    pub(super) show: fn(&Listener) -> String,
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! listener {
    ($(
        $(#[doc = $doc:literal])+
        $key:ident: $type:ty = $default:expr, $unit:literal $(, $range:expr)?;
    )+) => {
        /// A place where clients connect, and what holds for those that do.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub struct Listener {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl Default for Listener {
            fn default() -> Self {
                Listener { $($key: $default,)+ }
            }
        }

        /// Every key of a listener, in the order of the reference page.
        pub fn listener_keys() -> Vec<ListenerKey> {
            vec![$(
                ListenerKey {
                    name: stringify!($key),
                    doc: concat!($($doc, "\n"),+),
                    unit: $unit,
                    kind: <$type as Setting>::KIND,
                    range: optional!($($range)?),
                    set: |listener, input| {
                        let range: Option<RangeInclusive<u64>> = optional!($($range)?);
                        listener.$key = in_range(<$type as Setting>::read(input)?, range.as_ref())?;
                        Ok(())
                    },
                    show: |listener| Setting::show(&listener.$key),
                },
            )+]
        }
    };
}

listener! {
    /// What the log, the rules and the limits call it: 1 to 64 letters, digits, dots, dashes or underscores. The
    /// listeners that `mqtt.listen` makes are called `default`.
    name: String = String::new(), "";
    /// Where clients connect: `host:port`, or `unix:/path` for a socket in the file system.
    address: ListenAddress = "127.0.0.1:1883".parse().expect("a valid address"), "";
    /// What carries MQTT: `tcp`, `tls`, `ws` (WebSocket) or `wss` (WebSocket over TLS).
    transport: Transport = Transport::Tcp, "";
    /// Whether a PROXY header (version 1 or 2) comes before everything else on each connection. The address that it
    /// tells is then the client's. A connection without one is closed; so only a load balancer may reach the listener.
    proxy_protocol: bool = false, "";
    /// Who may connect to a Unix socket: the permissions of its file, in octal digits.
    unix_mode: FileMode = FileMode(0o660), "";
    /// Certificates and keys of TLS, PEM files. A client that names a server (SNI) gets the first one that is valid for
    /// this name, any other client the first of all. They are read again when a file changes, and on SIGHUP.
    certificates: Vec<CertificatePair> = Vec::new(), "";
    /// Whether clients show a certificate: `off`, `optional` or `required`.
    client_certificates: ClientCertificates = ClientCertificates::Off, "";
    /// PEM file of the CAs whose client certificates are accepted.
    client_ca_file: Option<PathBuf> = None, "";
    /// PEM files of certificate revocation lists. With any, each certificate of a client's chain must be covered by a
    /// list of its issuer.
    crl_files: Vec<PathBuf> = Vec::new(), "";
    /// Path of a WebSocket's URL; `/` alone is another path.
    websocket_path: String = "/mqtt".into(), "";
    /// Origins of web pages that may connect (`https://example.org`); `*` allows all. Empty: pages of the host that
    /// they connect to. A client that is no browser sends no origin, and is not judged by it.
    websocket_origins: Vec<String> = Vec::new(), "";
    /// Ways to show who a client is, tried in this order: `anonymous`, `certificate`, `password`, `scram`, `jwt`,
    /// `http`. Empty: `scram` if there is an `auth.scram_file`, else `anonymous`.
    authentication: Vec<AuthenticationMethod> = Vec::new(), "";
    /// Connections of this listener; one more is refused with reason 0x97 (quota exceeded). 0: only
    /// `mqtt.max_connections` bounds them.
    max_connections: usize = 0, "connections", 0..=super::bounds::MOST_CONNECTIONS;
    /// Connections that this listener accepts per second; further ones wait in the system's queue. 0: only
    /// `mqtt.connection_rate` bounds them.
    connection_rate: u32 = 0, "connections/s", 0..=1_000_000;
    /// PUBLISH packets that one client of this listener may send per second. 0: only `mqtt.client_message_rate` and the
    /// rules bound them; otherwise the lowest counts.
    client_message_rate: u32 = 0, "messages/s", 0..=10_000_000;
    /// Bytes that one client of this listener may send per second. 0: only `mqtt.client_byte_rate` and the rules bound
    /// them; otherwise the lowest counts.
    client_byte_rate: u64 = 0, "bytes/s", 0..=1_000_000_000_000;
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

    fn from_toml(value: &DeValue<'_>) -> Result<Listener, SettingError> {
        let expected = "{ name = \"…\", address = \"host:port\", … }";
        let DeValue::Table(table) = value else {
            return Err(SettingError::unexpected(expected, &Input::Toml(value)));
        };
        let keys = listener_keys();
        let mut listener = Listener::default();
        for (name, value) in table.iter() {
            let name = name.get_ref().as_ref();
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                let found = format!("the key {name:?}");
                return Err(SettingError::Unexpected { expected, found });
            };
            (key.set)(&mut listener, &Input::Toml(value.get_ref()))?;
        }
        Ok(listener)
    }
}

impl Setting for Vec<Listener> {
    const KIND: &'static str = "list of tables";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        super::setting::items(input, Listener::from_toml)
    }

    fn show(&self) -> String {
        let default = Listener::default();
        let tables: Vec<_> = self
            .iter()
            .map(|listener| {
                let keys = listener_keys().into_iter();
                let shown = keys.filter_map(|key| {
                    let value = (key.show)(listener);
                    (value != (key.show)(&default)).then(|| format!("{} = {value}", key.name))
                });
                format!("{{ {} }}", shown.collect::<Vec<_>>().join(", "))
            })
            .collect();
        format!("[{}]", tables.join(", "))
    }
}
