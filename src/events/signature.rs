//! Signatures of requests, as [Standard Webhooks](https://www.standardwebhooks.com) has them: an HMAC of the request's
//! id, its time and its body, by a key that sender and receiver share.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

/// What a key begins with.
const PREFIX: &str = "whsec_";

/// Shortest key, bytes; Standard Webhooks asks for 24 to 64.
const SHORTEST_KEY_BYTES: usize = 24;

/// Longest key, bytes.
const LONGEST_KEY_BYTES: usize = 64;

/// Why a text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a signing key is whsec_ and {SHORTEST_KEY_BYTES} to {LONGEST_KEY_BYTES} bytes in base64")]
pub struct KeyError;

/// A key that requests are signed with.
pub struct SigningKey(Zeroizing<Vec<u8>>);

impl SigningKey {
    /// Reads a key: `whsec_` and base64.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<SigningKey, KeyError> {
        let encoded = text.strip_prefix(PREFIX).ok_or(KeyError)?;
        let key = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| KeyError)?);
        match (SHORTEST_KEY_BYTES..=LONGEST_KEY_BYTES).contains(&key.len()) {
            true => Ok(SigningKey(key)),
            false => Err(KeyError),
        }
    }

    fn sign(&self, id: &str, timestamp_s: u64, body: &[u8]) -> String {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(format!("{id}.{timestamp_s}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// The value of `webhook-signature`: one signature for each key, so that a receiver may know either while one key
/// replaces another.
pub fn signatures(keys: &[SigningKey], id: &str, timestamp_s: u64, body: &[u8]) -> String {
    let all: Vec<String> = keys
        .iter()
        .map(|key| key.sign(id, timestamp_s, body))
        .collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    /// The second example of the specification, in a batch.
    const BODY: &str = concat!(
        r#"[{"specversion":"1.0","id":"2d1bd13a-fd47-561d-8413-48715eb0b567","time":"2026-01-05T10:00:01.2340000Z","#,
        r#""type":"Microsoft.EventGrid.MQTTClientSessionConnected","source":"/namespaces/quorumq","#,
        r#""subject":"clients/devA/sessions/devA","data":{"namespaceName":"quorumq","#,
        r#""clientAuthenticationName":"devA","clientSessionName":"devA","sequenceNumber":1}}]"#
    );

    #[test]
    fn a_request_is_signed_as_the_vector_says() {
        assert_eq!(BODY.len(), 346);
        let id = "2d1bd13a-fd47-561d-8413-48715eb0b567-1";
        let key = SigningKey::parse(KEY).expect("a key");
        let once = "v1,zAKTIeK8ZdCoDPvbS9/+mQf8WaugTMAL1LCoM3L+Jic=";
        let keys = [key];
        assert_eq!(signatures(&keys, id, 1_767_607_202, BODY.as_bytes()), once);
        let [key] = keys;
        let two = [key, SigningKey::parse(KEY).expect("a key")];
        assert_eq!(
            signatures(&two, id, 1_767_607_202, BODY.as_bytes()),
            format!("{once} {once}")
        );
    }

    #[test]
    fn what_is_no_key_is_not_taken() {
        let short = format!("{PREFIX}{}", STANDARD.encode([7; 23]));
        let long = format!("{PREFIX}{}", STANDARD.encode([7; 65]));
        for text in ["", PREFIX, "MDEyMzQ1Njc4OWFi", "whsec_!", &short, &long] {
            assert!(SigningKey::parse(text).is_err(), "{text}");
        }
    }
}
