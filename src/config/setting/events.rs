//! Settings of event subscriptions that are one of a few words. What the words mean is in [`crate::events::options`].

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::read::{Input, Setting, SettingError, quote, strings, text};
use crate::events::options::{Handshake, Mode, Schema};

macro_rules! words {
    ($($type:ident = $of:ident, $kind:literal;)+) => {$(
        #[doc = concat!("[`crate::events::options::", stringify!($of), "`].")]
        pub type $type = $of;

        impl Serialize for $of {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl fmt::Display for $of {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $of {
            type Err = SettingError;

            fn from_str(text: &str) -> Result<Self, SettingError> {
                let wrong = || SettingError::unexpected($kind, &Input::Text(text));
                $of::parse(text).ok_or_else(wrong)
            }
        }

        strings!($of, $kind);
    )+};
}

words! {
    EventSchema = Schema, "cloudevents or eventgrid";
    EventMode = Mode, "batch, structured or binary";
    EventHandshake = Handshake, "required or off";
}
