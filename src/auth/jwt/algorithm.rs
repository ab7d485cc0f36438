//! The algorithms of signatures, and which kind of key each of them takes.
//!
//! Invariant: a key is used with the algorithms of its own kind only. The header of a token chooses among those that
//! both the issuer's settings and the key allow; it never decides how a key's bytes are understood (RFC 8725 §3.1).

use std::fmt;
use std::str::FromStr;

use jsonwebtoken::Algorithm as Library;

/// What a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A shared secret of so many bytes.
    Secret(usize),
    /// RSA.
    Rsa,
    /// The curve P-256.
    P256,
    /// The curve P-384.
    P384,
    /// Ed25519.
    Ed25519,
}

macro_rules! algorithms {
    ($($name:ident),+ $(,)?) => {
        /// A signature algorithm by its registered name (RFC 7518 §3.1, RFC 8037 §3.1). `none` is not among them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[allow(missing_docs)]
        pub enum Algorithm { $($name),+ }

        impl Algorithm {
            /// Every algorithm.
            pub const ALL: &'static [Algorithm] = &[$(Algorithm::$name),+];

            /// Its registered name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Algorithm::$name => stringify!($name)),+ }
            }

            pub(super) const fn library(self) -> Library {
                match self { $(Algorithm::$name => Library::$name),+ }
            }
        }
    };
}

algorithms!(
    HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA
);

impl Algorithm {
    /// Whether it is used with a key of this kind. A secret must be as long as the hash (RFC 7518 §3.2).
    pub fn takes(self, kind: KeyKind) -> bool {
        use Algorithm::{ES256, ES384, EdDSA, HS256, HS384, HS512};
        match (self, kind) {
            (HS256, KeyKind::Secret(bytes)) => bytes >= 32,
            (HS384, KeyKind::Secret(bytes)) => bytes >= 48,
            (HS512, KeyKind::Secret(bytes)) => bytes >= 64,
            (ES256, KeyKind::P256) | (ES384, KeyKind::P384) | (EdDSA, KeyKind::Ed25519) => true,
            (HS256 | HS384 | HS512 | ES256 | ES384 | EdDSA, _) => false,
            (_, kind) => kind == KeyKind::Rsa,
        }
    }

    /// Whether it needs a shared secret.
    pub fn is_symmetric(self) -> bool {
        use Algorithm::{HS256, HS384, HS512};
        matches!(self, HS256 | HS384 | HS512)
    }
}

/// A name that is none of a known algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a known signature algorithm")]
pub struct UnknownAlgorithm;

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let mut all = Algorithm::ALL.iter();
        all.find(|known| known.as_str() == text)
            .copied()
            .ok_or(UnknownAlgorithm)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_algorithm_takes_the_key_of_another_kind() {
        let kinds = [
            KeyKind::Secret(64),
            KeyKind::Rsa,
            KeyKind::P256,
            KeyKind::P384,
            KeyKind::Ed25519,
        ];
        for algorithm in Algorithm::ALL {
            let takes = kinds.iter().filter(|kind| algorithm.takes(**kind)).count();
            assert_eq!(takes, 1, "{algorithm}");
            assert_eq!(
                algorithm.is_symmetric(),
                algorithm.takes(KeyKind::Secret(64))
            );
            assert_eq!(algorithm.as_str().parse(), Ok(*algorithm));
        }
        assert!(!Algorithm::HS512.takes(KeyKind::Secret(63)));
        assert!(!Algorithm::HS256.takes(KeyKind::Secret(31)));
    }

    #[test]
    fn names_are_compared_byte_by_byte_and_none_is_none() {
        for text in [
            "none", "None", "NONE", "nOnE", "", "hs256", "HS256 ", "ES512", "RS1",
        ] {
            assert!(text.parse::<Algorithm>().is_err(), "{text:?}");
        }
    }
}
