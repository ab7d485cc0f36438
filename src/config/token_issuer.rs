//! The keys of an issuer of tokens, one table of `[[auth.jwt]]` each: name, type, default, unit, range and meaning.

use std::path::PathBuf;

use super::setting::{Input, Setting, SettingError, TokenUse};
use super::table::table;
use crate::auth::jwt::Algorithm;

table! {
    /// Who makes tokens, and what must be in them.
    TokenIssuer, "{ issuer = \"…\", algorithms = [\"…\"], … }", {
        /// The claim `iss` of its tokens. Empty: tokens of any issuer, or none, that no other table names.
        issuer: String = String::new(), "";
        /// The claim `aud` must have one of these. Empty: tokens that have the claim are refused, because they are for
        /// somebody else.
        audiences: Vec<String> = Vec::new(), "";
        /// The algorithms that the issuer signs with, of `HS256`, `HS384`, `HS512`, `RS256`, `RS384`, `RS512`, `PS256`,
        /// `PS384`, `PS512`, `ES256`, `ES384` and `EdDSA` (Ed25519). Needed.
        algorithms: Vec<Algorithm> = Vec::new(), "";
        /// File with the issuer's public keys in PEM (`PUBLIC KEY`). A change is noticed within ten seconds, here and
        /// in the files below. One of `keys_file`, `jwks_file`, `jwks_url` and `secret_file` is needed.
        keys_file: Option<PathBuf> = None, "";
        /// File with the issuer's keys as a JSON Web Key Set.
        jwks_file: Option<PathBuf> = None, "";
        /// URL of the issuer's keys as a JSON Web Key Set, over HTTPS; over HTTP from this machine only.
        jwks_url: String = String::new(), "";
        /// File with the secret that the issuer signs with (`HS…`), at least 32 bytes. The end of its last line is no
        /// part of it.
        secret_file: Option<PathBuf> = None, "";
        /// PEM file of the CAs that may vouch for the server of `jwks_url`, instead of the system's.
        jwks_ca_file: Option<PathBuf> = None, "";
        /// File with a bearer token for the server of `jwks_url`, as Kubernetes asks for one. It is read for each
        /// request.
        jwks_token_file: Option<PathBuf> = None, "";
        /// Time between two requests for the keys. A token that names an unknown key has them asked for at once, but
        /// not more than once in five seconds.
        jwks_refresh_s: u32 = 300, "s", 5..=604_800;
        /// How long the keys are used when the server does not answer.
        jwks_max_age_s: u32 = 86_400, "s", 60..=31_536_000;
        /// How far the clocks of the issuer and of this machine may be apart.
        leeway_s: u16 = 30, "s", 0..=600;
        /// Whether tokens without an expiry (`exp`) are taken, too. Their connections do not end.
        allow_endless: bool = false, "";
        /// The claim that is the client's name: `sub`, or with slashes one inside of another,
        /// `/kubernetes.io/serviceaccount/name`.
        name_claim: String = "sub".into(), "";
        /// The claim with the client's groups: a text, or a list of texts. Empty: there are none.
        groups_claim: String = String::new(), "";
        /// Attributes of the client and the claims that have them: `namespace=/kubernetes.io/namespace`.
        attributes: Vec<String> = Vec::new(), "";
        /// The user name that a client must send with a token as its password; `{name}` stands for the client's name.
        /// Empty: any, or none.
        user_name: String = String::new(), "";
        /// Where the issuer's tokens may be: `password`, or the Authentication Methods `JWT` and `K8S-SAT` (with which
        /// clients of Azure IoT Operations send the token of their service account).
        accept: Vec<TokenUse> = vec![TokenUse::Password, TokenUse::Jwt], "";
    }
}

impl TokenIssuer {
    /// The attributes as names and claims; the first one that is not of the form is the error.
    ///
    /// # Errors
    /// That one.
    pub fn attribute_claims(&self) -> Result<Vec<(&str, &str)>, &str> {
        let split = |text: &'_ String| -> Option<(usize, usize)> {
            let at = text.find('=')?;
            (at > 0 && at + 1 < text.len()).then_some((at, at + 1))
        };
        self.attributes
            .iter()
            .map(|text| match split(text) {
                Some((end, start)) => Ok((&text[..end], &text[start..])),
                None => Err(text.as_str()),
            })
            .collect()
    }
}

impl Setting for Vec<Algorithm> {
    const KIND: &'static str = "list of signature algorithms";

    fn read(input: &Input<'_>) -> Result<Self, SettingError> {
        let words: Vec<String> = Setting::read(input)?;
        let words = words.iter().map(|word| {
            word.parse()
                .map_err(
                    |error: crate::auth::jwt::UnknownAlgorithm| SettingError::Malformed {
                        expected: "a signature algorithm such as ES256",
                        found: word.clone(),
                        why: error.to_string(),
                    },
                )
        });
        words.collect()
    }

    fn show(&self) -> String {
        let words: Vec<_> = self.iter().map(|word| format!("\"{word}\"")).collect();
        format!("[{}]", words.join(", "))
    }
}
