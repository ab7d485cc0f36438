//! Where clients connect: an address of the network, or a socket in the file system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use super::address::Address;
use super::read::{Input, Setting, SettingError, quote, strings, text};

/// What a Unix socket's path is written behind.
const UNIX: &str = "unix:";

/// Longest path of a Unix socket, bytes: the system has 108, its terminating zero included.
const LONGEST_PATH_BYTES: usize = 107;

/// A TCP address, or the path of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum ListenAddress {
    /// `host:port`.
    Tcp(Address),
    /// `unix:/path`.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The TCP address, if it is one.
    pub fn tcp(&self) -> Option<&Address> {
        match self {
            ListenAddress::Tcp(address) => Some(address),
            ListenAddress::Unix(_) => None,
        }
    }

    /// The path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ListenAddress::Tcp(_) => None,
            ListenAddress::Unix(path) => Some(path),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let Some(path) = text.strip_prefix(UNIX) else {
            return text.parse().map(ListenAddress::Tcp);
        };
        let wrong = |why: &str| SettingError::Malformed {
            expected: "unix:/path",
            found: text.to_owned(),
            why: why.to_owned(),
        };
        if !path.starts_with('/') {
            return Err(wrong("the path is not absolute"));
        }
        if path.len() > LONGEST_PATH_BYTES || path.contains('\0') {
            return Err(wrong("the path is longer than a socket's may be"));
        }
        Ok(ListenAddress::Unix(path.into()))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => address.fmt(f),
            ListenAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl From<ListenAddress> for String {
    fn from(address: ListenAddress) -> String {
        address.to_string()
    }
}

strings!(ListenAddress, "host:port or unix:/path");

/// Who may use a file: the bits of `chmod`, in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct FileMode(pub u32);

impl FromStr for FileMode {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match u32::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(FileMode(mode)),
            _ => Err(SettingError::unexpected(
                "octal digits such as 0660",
                &Input::Text(text),
            )),
        }
    }
}

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl From<FileMode> for String {
    fn from(mode: FileMode) -> String {
        mode.to_string()
    }
}

strings!(FileMode, "octal digits");

impl Setting for Option<FileMode> {
    const KIND: &'static str = "octal digits, empty = default";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        match text(input, "octal digits such as 0660")? {
            "" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    fn show(&self) -> String {
        self.as_ref().map_or_else(|| quote(""), Setting::show)
    }
}
