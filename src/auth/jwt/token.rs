//! A token as it comes: its three parts, read before anything of it is believed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use crate::auth::strict;

/// Largest token that is read: those of real issuers have one to four KiB.
pub const LARGEST_TOKEN_BYTES: usize = 16 << 10;

/// Longest `kid`; it is compared with those of the issuer's keys, and nothing else is done with it.
const LONGEST_KEY_ID_BYTES: usize = 256;

/// Why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is larger than a token may be.
    #[error("the token is larger than {LARGEST_TOKEN_BYTES} bytes")]
    TooLarge,
    /// It is not three parts of base64url.
    #[error("it is not a signed token in compact form")]
    NotCompact,
    /// The header or the claims are not an object of JSON that can be read in one way only.
    #[error("the token's header or claims are not a plain JSON object")]
    NotJson,
    /// Header `alg`.
    #[error("the token's algorithm is not one of the known ones")]
    UnknownAlgorithm,
    /// Header `alg`, for the issuer.
    #[error("the token's algorithm is not allowed for its issuer")]
    ForbiddenAlgorithm,
    /// Header `crit`, `kid` or `typ`.
    #[error("the token's header has fields that this server does not understand")]
    Header,
    /// Claim `iss`.
    #[error("no issuer of the configuration has made the token")]
    UnknownIssuer,
    /// Header `kid`.
    #[error("the issuer has no such key")]
    UnknownKey,
    /// The issuer's keys are not there.
    #[error("the issuer's keys are not there, or too old")]
    NoKeys,
    /// Header `kid`, and newer keys can't be got.
    #[error("the issuer's keys may be newer than those that are there, and can't be got now")]
    OldKeys,
    /// The signature does not fit.
    #[error("the token's signature is wrong")]
    Signature,
    /// Claim `aud`.
    #[error("the token is for somebody else (aud)")]
    Audience,
    /// Claim `exp` in the past.
    #[error("the token has expired")]
    Expired,
    /// Claim `exp` missing.
    #[error("the token does not expire")]
    NeverExpires,
    /// Claim `nbf` or `iat` in the future.
    #[error("the token is not valid yet")]
    NotYet,
    /// Claim `nbf` or `iat` in the near future: the clocks of the issuer and of this machine differ.
    #[error("the token is not valid yet, but soon: are the clocks right?")]
    NotQuiteYet,
    /// Claim `exp`, `nbf` or `iat` that is no time.
    #[error("a time of the token is not a number of seconds")]
    Time,
    /// The claim that is to be the name.
    #[error("the token has no usable name")]
    Name,
    /// A claim that is to be an attribute or a group.
    #[error("a claim that is to be an attribute or a group has too much in it")]
    Claims,
    /// The user name beside the token.
    #[error("the user name is not the one that belongs to the token")]
    UserName,
}

impl TokenError {
    /// Whether it says nothing about the token, which may be taken a little later.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            TokenError::NoKeys | TokenError::OldKeys | TokenError::NotQuiteYet
        )
    }

    /// Whether nothing was guessed: a key of the issuer has made the token, or no key was asked.
    pub(super) fn is_no_guess(self) -> bool {
        matches!(
            self,
            TokenError::UnknownKey
                | TokenError::Audience
                | TokenError::Expired
                | TokenError::NeverExpires
                | TokenError::NotYet
                | TokenError::Time
                | TokenError::Name
                | TokenError::Claims
                | TokenError::UserName
        )
    }
}

/// A token whose signature was not checked yet.
#[derive(Debug)]
pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    /// What the signature is over.
    pub(super) signed: &'a str,
    /// In base64url.
    pub(super) signature: &'a str,
    /// Not to be believed before the signature is checked.
    pub(super) claims: Map<String, Value>,
}

/// Whether a password may be a token: whether it has its form, not whether it is any good.
pub(super) fn looks_like_token(password: &[u8]) -> bool {
    // {" in base64url, which every header begins with unless it has white space.
    let is_part = |part: &[u8]| {
        part.iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let mut parts = password.split(|byte| *byte == b'.');
    password.starts_with(b"ey") && parts.clone().count() == 3 && parts.all(is_part)
}

impl<'a> Token<'a> {
    pub(super) fn parse(token: &'a [u8]) -> Result<Token<'a>, TokenError> {
        if token.len() > LARGEST_TOKEN_BYTES {
            return Err(TokenError::TooLarge);
        }
        // Files end with a line's end, and some clients send what is in the file.
        let token = std::str::from_utf8(token.trim_ascii_end());
        let token = token.map_err(|_| TokenError::NotCompact)?;
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::NotCompact)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::NotCompact)?;
        if claims.contains('.') {
            // Five parts are an encrypted token.
            return Err(TokenError::NotCompact);
        }
        let header = part(header)?;
        let algorithm = header.get("alg").and_then(Value::as_str);
        let algorithm = algorithm.and_then(|name| name.parse().ok());
        if ["crit", "enc", "zip"]
            .iter()
            .any(|name| header.contains_key(*name))
        {
            // [RFC 7515 §4.1.11]: what is critical must be understood. The others belong to encryption.
            return Err(TokenError::Header);
        }
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) if id.len() <= LONGEST_KEY_ID_BYTES => Some(id.clone()),
            Some(_) => return Err(TokenError::Header),
        };
        Ok(Token {
            algorithm: algorithm.ok_or(TokenError::UnknownAlgorithm)?,
            key_id,
            signed,
            signature,
            claims: part(claims)?,
        })
    }
}

fn part(text: &str) -> Result<Map<String, Value>, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(text);
    let bytes = bytes.map_err(|_| TokenError::NotCompact)?;
    strict::object(&bytes).ok_or(TokenError::NotJson)
}
