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
    is_failing: bool,
    is_renewed: bool,
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

    fn is_failing(&self) -> bool {
        self.is_failing
    }

    fn is_renewed(&self) -> bool {
        self.is_renewed
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
        is_failing: false,
        is_renewed: false,
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

/// What a client with this token is told.
fn told(issuer: Issuer, token: &str) -> crate::codec::ReasonCode {
    let client = Client {
        password: Some(token.as_bytes()),
        ..client()
    };
    match verdict(&Tokens::new(vec![issuer]), &client) {
        Verdict::Refused(denial) => denial.reason,
        _ => panic!("it is refused"),
    }
}

/// The set that an issuer publishes may lag behind its tokens; there is nothing to guess with a key that is not there.
#[test]
fn a_token_of_an_unknown_key_is_no_guess() {
    let source = Fetched {
        keys: Arc::default(),
        coming: KeySet::of_jwks(br#"{"keys":[]}"#, true).unwrap_or_default(),
        is_failing: false,
        is_renewed: true,
    };
    let tokens = Tokens::new(vec![secret_issuer(Box::new(source))]);
    let guess = |token: &str| {
        let client = Client {
            password: Some(token.as_bytes()),
            ..client()
        };
        match verdict(&tokens, &client) {
            Verdict::Refused(denial) => (denial.guess, denial.detail),
            verdict => panic!("{verdict:?}"),
        }
    };
    let named = signed(r#"{"alg":"HS256","kid":"new"}"#, &good().to_string());
    for _ in 0..3 {
        let (guess, detail) = guess(&named);
        assert_eq!(guess, Guess::Nothing, "{detail}");
    }
    let keys = KeySet::of_secret(SECRET).expect("it is long enough");
    let tokens = Tokens::new(vec![secret_issuer(Box::new(Arc::new(keys)))]);
    // The issuer has made it, so nobody has guessed anything.
    for (claim, value) in [
        ("exp", json!(1)),
        ("aud", json!("another")),
        ("sub", json!(7)),
    ] {
        let token = token(&with(claim, value));
        let client = Client {
            password: Some(token.as_bytes()),
            ..client()
        };
        match verdict(&tokens, &client) {
            Verdict::Refused(denial) => assert_eq!(denial.guess, Guess::Nothing, "{claim}"),
            verdict => panic!("{verdict:?}"),
        }
    }
    let forged = format!("{}x", token(&good()));
    let client = Client {
        password: Some(forged.as_bytes()),
        ..client()
    };
    match verdict(&tokens, &client) {
        Verdict::Refused(denial) => assert_eq!(denial.guess, Guess::Credential),
        verdict => panic!("{verdict:?}"),
    }
}

/// Whoever is told that the server is busy may come again, and is not counted as somebody who guesses.
#[test]
fn what_a_token_can_do_nothing_for_is_no_guess() {
    use crate::codec::ReasonCode::{NotAuthorized, ServerBusy};
    let keys = || KeySet::of_secret(SECRET).expect("it is long enough");
    let source = |keys: Option<KeySet>, is_failing, is_renewed| {
        let there = keys.map(Arc::new);
        secret_issuer(Box::new(Fetched {
            keys: Arc::new(parking_lot::Mutex::new(there)),
            coming: KeySet::default(),
            is_failing,
            is_renewed,
        }))
    };
    let fetched = |keys, is_failing| source(keys, is_failing, false);
    let named = signed(r#"{"alg":"HS256","kid":"new"}"#, &good().to_string());
    let other = || {
        let other = KeySet::of_jwks(br#"{"keys":[{"kty":"oct","kid":"other","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}"#, true);
        other.expect("a set")
    };
    assert_eq!(told(fetched(Some(other()), false), &named), NotAuthorized);
    assert_eq!(told(fetched(Some(other()), true), &named), ServerBusy);
    // Somebody has had newer keys looked for just now, so nobody knows whether there is one of this name.
    assert_eq!(told(source(Some(other()), false, true), &named), ServerBusy);
    let now_s = super::tests::NOW_S;
    for (start, expected) in [(now_s + 120, ServerBusy), (now_s + 86_400, NotAuthorized)] {
        let early = token(&with("nbf", json!(start)));
        assert_eq!(told(fetched(Some(keys()), false), &early), expected);
    }
    let forged = format!("{}x", token(&good()));
    assert_eq!(told(fetched(Some(keys()), true), &forged), NotAuthorized);
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
