//! Etags of identities: base64 of the decimal digits of a counter.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The etag of a counter.
pub fn format(counter: u64) -> String {
    STANDARD.encode(counter.to_string())
}

/// The counter of an etag, if it is one that [`format`] gives.
pub fn parse(etag: &str) -> Option<u64> {
    let digits = String::from_utf8(STANDARD.decode(etag).ok()?).ok()?;
    let counter = digits.parse::<u64>().ok()?;
    (counter.to_string() == digits).then_some(counter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_decimal_digits() {
        assert_eq!(format(801_232_426), "ODAxMjMyNDI2");
        for counter in [0, 1, u64::MAX] {
            assert_eq!(parse(&format(counter)), Some(counter));
        }
        for other in ["", "x", "MDE=", "LTE=", "KzE=", "ODAxMjMyNDI2=", "*"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
