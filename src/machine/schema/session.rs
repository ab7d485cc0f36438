//! `0x10 | client id` → `state.Session`.

use super::{key, ordinal, whole};

/// The row of the session of `client_id`.
pub fn encode(client_id: &str) -> Vec<u8> {
    key(ordinal::SESSION, &[client_id.as_bytes()])
}

/// The client id of a key of this table.
pub fn decode(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.strip_prefix(&[ordinal::SESSION])?).ok()
}

/// All rows.
pub fn all() -> (Vec<u8>, Vec<u8>) {
    whole(ordinal::SESSION)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_key_decodes_to_what_it_was_made_of() {
        assert_eq!(super::decode(&super::encode("kä/#+")), Some("kä/#+"));
    }
}
