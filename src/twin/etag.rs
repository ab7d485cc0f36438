//! Etags of twins: base64 of a counter of eight bytes, big-endian.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The etag of a counter.
pub fn format(counter: u64) -> String {
    STANDARD.encode(counter.to_be_bytes())
}

/// The counter of an etag, if it is one that [`format`] gives.
pub fn parse(etag: &str) -> Option<u64> {
    let bytes = STANDARD.decode(etag).ok()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_counters_of_eight_bytes() {
        assert_eq!(format(1), "AAAAAAAAAAE=");
        assert_eq!(format(3), "AAAAAAAAAAM=");
        for counter in [0, 1, u64::MAX] {
            assert_eq!(parse(&format(counter)), Some(counter));
        }
        for other in ["", "x", "AAAAAAAAAAE", "AAAAAAAAAAF=", "AAAAAAAA", "*"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
