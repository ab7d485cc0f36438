//! Percent-encoding (RFC 3986 §2.1) of what clients sign and send.

/// Decodes a text once. What is no escape stays as it is, because clients also send identifiers with a percent sign
/// that they have not encoded. `None`: what comes out is not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped = (*byte == b'%').then(|| escape(bytes.get(at + 1..at + 3)?));
        match escaped.flatten() {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).ok()
}

fn escape(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(*digits.first()?)? * 16 + digit(*digits.get(1)?)?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_decoded_once_and_anything_else_stays() {
        for (text, decoded) in [
            ("", ""),
            ("hub%2Fdevices%2fdevA", "hub/devices/devA"),
            ("hub/devices/devA", "hub/devices/devA"),
            ("dev%252F", "dev%2F"),
            ("50%off 100% %4", "50%off 100% %4"),
            ("%C3%BC", "ü"),
            ("%+1%-2", "%+1%-2"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(decoded));
        }
        assert_eq!(decode("%FF"), None);
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back(text in any::<String>()) {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decode(&encoded), Some(text));
        }
    }
}
