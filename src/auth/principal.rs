//! The principal: who a client has proved to be, and what that rests on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use crate::base::time::Millis;

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
        }
    }

    /// Everybody whom nothing was asked of.
    pub fn anonymous() -> Arc<Principal> {
        static ANONYMOUS: LazyLock<Arc<Principal>> =
            LazyLock::new(|| Arc::new(Principal::new("", Method::Anonymous)));
        ANONYMOUS.clone()
    }

    /// Whether nothing is proved.
    pub fn is_anonymous(&self) -> bool {
        self.method == Method::Anonymous
    }
}
