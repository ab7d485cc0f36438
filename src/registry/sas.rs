//! Shared access signatures: tokens that a device, a module or a back end signs itself, with a key that it shares with
//! the hub.
//!
//! `SharedAccessSignature sr={uri}&sig={sig}&se={seconds}[&skn={policy}]`: `sr` says what the token is for, `se` until
//! when, in seconds since 1970, `sig` is HMAC-SHA256 over both as they were sent, and `skn` names the policy whose key
//! has signed; without it that is a key of the identity itself.
//!
//! Invariant: signatures are compared in constant time, and both keys are always tried.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::hosts::Hosts;
use super::percent;
use crate::base::time::Millis;

/// What a token begins with.
const SCHEME: &str = "SharedAccessSignature ";

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 32;

/// Fewest bytes of a key. What is shorter is none, and signs nothing.
pub const LEAST_KEY_BYTES: usize = 16;

/// Most bytes of a key.
pub const MOST_KEY_BYTES: usize = 64;

/// The key of an identity or a policy, from its text.
pub fn key_from_base64(text: &str) -> Option<Vec<u8>> {
    let key = STANDARD.decode(text).ok()?;
    (LEAST_KEY_BYTES..=MOST_KEY_BYTES)
        .contains(&key.len())
        .then_some(key)
}

/// A token that was read; nothing shows yet that it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    resource: &'a str,
    signature: [u8; SIGNATURE_BYTES],
    expiry: &'a str,
    expires_at: Millis,
    policy: Option<String>,
}

/// Why a token does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SasError {
    /// It is no token.
    #[error("the token can't be read")]
    Malformed,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// It is for something else, or for another host.
    #[error("the token is for something else")]
    Scope,
}

/// Whether a password is a token, for all that its beginning says.
pub fn is_like_one(password: &[u8]) -> bool {
    let scheme = password.get(..SCHEME.len());
    scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME.as_bytes()))
}

/// Reads a token.
///
/// # Errors
/// It is none.
pub fn read(text: &str) -> Result<Token<'_>, SasError> {
    read_fields(text).ok_or(SasError::Malformed)
}

fn read_fields(text: &str) -> Option<Token<'_>> {
    let (scheme, fields) = text.split_at_checked(SCHEME.len())?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return None;
    }
    let [mut sr, mut sig, mut se, mut skn] = [None; 4];
    for field in fields.split('&') {
        let (name, value) = field.split_once('=')?;
        let place = match name {
            "sr" => &mut sr,
            "sig" => &mut sig,
            "se" => &mut se,
            "skn" => &mut skn,
            _ => continue,
        };
        // Which of two would count is not said anywhere.
        if place.replace(value).is_some() {
            return None;
        }
    }
    let expiry = se.filter(|se| se.bytes().all(|byte| byte.is_ascii_digit()))?;
    let expires_at = expiry.parse::<u64>().ok()?.checked_mul(1_000)?;
    let signature = STANDARD.decode(percent::decode(sig?)?).ok()?;
    let policy = skn.filter(|name| !name.is_empty());
    let policy = match policy {
        Some(name) => Some(percent::decode(name)?),
        None => None,
    };
    Some(Token {
        resource: sr?,
        signature: signature.try_into().ok()?,
        expiry,
        expires_at: Millis(expires_at),
        policy,
    })
}

impl Token<'_> {
    /// The shared policy that has signed; `None` for the identity itself.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// When its time is over.
    pub fn expires_at(&self) -> Millis {
        self.expires_at
    }

    /// Whether it holds at `now` for what has this path on a host of the hub, whoever has signed it. It is for
    /// everything below its own path; paths are compared segment by segment, without case.
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, hosts: &Hosts, path: &[&str], now: Millis) -> Result<(), SasError> {
        if self.expires_at <= now {
            return Err(SasError::Expired);
        }
        let resource = percent::decode(self.resource).ok_or(SasError::Malformed)?;
        let resource = resource.strip_suffix('/').unwrap_or(&resource);
        let mut segments = resource.split('/');
        let host = segments.next().unwrap_or_default();
        let mut path = path.iter();
        let covers = |segment: &str| {
            let next = path.next();
            next.is_some_and(|next| next.eq_ignore_ascii_case(segment))
        };
        match hosts.contains(host) && segments.all(covers) {
            true => Ok(()),
            false => Err(SasError::Scope),
        }
    }

    /// Which of two keys has signed it.
    pub fn signer(&self, keys: [&[u8]; 2]) -> Option<usize> {
        let [primary, secondary] = keys.map(|key| self.is_signed_with(key));
        match (bool::from(primary), bool::from(secondary)) {
            (true, _) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        }
    }

    fn is_signed_with(&self, key: &[u8]) -> Choice {
        let mut code = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        code.update(self.resource.as_bytes());
        code.update(b"\n");
        code.update(self.expiry.as_bytes());
        let is_key = Choice::from(u8::from(key.len() >= LEAST_KEY_BYTES));
        code.finalize().into_bytes().ct_eq(&self.signature) & is_key
    }
}

#[cfg(test)]
#[path = "sas_tests.rs"]
pub(super) mod tests;
