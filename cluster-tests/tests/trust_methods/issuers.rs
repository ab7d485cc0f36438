//! Who says who a client is: two issuers of tokens, of which one publishes its keys, and a service that is asked.

use super::*;

pub const SECRET: &[u8] = b"a secret of the test, which both sides know, of many bytes";

/// A server on this machine: what it answers to each request, which it gets whole.
pub fn serve(answer: fn(&str) -> (u16, String)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut bytes = [0; 64 << 10];
                let read = stream.read(&mut bytes).unwrap_or(0);
                let (status, body) = answer(&String::from_utf8_lossy(&bytes[..read]));
                let length = body.len();
                let head = format!("HTTP/1.1 {status} Text\r\nContent-Length: {length}\r\n");
                let _ = write!(stream, "{head}Connection: close\r\n\r\n{body}");
            });
        }
    });
    address
}

/// A key of the issuer whose keys are published.
pub struct Key {
    pub id: &'static str,
    pub pair: rcgen::KeyPair,
}

impl Key {
    pub fn new(id: &'static str) -> Key {
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
        Key {
            id,
            pair: pair.expect("a key can be made"),
        }
    }

    pub fn jwk(&self) -> Json {
        let raw = self.pair.public_key_raw();
        let text = |bytes: &[u8]| base64url(bytes);
        json!({"kty": "EC", "crv": "P-256", "kid": self.id, "alg": "ES256", "use": "sig",
               "x": text(&raw[1..33]), "y": text(&raw[33..])})
    }

    pub fn token(&self, claims: &Json) -> String {
        let header = Header {
            kid: Some(self.id.into()),
            ..Header::new(Algorithm::ES256)
        };
        let key = EncodingKey::from_ec_der(&self.pair.serialize_der());
        made(jsonwebtoken::encode(&header, claims, &key).expect("it can be signed"))
    }
}

pub fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let padded = [chunk, &[0, 0]].concat();
        let group = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..=chunk.len() {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

/// The keys, and those that are published now.
pub fn keys() -> &'static [Key; 2] {
    static KEYS: OnceLock<[Key; 2]> = OnceLock::new();
    KEYS.get_or_init(|| [Key::new("first"), Key::new("second")])
}

pub static PUBLISHED: Mutex<usize> = Mutex::new(0);

/// Every token that was made.
pub static MADE: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub fn made(token: String) -> String {
    let mut made = MADE.lock().expect("nobody panics with it");
    made.push(token.clone());
    token
}

pub fn jwks(_request: &str) -> (u16, String) {
    let published = *PUBLISHED.lock().expect("nobody panics with it");
    let set = json!({"keys": [keys()[published].jwk()]});
    (200, set.to_string())
}

/// Judges by the user name.
pub fn judge(request: &str) -> (u16, String) {
    let body = request.split("\r\n\r\n").nth(1).unwrap_or_default();
    let asked: Json = serde_json::from_str(body).unwrap_or_default();
    match (asked["user_name"].as_str(), asked["password"].as_str()) {
        (Some("anna"), Some("right")) => (200, json!({"result": "allow"}).to_string()),
        (Some("short"), _) => {
            let end = now_s() + 2;
            (
                200,
                json!({"result": "allow", "expires_at": end}).to_string(),
            )
        }
        (Some("down"), _) => (503, String::new()),
        (Some("odd"), _) => (200, "allow".into()),
        (Some("passer-by"), _) => (200, json!({"result": "ignore"}).to_string()),
        _ => (200, json!({"result": "deny"}).to_string()),
    }
}

pub fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_secs()
}

pub fn claims(issuer: &str, name: &str, lives_s: i64) -> Json {
    json!({"iss": issuer, "sub": name, "aud": ["mqtt"], "exp": now_s() as i64 + lives_s})
}

pub fn with_secret(claims: &Json) -> String {
    let key = EncodingKey::from_secret(SECRET);
    made(jsonwebtoken::encode(&Header::default(), claims, &key).expect("it can be signed"))
}

/// A token of the issuer with the secret.
pub fn plain(name: &str, lives_s: i64) -> String {
    with_secret(&claims("plain", name, lives_s))
}

/// A token of the issuer that publishes its keys.
pub fn published(name: &str, lives_s: i64) -> String {
    keys()[0].token(&claims("published", name, lives_s))
}

/// The issuer that signs with a secret, by every hash: as long as the longest one asks for (RFC 7518 §3.2).
pub const LONG_SECRET: &[u8] =
    b"a secret of the test, as long as the longest of the hashes, and a bit";

/// Everything that issuers sign with here, each with the issuer's name.
pub struct Signers {
    list: Vec<(&'static str, Algorithm, EncodingKey)>,
    /// The public keys.
    pub pem: String,
}

impl Signers {
    pub fn get() -> &'static Signers {
        static SIGNERS: OnceLock<Signers> = OnceLock::new();
        SIGNERS.get_or_init(Signers::new)
    }

    fn new() -> Signers {
        use Algorithm::{
            ES384, EdDSA, HS256, HS384, HS512, PS256, PS384, PS512, RS256, RS384, RS512,
        };
        let pair = |kind| rcgen::KeyPair::generate_for(kind).expect("a key can be made");
        let (rsa, p384, ed25519) = (
            pair(&rcgen::PKCS_RSA_SHA256),
            pair(&rcgen::PKCS_ECDSA_P384_SHA384),
            pair(&rcgen::PKCS_ED25519),
        );
        let rsa_key = EncodingKey::from_rsa_pem(rsa.serialize_pem().as_bytes());
        let p384_key = EncodingKey::from_ec_pem(p384.serialize_pem().as_bytes());
        let ed25519_key = EncodingKey::from_ed_pem(ed25519.serialize_pem().as_bytes());
        let kinds = [
            (
                "hashes",
                EncodingKey::from_secret(LONG_SECRET),
                &[HS256, HS384, HS512][..],
            ),
            (
                "keys",
                rsa_key.expect("an RSA key"),
                &[RS256, RS384, RS512, PS256, PS384, PS512][..],
            ),
            ("keys", p384_key.expect("a key of P-384"), &[ES384][..]),
            ("keys", ed25519_key.expect("a key of Ed25519"), &[EdDSA][..]),
        ];
        let list = kinds.into_iter().flat_map(|(issuer, key, algorithms)| {
            let signs = |algorithm: &Algorithm| (issuer, *algorithm, key.clone());
            algorithms.iter().map(signs).collect::<Vec<_>>()
        });
        Signers {
            list: list.collect(),
            pem: [rsa, p384, ed25519]
                .map(|pair| pair.public_key_pem())
                .concat(),
        }
    }

    /// A token of each algorithm, with its name.
    pub fn tokens(&self) -> Vec<(String, String)> {
        let tokens = self.list.iter().map(|(issuer, algorithm, key)| {
            let claims = claims(issuer, "anna", 60);
            let token = jsonwebtoken::encode(&Header::new(*algorithm), &claims, key);
            (
                format!("{algorithm:?}"),
                made(token.expect("it can be signed")),
            )
        });
        tokens.collect()
    }
}
