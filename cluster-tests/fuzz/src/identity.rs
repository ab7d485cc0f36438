//! Tokens and certificates.

use crate::{auth, base};

/// A token, whatever it looks like: nobody comes in with bytes that nobody has signed.
pub fn token(bytes: &[u8]) {
    let issuer = issuer();
    let client = auth::Client {
        password: Some(bytes),
        now: NOW,
        ..auth::Client::default()
    };
    let verdict = auth::Check::judge(&issuer, &client);
    assert!(
        !matches!(verdict, auth::Verdict::Accepted(_)),
        "{verdict:?}"
    );
    let _ = auth::jwt::KeySet::of_jwks(bytes, true);
    let _ = auth::jwt::KeySet::of_pem(bytes);
}

/// A token that the issuer has signed, with any header and claims, a zero byte between them: who comes in has a name
/// that can be logged, and not for ever.
pub fn signed_token(bytes: &[u8]) {
    use base64::Engine as _;
    let text = |part: &[u8]| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(part);
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (header, claims) = (parts.next(), parts.next());
    let (header, claims) = (header.unwrap_or_default(), claims.unwrap_or_default());
    let message = format!("{}.{}", text(header), text(claims));
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET);
    let algorithm = jsonwebtoken::Algorithm::HS256;
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, algorithm);
    let token = format!("{message}.{}", signature.expect("a secret signs"));
    let client = auth::Client {
        password: Some(token.as_bytes()),
        now: NOW,
        ..auth::Client::default()
    };
    if let auth::Verdict::Accepted(principal) = auth::Check::judge(&issuer(), &client) {
        assert!(!principal.name.is_empty());
        assert!(!principal.name.chars().any(char::is_control));
        assert!(principal.expires_at.is_some_and(|end| end > NOW));
    }
}

/// A certificate: whatever is read from it can be logged.
pub fn certificate(der: &[u8]) {
    use auth::certificate::{Certificates, GroupsOf, NameOf};
    for name in [NameOf::CommonName, NameOf::Dns, NameOf::Uri, NameOf::Email] {
        let certificates = Certificates {
            name,
            groups: GroupsOf::OrganizationalUnit,
            attributes: true,
        };
        let Ok(principal) = certificates.principal(der, NOW) else {
            continue;
        };
        let groups = principal.groups.iter().map(|text| &**text);
        let attributes = principal.attributes.values().map(|text| &**text);
        for text in groups.chain(attributes).chain([&*principal.name]) {
            assert!(!text.is_empty() && !text.chars().any(char::is_control));
        }
    }
}

const NOW: base::time::Millis = base::time::Millis(1_790_000_000_000);

const SECRET: &[u8] = b"a secret of the fuzzer, of more than thirty-two bytes";

fn issuer() -> auth::jwt::Tokens {
    let keys = auth::jwt::KeySet::of_secret(SECRET).expect("it is long enough");
    auth::jwt::Tokens::new(vec![auth::jwt::Issuer {
        rules: auth::jwt::Rules {
            algorithms: auth::jwt::Algorithm::ALL.to_vec(),
            groups: Some("groups".into()),
            attributes: vec![("site".into(), "/a/b".into())],
            ..auth::jwt::Rules::default()
        },
        keys: Box::new(std::sync::Arc::new(keys)),
        in_password: true,
        methods: Vec::new(),
    }])
}
