//! Tokens as a method of a chain: in the password, in AUTH, with keys that come later; and any bytes at all.

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::json;

use super::tests::{SECRET, client, good, rules, signed, token, with};
use super::*;

/// Keys that come after they were asked for.
struct Fetched {
    keys: Arc<parking_lot::Mutex<Option<Arc<KeySet>>>>,
    coming: KeySet,
}

impl KeySource for Fetched {
    fn keys(&self) -> Option<Arc<KeySet>> {
        self.keys.lock().clone()
    }

    fn refresh(&self) -> Option<Later<()>> {
        if self.keys.lock().is_some() {
            return None;
        }
        let (keys, coming) = (self.keys.clone(), Arc::new(self.coming.clone()));
        Some(Box::pin(async move { *keys.lock() = Some(coming) }))
    }
}

fn secret_issuer(keys: Box<dyn KeySource>) -> Issuer {
    Issuer {
        rules: rules(),
        keys,
        in_password: true,
        methods: vec![JWT],
    }
}

fn verdict(tokens: &Tokens, client: &Client<'_>) -> Verdict {
    match tokens.judge(client) {
        Verdict::Pending(later) => later.now_or_never().expect("nothing waits"),
        verdict => verdict,
    }
}

#[test]
fn a_password_that_is_no_token_is_for_another_method() {
    let keys = KeySet::of_secret(SECRET).expect("it is long enough");
    let mut issuer = secret_issuer(Box::new(Arc::new(keys)));
    issuer.rules.user_name = "token:{name}".into();
    let tokens = Tokens::new(vec![issuer]);
    let good = token(&good());
    let judge = |user_name: Option<&str>, password: Option<&str>| {
        let client = Client {
            user_name,
            password: password.map(str::as_bytes),
            ..client()
        };
        match verdict(&tokens, &client) {
            Verdict::NotApplicable => "passed over".to_owned(),
            Verdict::Accepted(principal) => principal.name.to_string(),
            Verdict::Refused(denial) => denial.detail.into_owned(),
            Verdict::Pending(_) => unreachable!("it was awaited"),
        }
    };
    assert_eq!(judge(Some("token:anna"), Some(&good)), "anna");
    assert_eq!(
        judge(Some("token:bob"), Some(&good)),
        TokenError::UserName.to_string()
    );
    assert_eq!(judge(None, Some(&good)), TokenError::UserName.to_string());
    for password in [
        None,
        Some(""),
        Some("secret"),
        Some("eyes.on"),
        Some("ey.a b.c"),
    ] {
        assert_eq!(judge(Some("token:anna"), password), "passed over");
    }
}

#[test]
fn keys_that_are_not_there_are_looked_for_once() {
    let keys = KeySet::of_secret(SECRET).expect("it is long enough");
    let source = Fetched {
        keys: Arc::default(),
        coming: keys,
    };
    let tokens = Tokens::new(vec![secret_issuer(Box::new(source))]);
    let (good, bad) = (token(&good()), token(&with("exp", json!(1))));
    let judge = |token: &str| {
        let client = Client {
            password: Some(token.as_bytes()),
            ..client()
        };
        verdict(&tokens, &client)
    };
    assert!(matches!(judge(&bad), Verdict::Refused(_)));
    assert!(matches!(judge(&good), Verdict::Accepted(_)));
    let unknown = signed(r#"{"alg":"ES256"}"#, "{}");
    assert!(matches!(judge(&unknown), Verdict::Refused(_)));
}

#[test]
fn a_token_comes_in_auth_too() {
    let keys = KeySet::of_secret(SECRET).expect("it is long enough");
    let tokens = Tokens::new(vec![secret_issuer(Box::new(Arc::new(keys)))]);
    assert!(tokens.mechanism(K8S_SAT).is_none(), "not for these tokens");
    let mechanism = tokens.mechanism(JWT).expect("it is for these");
    let mut exchange = mechanism.begin(&client());
    assert!(matches!(exchange.step(b""), Step::Continue(data) if data.is_empty()));
    let good = token(&good());
    let step = exchange.step(good.as_bytes());
    assert!(matches!(step, Step::Success { principal, .. } if &*principal.name == "anna"));
    assert!(matches!(exchange.step(b"nonsense"), Step::Refused(_)));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes: Vec<u8>, header: String, claims: String) {
        let keys = KeySet::of_secret(SECRET).expect("it is long enough");
        let judge = |bytes: &[u8]| {
            let token = Token::parse(bytes)?;
            rules().judge(&token, &keys, &client())
        };
        assert!(judge(&bytes).is_err());
        let _ = judge(signed(&header, &claims).as_bytes());
        let _ = KeySet::of_jwks(&bytes, true);
        let _ = KeySet::of_jwks(claims.as_bytes(), true);
        let _ = KeySet::of_pem(&bytes);
    }

    #[test]
    fn a_token_that_is_changed_anywhere_is_no_token(place: proptest::sample::Index, byte: u8) {
        let good = token(&good());
        let mut bytes = good.clone().into_bytes();
        let place = place.index(bytes.len());
        proptest::prop_assume!(bytes[place] != byte);
        bytes[place] = byte;
        // A line's end at the end is not part of it.
        proptest::prop_assume!(!byte.is_ascii_whitespace());
        let keys = KeySet::of_secret(SECRET).expect("it is long enough");
        let judged = Token::parse(&bytes).and_then(|token| rules().judge(&token, &keys, &client()));
        assert!(judged.is_err());
    }
}
