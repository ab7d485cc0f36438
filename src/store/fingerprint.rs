//! What tells apart two requests of one client with the same correlation data: a reply is remembered for the request
//! that it was given to and for no other.
//!
//! Invariant: [`Fingerprint::stable`] is in the log and in rows, so it never changes: it is the first 128 bits of
//! SHA-256 of the fields, each after its length. SHA-256 is quick where the processor has instructions for it, and no
//! two requests with one fingerprint can be constructed.

use std::hash::Hasher as _;

use rustc_hash::FxHasher;
use sha2::{Digest as _, Sha256};

/// The length of [`Fingerprint::stable`], bytes.
pub const STABLE_BYTES: usize = 16;

/// Fingerprints of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The fingerprint.
    pub stable: [u8; STABLE_BYTES],
    /// What versions without `stable` computed. A request that comes again through another node of a rolling upgrade
    /// may be known by this number only, and `machine::replies` finds remembered replies by it. Commands and rows
    /// without `stable` are judged by it for as long as a log or a snapshot may hold one, whatever its age.
    pub legacy: u64,
}

impl Fingerprint {
    /// Of a request's payload, `__ts` and `__ft`.
    pub fn of(payload: &[u8], timestamp: Option<&str>, fencing_token: Option<&str>) -> Self {
        let timestamp = timestamp.unwrap_or_default().as_bytes();
        let fencing_token = fencing_token.unwrap_or_default().as_bytes();
        let fields = [payload, timestamp, fencing_token];
        let mut legacy = FxHasher::default();
        fields.iter().for_each(|field| legacy.write(field));
        Fingerprint {
            stable: digest(fields),
            legacy: legacy.finish(),
        }
    }
}

/// The first 128 bits of SHA-256 of `fields`, each after its length (eight bytes, big-endian).
pub fn digest<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> [u8; STABLE_BYTES] {
    let mut hasher = Sha256::new();
    for field in fields {
        hasher.update((field.len() as u64).to_be_bytes());
        hasher.update(field);
    }
    let mut digest = [0; STABLE_BYTES];
    digest.copy_from_slice(&hasher.finalize()[..STABLE_BYTES]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_stable_fingerprint_never_changes() {
        let request = Fingerprint::of(b"SET k v", Some("1:2:client"), None);
        assert_eq!(hex(&request.stable), "6e8aa7c1ca735a484a1029b0f6894d07");
        assert_eq!(hex(&digest([])), "e3b0c44298fc1c149afbf4c8996fb924");
    }

    #[test]
    fn where_one_field_ends_and_the_next_begins_matters() {
        let of = |payload: &[u8], timestamp, token| Fingerprint::of(payload, timestamp, token);
        let all = [
            of(b"ab", None, None),
            of(b"a", Some("b"), None),
            of(b"a", None, Some("b")),
            of(b"", Some("ab"), None),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other.stable != one.stable));
        }
    }
}
