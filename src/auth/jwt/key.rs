//! Keys of an issuer: from PEM, from a JSON Web Key Set (RFC 7517), or a shared secret.

use std::fmt;

use jsonwebtoken::DecodingKey;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_NIST_EC_P384, OID_SIG_ED25519,
};
use x509_parser::prelude::{FromDer, Pem, SubjectPublicKeyInfo};
use x509_parser::public_key::PublicKey;

use super::algorithm::{Algorithm, KeyKind};
use super::token::{Token, TokenError};
use crate::auth::{Standing, strict};

/// Most keys of an issuer: a set has two or three, and twice as many while it is rotated.
pub const MOST_KEYS: usize = 64;

/// Keys that are tried for one token that names none.
const MOST_TRIED: usize = 4;

/// Bounds of the modulus of an RSA key, bytes: shorter ones are broken, longer ones only take time.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// Why a source of keys can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not PEM, or nothing in it.
    #[error("there is no public key in PEM in it")]
    NoPem,
    /// PEM of something that is no public key.
    #[error("it has a PEM block that is not PUBLIC KEY or RSA PUBLIC KEY")]
    NotPublic,
    /// A key of a kind or size that no algorithm here takes.
    #[error("it has a key that is not RSA of 2048 to 8192 bits, P-256, P-384 or Ed25519")]
    Unsupported,
    /// Not a set of keys.
    #[error("it is not a JSON Web Key Set")]
    NotASet,
    /// A set without a key that can be used.
    #[error("none of its keys can be used to verify a signature")]
    NoUsableKey,
    /// More than [`MOST_KEYS`].
    #[error("it has more than {MOST_KEYS} keys")]
    TooMany,
    /// A secret that is too short for any algorithm (RFC 7518 §3.2).
    #[error("a shared secret must have at least 32 bytes")]
    ShortSecret,
}

/// A key, and what it may be used for.
#[derive(Clone)]
struct Key {
    id: Option<Box<str>>,
    kind: KeyKind,
    /// The only algorithm that its set allows for it.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
    /// SHA-256 of what it is made of: the same key in a newer set has the same.
    print: [u8; 32],
    /// What those who have logged in with it look at.
    standing: Standing,
}

impl Key {
    fn new(kind: KeyKind, material: &[u8], key: DecodingKey) -> Key {
        Key {
            id: None,
            kind,
            algorithm: None,
            key,
            print: Sha256::digest(material).into(),
            standing: Standing::default(),
        }
    }
}

/// The keys of an issuer.
#[derive(Clone, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

impl fmt::Debug for KeySet {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.keys.iter().map(|key| (&key.id, key.kind));
        f.debug_list().entries(ids).finish()
    }
}

impl KeySet {
    /// A shared secret.
    ///
    /// # Errors
    /// It is too short.
    pub fn of_secret(secret: &[u8]) -> Result<KeySet, KeyError> {
        if secret.len() < 32 {
            return Err(KeyError::ShortSecret);
        }
        Ok(KeySet {
            keys: vec![of_shared(secret)],
        })
    }

    /// Public keys in PEM: `PUBLIC KEY` (RFC 7468 §13) or `RSA PUBLIC KEY`.
    ///
    /// # Errors
    /// There is none, or something else is among them.
    pub fn of_pem(text: &[u8]) -> Result<KeySet, KeyError> {
        let mut keys = Vec::new();
        for block in Pem::iter_from_buffer(text) {
            let block = block.map_err(|_| KeyError::NoPem)?;
            keys.push(match block.label.as_str() {
                "PUBLIC KEY" => of_spki(&block.contents)?,
                "RSA PUBLIC KEY" => {
                    let key = x509_parser::public_key::RSAPublicKey::from_der(&block.contents);
                    let (_, key) = key.map_err(|_| KeyError::Unsupported)?;
                    of_rsa(key.modulus, key.exponent).ok_or(KeyError::Unsupported)?
                }
                _ => return Err(KeyError::NotPublic),
            });
        }
        match keys.len() {
            0 => Err(KeyError::NoPem),
            1..=MOST_KEYS => Ok(KeySet { keys }),
            _ => Err(KeyError::TooMany),
        }
    }

    /// A JSON Web Key Set. Keys that can't be used are passed over (RFC 7517 §5); shared secrets, too, unless they are
    /// expected: a set that everybody can fetch has none.
    ///
    /// # Errors
    /// It is no set, or no key of it can be used.
    pub fn of_jwks(text: &[u8], with_secrets: bool) -> Result<KeySet, KeyError> {
        let set = strict::object(text).ok_or(KeyError::NotASet)?;
        let Some(Value::Array(list)) = set.get("keys") else {
            return Err(KeyError::NotASet);
        };
        if list.len() > MOST_KEYS {
            return Err(KeyError::TooMany);
        }
        let keys = list.iter().filter_map(Value::as_object).filter_map(of_jwk);
        let is_wanted = |key: &Key| with_secrets || !matches!(key.kind, KeyKind::Secret(_));
        let keys: Vec<Key> = keys.filter(is_wanted).collect();
        match keys.is_empty() {
            true => Err(KeyError::NoUsableKey),
            false => Ok(KeySet { keys }),
        }
    }

    /// These keys and those of another set.
    #[must_use]
    pub fn with(mut self, other: KeySet) -> KeySet {
        self.keys.extend(other.keys);
        self.keys.truncate(2 * MOST_KEYS);
        self
    }

    /// Takes the place of `former`: a key of both is the same one, and one that is not here any more is withdrawn.
    /// Returns whether there is such a one.
    pub fn succeed(&mut self, former: &KeySet) -> bool {
        for key in &mut self.keys {
            let mut same = former.keys.iter();
            if let Some(same) = same.find(|other| other.print == key.print) {
                key.standing = same.standing.clone();
            }
        }
        let is_here = |gone: &&Key| self.keys.iter().any(|key| key.print == gone.print);
        let mut gone = former.keys.iter().filter(|key| !is_here(key)).peekable();
        let is_any_gone = gone.peek().is_some();
        gone.for_each(|key| key.standing.withdraw());
        is_any_gone
    }

    /// Checks the token's signature; returns the standing of the key that has made it.
    ///
    /// # Errors
    /// [`TokenError::UnknownKey`] if no key here is the token's; [`TokenError::Signature`] if one is and did not make
    /// the signature.
    pub(super) fn verify(&self, token: &Token<'_>) -> Result<Standing, TokenError> {
        let fits = |key: &&Key| {
            let is_allowed = key.algorithm.is_none_or(|only| only == token.algorithm);
            is_allowed && token.algorithm.takes(key.kind)
        };
        let id = token.key_id.as_deref();
        let named = self
            .keys
            .iter()
            .filter(|key| id.is_some() && key.id.as_deref() == id);
        let mut tried: Vec<&Key> = named.filter(fits).take(MOST_TRIED).collect();
        if tried.is_empty() {
            // A key without a name is for every token, and a token without a name may be of every key.
            let nameless = self
                .keys
                .iter()
                .filter(|key| id.is_none() || key.id.is_none());
            tried = nameless.filter(fits).take(MOST_TRIED).collect();
        }
        if tried.is_empty() {
            return Err(TokenError::UnknownKey);
        }
        let is_right = |key: &&Key| {
            let (signature, signed) = (token.signature, token.signed.as_bytes());
            let algorithm = token.algorithm.library();
            jsonwebtoken::crypto::verify(signature, signed, &key.key, algorithm).unwrap_or(false)
        };
        let signer = tried.into_iter().find(is_right);
        let signer = signer.ok_or(TokenError::Signature)?;
        Ok(signer.standing.clone())
    }
}

fn of_shared(secret: &[u8]) -> Key {
    let kind = KeyKind::Secret(secret.len());
    Key::new(kind, secret, DecodingKey::from_secret(secret))
}

fn of_spki(der: &[u8]) -> Result<Key, KeyError> {
    let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| KeyError::Unsupported)?;
    let bytes: &[u8] = &info.subject_public_key.data;
    let oid = &info.algorithm.algorithm;
    let key = if *oid == OID_SIG_ED25519 {
        (bytes.len() == 32).then(|| (KeyKind::Ed25519, DecodingKey::from_ed_der(bytes)))
    } else if *oid == OID_KEY_TYPE_EC_PUBLIC_KEY {
        let parameters = info.algorithm.parameters.as_ref();
        let curve = parameters.and_then(|any| any.as_oid().ok());
        let kind = match curve {
            Some(curve) if curve == OID_EC_P256 => Some((KeyKind::P256, 32)),
            Some(curve) if curve == OID_NIST_EC_P384 => Some((KeyKind::P384, 48)),
            _ => None,
        };
        kind.filter(|(_, size)| bytes.len() == 1 + 2 * size && bytes.first() == Some(&4))
            .map(|(kind, _)| (kind, DecodingKey::from_ec_der(bytes)))
    } else if let Ok(PublicKey::RSA(rsa)) = info.parsed() {
        return of_rsa(rsa.modulus, rsa.exponent).ok_or(KeyError::Unsupported);
    } else {
        None
    };
    let (kind, key) = key.ok_or(KeyError::Unsupported)?;
    Ok(Key::new(kind, bytes, key))
}

fn of_rsa(modulus: &[u8], exponent: &[u8]) -> Option<Key> {
    let without_zeros = |bytes: &'_ [u8]| {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        bytes[zeros..].to_vec()
    };
    let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
    let is_fit = RSA_BYTES.contains(&modulus.len()) && (1..=8).contains(&exponent.len());
    is_fit.then(|| {
        let key = DecodingKey::from_rsa_raw_components(&modulus, &exponent);
        Key::new(KeyKind::Rsa, &[&modulus[..], &exponent].concat(), key)
    })
}

/// A key of a set (RFC 7518 §6, RFC 8037 §2); `None` when it is not one to verify signatures with.
fn of_jwk(jwk: &Map<String, Value>) -> Option<Key> {
    use base64::Engine as _;
    let text = |name: &str| jwk.get(name).and_then(Value::as_str);
    let bytes = |name: &str| {
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        engine.decode(text(name)?).ok()
    };
    if text("use").is_some_and(|purpose| purpose != "sig") {
        return None;
    }
    if let Some(operations) = jwk.get("key_ops") {
        let operations = operations.as_array()?;
        operations.iter().find(|operation| *operation == "verify")?;
    }
    let algorithm = match jwk.get("alg") {
        Some(name) => Some(name.as_str()?.parse().ok()?),
        None => None,
    };
    let point = |kind, size: usize| {
        let (x, y) = (bytes("x")?, bytes("y")?);
        let is_point = x.len() == size && y.len() == size;
        let point = is_point.then(|| [&[4], &x[..], &y[..]].concat())?;
        Some(Key::new(kind, &point, DecodingKey::from_ec_der(&point)))
    };
    let key = match (text("kty")?, text("crv")) {
        ("RSA", _) => of_rsa(&bytes("n")?, &bytes("e")?)?,
        ("EC", Some("P-256")) => point(KeyKind::P256, 32)?,
        ("EC", Some("P-384")) => point(KeyKind::P384, 48)?,
        ("OKP", Some("Ed25519")) => {
            let x = bytes("x").filter(|x| x.len() == 32)?;
            Key::new(KeyKind::Ed25519, &x, DecodingKey::from_ed_der(&x))
        }
        ("oct", _) => of_shared(&bytes("k").filter(|secret| secret.len() >= 32)?),
        _ => return None,
    };
    let id = match jwk.get("kid") {
        Some(id) => Some(id.as_str()?.into()),
        None => None,
    };
    Some(Key {
        id,
        algorithm,
        ..key
    })
}
