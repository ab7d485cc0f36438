//! The principal: who a client has proved to be, and what that rests on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::base::time::Millis;

/// Longest name, group or attribute that somebody else gives a principal, bytes.
const LONGEST_TEXT_BYTES: usize = 1024;

/// Whether a text from elsewhere may be a name, a group or an attribute of a principal.
pub(crate) fn is_plain(text: &str) -> bool {
    is_label(text, LONGEST_TEXT_BYTES)
}

/// Whether a text may be a name, a group or an attribute of so many bytes at most. Control characters would break log
/// lines and topics.
pub(super) fn is_label(text: &str, longest: usize) -> bool {
    !text.is_empty() && is_text(text, longest)
}

/// As [`is_label`], and it may be empty.
pub(super) fn is_text(text: &str, longest: usize) -> bool {
    text.len() <= longest && !text.chars().any(char::is_control)
}

/// How an identity was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// It was not: the listener lets everybody in.
    Anonymous,
    /// User name and password.
    Password,
    /// SCRAM.
    Scram,
    /// A JSON Web Token.
    Jwt,
    /// A client certificate.
    Certificate,
    /// The answer of an HTTP service.
    Http,
    /// A bearer token of the administration port.
    Token,
    /// The credential of a device or a module of the hub.
    Hub,
}

impl Method {
    /// The word for it in the configuration, the log and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Anonymous => "anonymous",
            Method::Password => "password",
            Method::Scram => "scram",
            Method::Jwt => "jwt",
            Method::Certificate => "certificate",
            Method::Http => "http",
            Method::Token => "token",
            Method::Hub => "hub",
        }
    }

    /// Whether it looks at a password that belongs to the user name which the client gives: who has the name can guess.
    pub const fn asks_for_password(self) -> bool {
        match self {
            Method::Password | Method::Scram | Method::Http => true,
            Method::Anonymous | Method::Jwt | Method::Certificate | Method::Token | Method::Hub => {
                false
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A replicated entry that an identity rests on: when it changes or goes, the identity is not proved any more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proof {
    /// The number of the entry's kind.
    pub kind: u8,
    /// The entry's name.
    pub name: Box<str>,
    /// The entry's version at the time of the proof.
    pub version: u64,
}

/// Something outside of the directory that identities rest on, such as the key of an issuer of tokens, until it is
/// withdrawn.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<AtomicBool>);

impl Standing {
    /// Nothing that rests on it is proved any more.
    pub fn withdraw(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether that was done.
    pub fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PartialEq for Standing {
    /// Whether it is the same thing.
    fn eq(&self, other: &Standing) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Standing {}

/// Who a client has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Its name; empty when nothing is proved.
    pub name: Arc<str>,
    /// How it was proved.
    pub method: Method,
    /// Groups that rules may name.
    pub groups: Vec<Box<str>>,
    /// Attributes that rules may name.
    pub attributes: BTreeMap<Box<str>, Box<str>>,
    /// When the proof loses its force; the connection ends then.
    pub expires_at: Option<Millis>,
    /// Replicated entries that the identity rests on.
    pub proofs: Vec<Proof>,
    /// The key that has signed the client's token.
    pub key: Option<Standing>,
}

impl Principal {
    /// A principal with a name and nothing else.
    pub fn new(name: &str, method: Method) -> Principal {
        Principal {
            name: name.into(),
            method,
            groups: Vec::new(),
            attributes: BTreeMap::new(),
            expires_at: None,
            proofs: Vec::new(),
            key: None,
        }
    }

    /// Everybody whom nothing was asked of.
    pub fn anonymous() -> Arc<Principal> {
        static ANONYMOUS: LazyLock<Arc<Principal>> =
            LazyLock::new(|| Arc::new(Principal::new("", Method::Anonymous)));
        ANONYMOUS.clone()
    }

    /// Whether what the identity rests on was withdrawn.
    pub fn is_withdrawn(&self) -> bool {
        self.key.as_ref().is_some_and(Standing::is_withdrawn)
    }

    /// Whether nothing is proved.
    pub fn is_anonymous(&self) -> bool {
        self.method == Method::Anonymous
    }
}
