//! Tokens (SAS) made of a key: what [`super::sas`] reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// A token for a resource (`{host}`, `{host}/devices/{device}`), signed with a key, which holds until so many seconds
/// after 1970. `policy` names the shared policy whose key it is; without one it is a key of the identity itself.
pub fn sign(resource: &str, key: &[u8], expires_at_s: u64, policy: Option<&str>) -> String {
    let resource = encode(resource);
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    code.update(resource.as_bytes());
    code.update(b"\n");
    code.update(expires_at_s.to_string().as_bytes());
    let signature = encode(&STANDARD.encode(code.finalize().into_bytes()));
    let mut token =
        format!("SharedAccessSignature sr={resource}&sig={signature}&se={expires_at_s}");
    if let Some(policy) = policy {
        token.push_str("&skn=");
        token.push_str(&encode(policy));
    }
    token
}

/// Percent-encodes a text (RFC 3986, unreserved characters stay).
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => encoded.push(char::from(byte)),
            false => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::time::Millis;
    use crate::registry::hosts::Hosts;
    use crate::registry::sas;

    proptest! {
        #[test]
        fn what_is_signed_is_read(
            device in "[A-Za-z0-9:.%_*?!(),=@$'-]{1,20}",
            key in prop::collection::vec(any::<u8>(), 16..64),
            policy in prop::option::of("[a-z &=%+]{1,10}"),
        ) {
            let resource = format!("hub.example/devices/{device}");
            let token = sign(&resource, &key, 1_000, policy.as_deref());
            let token = sas::read(&token).expect("a token");
            prop_assert_eq!(token.policy(), policy.as_deref());
            prop_assert_eq!(token.signer([&[1; 16], &key]), Some(1));
            prop_assert_eq!(token.signer([&[1; 16], &[2; 16]]), None);
            let hosts = Hosts::new(["hub.example"]);
            let path = ["devices", &device];
            prop_assert_eq!(token.check(&hosts, &path, Millis(999_999)), Ok(()));
            prop_assert_eq!(token.check(&hosts, &path, Millis(1_000_000)), Err(sas::SasError::Expired));
            prop_assert_eq!(token.check(&hosts, &["devices", "other/"], Millis(0)), Err(sas::SasError::Scope));
        }
    }
}
