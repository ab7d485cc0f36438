//! Who makes tokens, what must be in them, and the principal that they name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key::KeySet;
use super::token::{Token, TokenError};
use crate::auth::{Client, Method, Principal, is_plain, strict};
use crate::base::time::Millis;

/// Most groups of a principal.
const MOST_GROUPS: usize = 256;

/// How far clocks may be apart that are to be the same: a token that begins so soon is asked for again, not refused.
const CLOCKS_APART_MS: u64 = 10 * 60 * 1000;

/// Stands for the principal's name in [`Rules::user_name`].
const NAME: &str = "{name}";

/// What is asked of the tokens of an issuer.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Claim `iss`; empty: any, or none.
    pub issuer: Box<str>,
    /// Claim `aud`: one of these must be in it. Empty: a token that has it is for somebody else (RFC 7519 §4.1.3).
    pub audiences: Vec<Box<str>>,
    /// The algorithms that the issuer uses.
    pub algorithms: Vec<Algorithm>,
    /// How far the clocks of the issuer and of this machine may be apart.
    pub leeway_ms: u64,
    /// A token without claim `exp` is taken, too.
    pub allows_endless: bool,
    /// The claim that is the principal's name.
    pub name: Claim,
    /// The claim that has the principal's groups, as a text or a list of texts.
    pub groups: Option<Claim>,
    /// Attributes of the principal and the claims that have them.
    pub attributes: Vec<(Box<str>, Claim)>,
    /// The user name that must come with a token in the password, `{name}` standing for the principal's name; empty:
    /// any, or none.
    pub user_name: Box<str>,
}

/// The way to a claim: its name, or from `/` on the names of nested objects, as in `/kubernetes.io/namespace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(Box<str>);

impl Default for Claim {
    fn default() -> Claim {
        Claim("sub".into())
    }
}

impl From<&str> for Claim {
    fn from(text: &str) -> Claim {
        Claim(text.into())
    }
}

impl Claim {
    fn of<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a Value> {
        let Some(path) = self.0.strip_prefix('/') else {
            return claims.get(&*self.0);
        };
        let mut names = path.split('/');
        let first = claims.get(names.next()?)?;
        names.try_fold(first, |value, name| value.as_object()?.get(name))
    }
}

impl Rules {
    /// Whether tokens with these claims are this issuer's to judge.
    pub(super) fn is_of(&self, claims: &Map<String, Value>) -> bool {
        let issuer = claims.get("iss");
        self.issuer.is_empty() || issuer.and_then(Value::as_str) == Some(&self.issuer)
    }

    /// Judges a token with the issuer's keys.
    ///
    /// # Errors
    /// It proves nothing.
    pub(super) fn judge(
        &self,
        token: &Token<'_>,
        keys: &KeySet,
        client: &Client<'_>,
    ) -> Result<Principal, TokenError> {
        if !self.algorithms.contains(&token.algorithm) {
            return Err(TokenError::ForbiddenAlgorithm);
        }
        let signer = keys.verify(token)?;
        let claims = &token.claims;
        if !self.is_of(claims) {
            return Err(TokenError::UnknownIssuer);
        }
        self.check_audience(claims)?;
        let expires_at = self.check_times(claims, client.now)?;
        let name = self.name.of(claims).and_then(Value::as_str);
        let name = name.filter(|name| is_plain(name)).ok_or(TokenError::Name)?;
        if !self.user_name.is_empty() && client.password.is_some() {
            let expected = self.user_name.replace(NAME, name);
            if client.user_name != Some(&*expected) {
                return Err(TokenError::UserName);
            }
        }
        Ok(Principal {
            groups: self.groups(claims)?,
            attributes: self.attributes(claims)?,
            expires_at,
            key: Some(signer),
            ..Principal::new(name, Method::Jwt)
        })
    }

    /// Whether a token in the password may come with this user name. If it depends on the token, it is judged later.
    pub(super) fn takes_user_name(&self, user_name: Option<&str>) -> bool {
        self.user_name.is_empty()
            || self.user_name.contains(NAME)
            || user_name == Some(&self.user_name)
    }

    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), TokenError> {
        let is_ours = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            self.audiences.iter().any(|known| **known == *text)
        };
        let is_for_us = match claims.get("aud") {
            None => self.audiences.is_empty(),
            Some(Value::Array(list)) => list.iter().any(is_ours),
            Some(one) => is_ours(one),
        };
        match is_for_us {
            true => Ok(()),
            false => Err(TokenError::Audience),
        }
    }

    /// Returns when the token expires, the leeway included: so long it is taken, and so long a connection lasts.
    fn check_times(
        &self,
        claims: &Map<String, Value>,
        now: Millis,
    ) -> Result<Option<Millis>, TokenError> {
        let latest_start = now.plus(self.leeway_ms);
        for name in ["nbf", "iat"] {
            match time(claims, name)? {
                Some(start) if start > latest_start.plus(CLOCKS_APART_MS) => {
                    return Err(TokenError::NotYet);
                }
                Some(start) if start > latest_start => return Err(TokenError::NotQuiteYet),
                _ => {}
            }
        }
        match time(claims, "exp")? {
            None if self.allows_endless => Ok(None),
            None => Err(TokenError::NeverExpires),
            Some(end) if end.plus(self.leeway_ms) <= now => Err(TokenError::Expired),
            Some(end) => Ok(Some(end.plus(self.leeway_ms))),
        }
    }

    fn groups(&self, claims: &Map<String, Value>) -> Result<Vec<Box<str>>, TokenError> {
        let list = match self.groups.as_ref().and_then(|claim| claim.of(claims)) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= MOST_GROUPS => &list[..],
            Some(one @ Value::String(_)) => std::slice::from_ref(one),
            Some(_) => return Err(TokenError::Claims),
        };
        let texts = list
            .iter()
            .map(|group| group.as_str().filter(|text| is_plain(text)));
        texts
            .map(|group| group.map(Into::into).ok_or(TokenError::Claims))
            .collect()
    }

    fn attributes(
        &self,
        claims: &Map<String, Value>,
    ) -> Result<BTreeMap<Box<str>, Box<str>>, TokenError> {
        let mut attributes = BTreeMap::new();
        for (name, claim) in &self.attributes {
            let text: Box<str> = match claim.of(claims) {
                None | Some(Value::Null) => continue,
                Some(Value::String(text)) if is_plain(text) => text.as_str().into(),
                Some(Value::Number(number)) => number.to_string().into(),
                Some(Value::Bool(value)) => value.to_string().into(),
                Some(_) => return Err(TokenError::Claims),
            };
            attributes.insert(name.clone(), text);
        }
        Ok(attributes)
    }
}

/// A claim that is a NumericDate (RFC 7519 §2): seconds, fractions allowed.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<Millis>, TokenError> {
    let Some(value) = claims.get(name) else {
        return Ok(None);
    };
    strict::time(value).map(Some).ok_or(TokenError::Time)
}
