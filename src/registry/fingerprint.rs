//! What a connection was opened with, as 128 bits: a session remembers it, and the connection ends when its identity
//! has it no more.
//!
//! Invariant: fingerprints are in the log and in rows, so they never change: the first 128 bits of SHA-256 of the kind
//! of credential and what it is.

use sha2::{Digest as _, Sha256};

use crate::base::proto::state;

/// The length of a fingerprint, bytes.
pub const BYTES: usize = 16;

/// How an identity proves itself. The number is in commands and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Authentication {
    /// Tokens that are signed with a key of its own, or with that of a policy.
    Sas = 1,
    /// A certificate with a thumbprint of its own.
    SelfSigned = 2,
    /// A certificate of an authority, with its id as name.
    CertificateAuthority = 3,
}

impl Authentication {
    /// Every way.
    pub const ALL: [Authentication; 3] = [
        Authentication::Sas,
        Authentication::SelfSigned,
        Authentication::CertificateAuthority,
    ];

    /// The way of a number.
    pub fn of_number(number: u32) -> Option<Authentication> {
        let mut all = Authentication::ALL.into_iter();
        all.find(|way| *way as u32 == number)
    }

    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Authentication::Sas => "sas",
            Authentication::SelfSigned => "selfSigned",
            Authentication::CertificateAuthority => "certificateAuthority",
        }
    }
}

/// What a connection was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// A token that was signed with this key of the identity.
    Key(&'a [u8]),
    /// A token that was signed with a key of a policy.
    Policy,
    /// A certificate with this thumbprint.
    Thumbprint(&'a str),
    /// A certificate of an authority.
    Authority,
}

impl Credential<'_> {
    /// Its fingerprint.
    pub fn fingerprint(self) -> [u8; BYTES] {
        let mut hasher = Sha256::new();
        match self {
            Credential::Key(key) => {
                hasher.update([1]);
                hasher.update(key);
            }
            Credential::Policy => hasher.update([2]),
            Credential::Thumbprint(thumbprint) => {
                hasher.update([3]);
                hasher.update(thumbprint.to_ascii_uppercase());
            }
            Credential::Authority => hasher.update([4]),
        }
        let mut fingerprint = [0; BYTES];
        fingerprint.copy_from_slice(&hasher.finalize()[..BYTES]);
        fingerprint
    }
}

/// The credentials that an identity has.
pub fn credentials(identity: &state::Identity) -> impl Iterator<Item = Credential<'_>> {
    let held = match Authentication::of_number(identity.authentication) {
        Some(Authentication::Sas) => [
            Some(Credential::Key(&identity.primary_key)),
            Some(Credential::Key(&identity.secondary_key)),
            Some(Credential::Policy),
        ],
        Some(Authentication::SelfSigned) => [
            identity
                .primary_thumbprint
                .as_deref()
                .map(Credential::Thumbprint),
            identity
                .secondary_thumbprint
                .as_deref()
                .map(Credential::Thumbprint),
            None,
        ],
        Some(Authentication::CertificateAuthority) => [Some(Credential::Authority), None, None],
        None => [None, None, None],
    };
    held.into_iter().flatten()
}

/// Whether an identity has the credential with this fingerprint.
pub fn holds(identity: &state::Identity, fingerprint: &[u8]) -> bool {
    credentials(identity).any(|credential| credential.fingerprint() == fingerprint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn fingerprints_never_change_and_tell_kinds_apart() {
        let all = [
            Credential::Key(b""),
            Credential::Policy,
            Credential::Thumbprint(""),
            Credential::Authority,
        ];
        let all = all.map(|credential| hex(&credential.fingerprint()));
        let expected = [
            "4bf5122f344554c53bde2ebb8cd2b7e3",
            "dbc1b4c900ffe48d575b5da5c6380401",
            "084fed08b978af4d7d196a7446a86b58",
            "e52d9c508c502347344d8c07ad91cbd6",
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one, expected[at], "{at}");
        }
    }

    #[test]
    fn an_identity_holds_what_its_way_of_proof_uses() {
        let mut identity = state::Identity {
            authentication: 1,
            primary_key: vec![1; 32].into(),
            secondary_key: vec![2; 32].into(),
            primary_thumbprint: Some("AB".repeat(20)),
            ..Default::default()
        };
        let key = Credential::Key(&[1; 32]).fingerprint();
        let thumbprint = "ab".repeat(20);
        let thumbprint = Credential::Thumbprint(&thumbprint).fingerprint();
        let authority = Credential::Authority.fingerprint();
        let policy = Credential::Policy.fingerprint();
        let other = Credential::Key(&[3; 32]).fingerprint();
        let held = |identity: &state::Identity| {
            [key, policy, thumbprint, authority].map(|one| holds(identity, &one))
        };
        assert_eq!(held(&identity), [true, true, false, false]);
        assert!(!holds(&identity, &other) && !holds(&identity, &[]));
        identity.authentication = 2;
        assert_eq!(held(&identity), [false, false, true, false]);
        identity.authentication = 3;
        assert_eq!(held(&identity), [false, false, false, true]);
        identity.authentication = 0;
        assert_eq!(held(&identity), [false; 4]);
    }
}
