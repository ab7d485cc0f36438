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
    /// What happens to messages with QoS 1 and 2 that do not fit into a client's outbox.
    OutboxPolicy, "drop or disconnect", {
        /// They are dropped.
        Drop = "drop",
        /// The connection ends.
        Disconnect = "disconnect",
    }
);
