//! What the texts of hashes have in common.

/// Lengths of a salt, bytes.
pub(super) const SALT_LENGTHS: std::ops::RangeInclusive<usize> = 8..=64;

/// Why a text is no hash that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashProblem {
    /// It has another form.
    #[error("the hash is none of $argon2id$…, $7$… and $6$…")]
    Unknown,
    /// It begins as a hash and does not go on as one.
    #[error("the hash is damaged")]
    Damaged,
    /// It would take too much memory or time.
    #[error("the hash costs more than is taken here")]
    TooCostly,
}

/// A decimal number without sign and leading zeros, so that a hash has one text.
pub(super) fn decimal(text: &str) -> Option<u32> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_plain.then(|| text.parse().ok()).flatten()
}
