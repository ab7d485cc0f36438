//! Vectors of the standards, and tokens of somebody who wants to be somebody else.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use super::*;
use crate::base::time::Millis;

pub(super) const SECRET: &[u8] =
    b"a secret of sixty-four bytes, which is long enough for every hash";

/// A second of the year 2026.
pub(super) const NOW_S: u64 = 1_790_000_000;

/// RFC 7515, Appendix A: the claims of its examples.
const CLAIMS: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

/// Appendix A.1: HS256.
const HS256: (&str, &str, &str) = (
    "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9",
    "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
);

/// Appendix A.2: RS256.
const RS256: (&str, &str, &str) = (
    "eyJhbGciOiJSUzI1NiJ9",
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
    r#"{"kty":"RSA","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ","e":"AQAB"}"#,
);

/// Appendix A.3: ES256.
const ES256: (&str, &str, &str) = (
    "eyJhbGciOiJFUzI1NiJ9",
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
    r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
);

fn set(keys: &[&str]) -> KeySet {
    let text = format!("{{\"keys\":[{}]}}", keys.join(","));
    KeySet::of_jwks(text.as_bytes(), true).expect("keys of a standard")
}

/// What is asked of the issuer of these tests.
pub(super) fn rules() -> Rules {
    Rules {
        algorithms: Algorithm::ALL.to_vec(),
        ..Rules::default()
    }
}

pub(super) fn client() -> Client<'static> {
    Client {
        now: Millis(NOW_S * 1000),
        ..Client::default()
    }
}

fn judge_with(rules: &Rules, keys: &KeySet, token: &str) -> Result<Principal, TokenError> {
    rules.judge(&Token::parse(token.as_bytes())?, keys, &client())
}

fn judge(rules: &Rules, token: &str) -> Result<Principal, TokenError> {
    let keys = KeySet::of_secret(SECRET).expect("it is long enough");
    judge_with(rules, &keys, token)
}

/// A token with any header and claims, signed with [`SECRET`].
pub(super) fn signed(header: &str, claims: &str) -> String {
    let text = |part: &str| URL_SAFE_NO_PAD.encode(part);
    let message = format!("{}.{}", text(header), text(claims));
    let key = EncodingKey::from_secret(SECRET);
    let algorithm = jsonwebtoken::Algorithm::HS256;
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, algorithm);
    format!("{message}.{}", signature.expect("it can be signed"))
}

pub(super) fn token(claims: &Value) -> String {
    signed(r#"{"alg":"HS256"}"#, &claims.to_string())
}

pub(super) fn good() -> Value {
    json!({"sub": "anna", "exp": NOW_S + 60})
}

pub(super) fn with(name: &str, value: Value) -> Value {
    let mut claims = good();
    claims[name] = value;
    claims
}

#[test]
fn the_examples_of_rfc_7515() {
    let rules = Rules {
        issuer: "joe".into(),
        name: "iss".into(),
        ..rules()
    };
    let then = Client {
        now: Millis(1_300_819_000_000),
        ..Client::default()
    };
    let all = [HS256, RS256, ES256];
    for (header, signature, jwk) in all {
        let text = format!("{header}.{CLAIMS}.{signature}");
        let token = Token::parse(text.as_bytes()).expect("it is one");
        let judged = rules
            .judge(&token, &set(&[jwk]), &then)
            .expect("it is right");
        assert_eq!(&*judged.name, "joe");
        assert_eq!(judged.expires_at, Some(Millis(1_300_819_380_000)));
        for (_, _, other) in all.iter().filter(|other| other.2 != jwk) {
            let judged = rules.judge(&token, &set(&[other]), &then);
            assert_eq!(judged, Err(TokenError::UnknownKey), "{header} with {other}");
        }
        assert_eq!(
            rules.judge(&token, &set(&[jwk]), &client()),
            Err(TokenError::Expired)
        );
    }
}

#[test]
fn the_example_of_rfc_8037() {
    let key = r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    let token = Token {
        algorithm: Algorithm::EdDSA,
        key_id: None,
        signed: "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
        signature: "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        claims: serde_json::Map::new(),
    };
    assert!(set(&[key]).verify(&token).is_ok());
}

#[test]
fn keys_in_pem_are_bound_to_their_algorithm() {
    let cases = [
        (&rcgen::PKCS_ECDSA_P256_SHA256, Algorithm::ES256),
        (&rcgen::PKCS_ECDSA_P384_SHA384, Algorithm::ES384),
        (&rcgen::PKCS_ED25519, Algorithm::EdDSA),
    ];
    for (kind, algorithm) in cases {
        let pair = rcgen::KeyPair::generate_for(kind).expect("the kind is known");
        let der = pair.serialize_der();
        let key = match algorithm {
            Algorithm::EdDSA => EncodingKey::from_ed_der(&der),
            _ => EncodingKey::from_ec_der(&der),
        };
        let header = Header::new(algorithm.library());
        let token = jsonwebtoken::encode(&header, &good(), &key).expect("it can be signed");
        let keys = KeySet::of_pem(pair.public_key_pem().as_bytes()).expect("a public key");
        let judged = judge_with(&rules(), &keys, &token);
        assert_eq!(judged.map(|judged| judged.name), Ok("anna".into()));
        // The classic: the public key as a shared secret.
        let secret = KeySet::of_secret(pair.public_key_pem().as_bytes()).expect("it is long");
        assert!(judge_with(&rules(), &secret, &token).is_err());
        let key = EncodingKey::from_secret(pair.public_key_pem().as_bytes());
        let confused = jsonwebtoken::encode(&Header::default(), &good(), &key);
        let confused = confused.expect("it can be signed");
        let judged = judge_with(&rules(), &keys, &confused);
        assert_eq!(judged, Err(TokenError::UnknownKey), "{algorithm}");
        let private = KeySet::of_pem(pair.serialize_pem().as_bytes());
        assert_eq!(private.err(), Some(KeyError::NotPublic));
    }
    assert_eq!(KeySet::of_pem(b"").err(), Some(KeyError::NoPem));
    assert_eq!(
        KeySet::of_secret(b"short").err(),
        Some(KeyError::ShortSecret)
    );
}

#[test]
fn a_header_chooses_only_among_what_is_allowed() {
    let claims = good().to_string();
    let narrow = Rules {
        algorithms: vec![Algorithm::ES256],
        ..rules()
    };
    let plain = signed(r#"{"alg":"HS256"}"#, &claims);
    assert!(judge(&rules(), &plain).is_ok());
    assert_eq!(judge(&narrow, &plain), Err(TokenError::ForbiddenAlgorithm));
    let cases = [
        (r#"{"alg":"none"}"#, TokenError::UnknownAlgorithm),
        (r#"{"alg":"NONE"}"#, TokenError::UnknownAlgorithm),
        (r#"{"alg":["HS256"]}"#, TokenError::UnknownAlgorithm),
        (r#"{"alg":null}"#, TokenError::UnknownAlgorithm),
        (r#"{}"#, TokenError::UnknownAlgorithm),
        (r#"{"alg":"HS256","alg":"HS256"}"#, TokenError::NotJson),
        (r#"{"alg":"RS256"}"#, TokenError::UnknownKey),
        (r#"{"alg":"ES256"}"#, TokenError::UnknownKey),
        (r#"{"alg":"HS512"}"#, TokenError::Signature),
        (
            r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
            TokenError::Header,
        ),
        (r#"{"alg":"HS256","zip":"DEF"}"#, TokenError::Header),
        (r#"{"alg":"HS256","kid":7}"#, TokenError::Header),
        (r#"["HS256"]"#, TokenError::NotJson),
        ("", TokenError::NotJson),
    ];
    for (header, error) in cases {
        assert_eq!(
            judge(&rules(), &signed(header, &claims)),
            Err(error),
            "{header}"
        );
    }
    let long = format!(r#"{{"alg":"HS256","kid":"{}"}}"#, "k".repeat(300));
    assert_eq!(
        judge(&rules(), &signed(&long, &claims)),
        Err(TokenError::Header)
    );
    // Keys that the token brings along are not looked at.
    let own = format!(
        r#"{{"alg":"HS256","jwk":{},"jku":"http://127.0.0.1/"}}"#,
        HS256.2
    );
    assert!(judge(&rules(), &signed(&own, &claims)).is_ok());
}

#[test]
fn a_key_id_is_a_name_and_nothing_else() {
    let named = |id: &str| HS256.2.replace("{", &format!("{{\"kid\":\"{id}\","));
    let secret = format!(
        r#"{{"kty":"oct","kid":"a","k":"{}"}}"#,
        URL_SAFE_NO_PAD.encode(SECRET)
    );
    let keys = set(&[&named("b"), &secret]);
    let judge = |id: &str| {
        let header = json!({"alg": "HS256", "kid": id}).to_string();
        judge_with(&rules(), &keys, &signed(&header, &good().to_string()))
    };
    assert!(judge("a").is_ok());
    assert_eq!(judge("b"), Err(TokenError::Signature));
    for id in ["c", "", "../../dev/null", "a' OR '1'='1", "a\u{0}"] {
        assert_eq!(judge(id), Err(TokenError::UnknownKey), "{id:?}");
    }
    assert!(
        judge_with(&rules(), &keys, &token(&good())).is_ok(),
        "every key is tried"
    );
}

#[test]
fn sets_of_keys_are_read_with_care() {
    let pass = |jwk: &str| {
        let text = format!("{{\"keys\":[{jwk}]}}");
        KeySet::of_jwks(text.as_bytes(), false)
    };
    assert!(pass(ES256.2).is_ok() && pass(RS256.2).is_ok());
    assert_eq!(
        pass(HS256.2).err(),
        Some(KeyError::NoUsableKey),
        "a published secret"
    );
    let add = |member: &str| ES256.2.replace("{", &format!("{{{member},"));
    assert!(pass(&add(r#""use":"sig","key_ops":["verify"],"alg":"ES256""#)).is_ok());
    for member in [
        r#""use":"enc""#,
        r#""key_ops":["sign"]"#,
        r#""key_ops":"verify""#,
        r#""alg":"none""#,
        r#""alg":7"#,
        r#""kid":7"#,
    ] {
        assert_eq!(
            pass(&add(member)).err(),
            Some(KeyError::NoUsableKey),
            "{member}"
        );
    }
    let short = r#"{"kty":"RSA","n":"AQAB","e":"AQAB"}"#;
    assert_eq!(pass(short).err(), Some(KeyError::NoUsableKey));
    assert!(
        pass(&format!("{short},{}", ES256.2)).is_ok(),
        "others go on"
    );
    let curve = ES256.2.replace("P-256", "P-384");
    assert_eq!(pass(&curve).err(), Some(KeyError::NoUsableKey));
    let many = vec![ES256.2; MOST_KEYS + 1].join(",");
    assert_eq!(pass(&many).err(), Some(KeyError::TooMany));
    assert_eq!(KeySet::of_jwks(b"[]", true).err(), Some(KeyError::NotASet));
    // A key that says its algorithm is used for no other.
    let bound = set(&[&add(r#""alg":"ES384""#)]);
    let text = format!("{}.{CLAIMS}.{}", ES256.0, ES256.1);
    let token = Token::parse(text.as_bytes()).expect("it is one");
    assert_eq!(bound.verify(&token), Err(TokenError::UnknownKey));
}

#[test]
fn times_are_judged_with_leeway() {
    let rules = Rules {
        leeway_ms: 30_000,
        ..rules()
    };
    let judge = |claims: &Value| super::tests::judge(&rules, &token(claims));
    let end = |claims: &Value| judge(claims).map(|judged| judged.expires_at);
    assert_eq!(end(&good()), Ok(Some(Millis((NOW_S + 90) * 1000))));
    assert_eq!(
        end(&with("exp", json!(NOW_S - 29))),
        Ok(Some(Millis((NOW_S + 1) * 1000)))
    );
    assert_eq!(
        end(&with("exp", json!(NOW_S - 30))),
        Err(TokenError::Expired)
    );
    assert!(end(&with("exp", json!(NOW_S as f64 + 0.5))).is_ok());
    assert!(end(&with("nbf", json!(NOW_S + 30))).is_ok());
    assert_eq!(
        end(&with("nbf", json!(NOW_S + 31))),
        Err(TokenError::NotQuiteYet)
    );
    assert_eq!(
        end(&with("iat", json!(NOW_S + 3_600))),
        Err(TokenError::NotYet)
    );
    for value in [
        json!("1790000060"),
        json!(-1),
        json!(1e300),
        json!(null),
        json!([1]),
        json!(true),
    ] {
        for name in ["exp", "nbf", "iat"] {
            assert_eq!(
                end(&with(name, value.clone())),
                Err(TokenError::Time),
                "{name} {value}"
            );
        }
    }
    for number in ["1e400", "99999999999999999999999999", "0x10", "NaN", "1e"] {
        let claims = format!(r#"{{"sub":"anna","exp":{number}}}"#);
        let judged = super::tests::judge(&rules, &signed(r#"{"alg":"HS256"}"#, &claims));
        assert!(judged.is_err(), "{number}");
    }
    assert_eq!(end(&json!({"sub": "anna"})), Err(TokenError::NeverExpires));
    let endless = Rules {
        allows_endless: true,
        ..rules.clone()
    };
    let judged = super::tests::judge(&endless, &token(&json!({"sub": "anna"})));
    assert_eq!(judged.map(|judged| judged.expires_at), Ok(None));
}

#[test]
fn a_token_is_for_this_server_or_for_nobody() {
    let ours = Rules {
        audiences: vec!["mqtt".into(), "broker".into()],
        ..rules()
    };
    let audience = |value: Value| token(&with("aud", value));
    assert!(judge(&ours, &audience(json!("mqtt"))).is_ok());
    assert!(judge(&ours, &audience(json!(["x", "broker"]))).is_ok());
    for value in [
        json!("mqt"),
        json!([]),
        json!(["x"]),
        json!({"mqtt": 1}),
        json!(null),
        json!(""),
    ] {
        assert_eq!(judge(&ours, &audience(value)), Err(TokenError::Audience));
    }
    assert_eq!(judge(&ours, &token(&good())), Err(TokenError::Audience));
    assert_eq!(
        judge(&rules(), &audience(json!("mqtt"))),
        Err(TokenError::Audience)
    );
    let issuer = Rules {
        issuer: "https://issuer".into(),
        ..rules()
    };
    assert!(judge(&issuer, &token(&with("iss", json!("https://issuer")))).is_ok());
    for value in [
        json!("https://issuer/"),
        json!(["https://issuer"]),
        json!(null),
    ] {
        let judged = judge(&issuer, &token(&with("iss", value)));
        assert_eq!(judged, Err(TokenError::UnknownIssuer));
    }
}

#[test]
fn claims_become_name_groups_and_attributes() {
    let rules = Rules {
        name: "/kubernetes.io/serviceaccount/name".into(),
        groups: Some("roles".into()),
        attributes: vec![
            ("namespace".into(), "/kubernetes.io/namespace".into()),
            ("level".into(), "level".into()),
            ("absent".into(), "absent".into()),
        ],
        ..rules()
    };
    let mut claims = json!({
        "exp": NOW_S + 60, "roles": ["a", "b"], "level": 7,
        "kubernetes.io": {"namespace": "plant", "serviceaccount": {"name": "press"}},
    });
    let principal = judge(&rules, &token(&claims)).expect("all is there");
    assert_eq!(&*principal.name, "press");
    assert_eq!(principal.groups, ["a".into(), "b".into()]);
    let attributes: Vec<_> = principal
        .attributes
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(attributes, [("level", "7"), ("namespace", "plant")]);
    claims["roles"] = json!(["a", 1]);
    assert_eq!(judge(&rules, &token(&claims)), Err(TokenError::Claims));
    claims["roles"] = json!(vec!["a"; 257]);
    assert_eq!(judge(&rules, &token(&claims)), Err(TokenError::Claims));
    claims["roles"] = json!("one");
    claims["level"] = json!({"a": 1});
    assert_eq!(judge(&rules, &token(&claims)), Err(TokenError::Claims));
    let names = [
        json!(""),
        json!(7),
        json!(null),
        json!(["a"]),
        json!("a\nb"),
        json!("x".repeat(1025)),
    ];
    for name in names {
        let judged = judge(&super::tests::rules(), &token(&with("sub", name)));
        assert_eq!(judged, Err(TokenError::Name));
    }
}

#[test]
fn duplicate_claims_deep_json_and_bad_base64_are_refused() {
    let header = r#"{"alg":"HS256"}"#;
    let twice = format!(r#"{{"sub":"anna","exp":{},"sub":"root"}}"#, NOW_S + 60);
    assert_eq!(
        judge(&rules(), &signed(header, &twice)),
        Err(TokenError::NotJson)
    );
    let deep = format!(r#"{{"sub":{}1{}}}"#, "[".repeat(2000), "]".repeat(2000));
    assert_eq!(
        judge(&rules(), &signed(header, &deep)),
        Err(TokenError::NotJson)
    );
    let good = token(&good());
    let large = format!("{good}{}", "A".repeat(LARGEST_TOKEN_BYTES));
    assert_eq!(judge(&rules(), &large), Err(TokenError::TooLarge));
    for text in [
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "a.b.c.d.e",
        "ey.ey.ey",
        "\u{0}.\u{0}.\u{0}",
    ] {
        assert!(judge(&rules(), text).is_err(), "{text:?}");
    }
    for wrong in [
        format!("{good}="),
        format!("{good}A"),
        good.replace('.', ".."),
        good.replacen('.', "=.", 1),
        good.replacen('.', "+.", 1),
        format!(" {good}"),
        good[..good.len() - 1].to_owned(),
        good[..good.rfind('.').expect("it has parts") + 1].to_owned(),
    ] {
        assert!(judge(&rules(), &wrong).is_err(), "{wrong}");
    }
    assert!(
        judge(&rules(), &format!("{good}\n")).is_ok(),
        "as files end"
    );
    // The last character of the signature has two bits that mean nothing: only zeros are taken.
    let last = good.chars().last().expect("it is not empty");
    let others = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .filter(|other| *other != last);
    for other in others {
        let text = format!("{}{other}", &good[..good.len() - 1]);
        assert!(judge(&rules(), &text).is_err(), "{other}");
    }
}
