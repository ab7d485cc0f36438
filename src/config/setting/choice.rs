//! Settings that are one of a few words.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::read::{Input, Setting, SettingError, quote, strings, text};

/// Defines an enum whose variants are written as fixed words, with its [`Setting`].
macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $kind:literal, { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum $type {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),*
        }

        impl $type {
            /// The word that stands for this value.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word),*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = SettingError;

            fn from_str(text: &str) -> Result<Self, SettingError> {
                match text {
                    $($word => Ok($type::$variant),)*
                    other => Err(SettingError::unexpected($kind, &Input::Text(other))),
                }
            }
        }

        strings!($type, $kind);
    };
}

words!(
    /// The lowest level of the log lines that are written.
    LogLevel, "error, warn, info, debug or trace", {
        /// Data or service is lost, or about to be lost.
        Error = "error",
        /// An operator should look at it.
        Warn = "warn",
        /// Changes of the node's and the cluster's state.
        Info = "info",
        /// Every connection, and why it was treated as it was.
        Debug = "debug",
        /// Every packet.
        Trace = "trace",
    }
);

words!(
    /// How log lines are written.
    LogFormat, "text or json", {
        /// One line for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
);

words!(
    /// What is dropped when a session's queue is full.
    QueuePolicy, "drop_oldest, drop_newest or end_session", {
        /// The oldest messages that were not sent yet.
        DropOldest = "drop_oldest",
        /// The new message.
        DropNewest = "drop_newest",
        /// The session, with its connection.
        EndSession = "end_session",
    }
);

words!(
    /// What a client before MQTT 5 is told of a message with QoS 1 or 2 that it may not publish.
    RefusedPublish, "acknowledge or disconnect", {
        /// Nothing: the message is acknowledged and dropped.
        Acknowledge = "acknowledge",
        /// Its connection ends.
        Disconnect = "disconnect",
    }
);

words!(
    /// What happens to messages with QoS 1 and 2 that do not fit into a client's outbox.
    OutboxPolicy, "drop or disconnect", {
        /// They are dropped.
        Drop = "drop",
        /// The connection ends.
        Disconnect = "disconnect",
    }
);

words!(
    /// What carries MQTT on a listener.
    Transport, "tcp, tls, ws or wss", {
        /// The bytes as they are.
        Tcp = "tcp",
        /// TLS.
        Tls = "tls",
        /// WebSocket.
        Ws = "ws",
        /// WebSocket over TLS.
        Wss = "wss",
    }
);

impl Transport {
    /// Whether it is encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, Transport::Tls | Transport::Wss)
    }

    /// Whether it has WebSocket frames.
    pub fn is_websocket(self) -> bool {
        matches!(self, Transport::Ws | Transport::Wss)
    }
}

words!(
    /// Whether a TLS client shows a certificate.
    ClientCertificates, "off, optional or required", {
        /// It is not asked for one.
        Off = "off",
        /// It is asked; one that it shows must be valid.
        Optional = "optional",
        /// Without a valid one there is no connection.
        Required = "required",
    }
);

words!(
    /// A way to show who a client is.
    AuthenticationMethod, "anonymous, certificate, password, scram, jwt or http", {
        /// Everybody is let in, as nobody in particular.
        Anonymous = "anonymous",
        /// The certificate of the client's TLS.
        Certificate = "certificate",
        /// User name and password of CONNECT.
        Password = "password",
        /// The challenge and response of SCRAM, in AUTH packets.
        Scram = "scram",
        /// A signed token.
        Jwt = "jwt",
        /// An HTTP server is asked.
        Http = "http",
    }
);

impl Setting for Vec<AuthenticationMethod> {
    const KIND: &'static str = "list of anonymous, certificate, password, scram, jwt, http";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let words: Vec<String> = Setting::read(input)?;
        words.iter().map(|word| word.parse()).collect()
    }

    fn show(&self) -> String {
        let words: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", words.join(", "))
    }
}

words!(
    /// Where a token may be.
    TokenUse, "password, JWT or K8S-SAT", {
        /// In the password of CONNECT.
        Password = "password",
        /// In the data of the Authentication Method `JWT`.
        Jwt = "JWT",
        /// In the data of the Authentication Method `K8S-SAT`.
        K8sSat = "K8S-SAT",
    }
);

impl Setting for Vec<TokenUse> {
    const KIND: &'static str = "list of password, JWT, K8S-SAT";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let words: Vec<String> = Setting::read(input)?;
        words.iter().map(|word| word.parse()).collect()
    }

    fn show(&self) -> String {
        let words: Vec<_> = self.iter().map(Setting::show).collect();
        format!("[{}]", words.join(", "))
    }
}

words!(
    /// What of a client's certificate is its name.
    CertificateName, "common_name, dns, uri, email or fingerprint", {
        /// The subject's common name.
        CommonName = "common_name",
        /// The first DNS name.
        Dns = "dns",
        /// The first URI.
        Uri = "uri",
        /// The first e-mail address.
        Email = "email",
        /// The SHA-256 of the certificate.
        Fingerprint = "fingerprint",
    }
);

words!(
    /// When `/v1` asks who is there.
    HttpAuthentication, "auto, required or off", {
        /// When there is a way to prove it (a token, or client certificates with scopes), or the address is not on
        /// loopback.
        Auto = "auto",
        /// Always.
        Required = "required",
        /// Never.
        Off = "off",
    }
);

words!(
    /// What of a client's certificate are its groups.
    CertificateGroups, "none, organization or organizational_unit", {
        /// Nothing.
        None = "none",
        /// The subject's organizations.
        Organization = "organization",
        /// The subject's organizational units.
        OrganizationalUnit = "organizational_unit",
    }
);

words!(
    /// What becomes of a client when the service that judges it can't be asked.
    WhenUnavailable, "refuse or ignore", {
        /// It is refused.
        Refuse = "refuse",
        /// The next method of the listener decides.
        Ignore = "ignore",
    }
);

words!(
    /// What somebody may do over HTTP. A higher scope includes the lower ones.
    Scope, "read, operate or admin", {
        /// Look.
        Read = "read",
        /// End connections and sessions, ban, hand leadership over.
        Operate = "operate",
        /// Change members, users, rules and tokens.
        Admin = "admin",
    }
);
