//! What a back end does over HTTPS, and the tokens that it and its devices sign. Everything is plain HTTP here, on
//! loopback.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::http;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value as Json, json};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

pub const HOST: &str = "hub.test";

/// A key of a policy with every permission.
const POLICY_KEY: &[u8] = b"the policy's key, which is long enough";

/// The primary and the secondary key of every identity that is made here.
pub const KEYS: [&[u8]; 2] = [
    b"the primary key of this identity",
    b"the secondary key of an identity",
];

/// Who asks the nodes over HTTPS.
#[derive(Clone)]
pub struct BackEnd {
    https: Vec<SocketAddr>,
}

/// A cluster with a hub.
pub struct Hub {
    pub cluster: Cluster,
    pub back_end: BackEnd,
    _directory: TempDir,
}

pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let padded = [chunk, &[0, 0]].concat();
        let group = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for place in 0..4 {
            let digit = (group >> (18 - 6 * place)) & 63;
            text.push(match place <= chunk.len() {
                true => char::from(DIGITS[digit as usize]),
                false => '=',
            });
        }
    }
    text
}

pub fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_secs()
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// A token for a path of the hub, as the client libraries sign it.
pub fn token(path: &str, key: &[u8], policy: Option<&str>, lives_s: u64) -> String {
    let resource = encoded(&format!("{HOST}{path}"));
    let end = now_s() + lives_s;
    let message = format!("{resource}\n{end}");
    let key = EncodingKey::from_secret(key);
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256);
    let signature = signature
        .expect("HMAC signs everything")
        .replace('-', "+")
        .replace('_', "/");
    let signature = encoded(&format!("{signature}="));
    let policy = policy
        .map(|name| format!("&skn={name}"))
        .unwrap_or_default();
    format!("SharedAccessSignature sr={resource}&sig={signature}&se={end}{policy}")
}

/// The same of the policy, for the whole hub.
pub fn policy_token() -> String {
    token("", POLICY_KEY, Some("all"), 3_600)
}

impl BackEnd {
    /// Asks a node; `None` when it does not answer in time.
    pub fn try_ask(
        &self,
        node: usize,
        method: &str,
        path: &str,
        etag: &str,
        body: &Json,
    ) -> Option<(u16, Json)> {
        let (token, target) = (policy_token(), format!("{path}?api-version=2021-04-12"));
        let mut fields = vec![("authorization", &*token)];
        if !etag.is_empty() {
            fields.push(("if-match", etag));
        }
        let body = match body {
            Json::Null => String::new(),
            body => body.to_string(),
        };
        let answer = http::ask(self.https[node], method, &target, &fields, &body)?;
        let parsed = serde_json::from_str(&answer.body).unwrap_or(Json::Null);
        Some((answer.status, parsed))
    }
}

impl Hub {
    pub fn start() -> Hub {
        Hub::start_with(Plan::default())
    }

    /// What the plan has for the end of the files stands in their section `[hub]`.
    pub fn start_with(plan: Plan) -> Hub {
        let directory = TempDir::new().expect("a temporary directory can be made");
        let policies = directory.path().join("policies");
        let line = format!(
            "all:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:{}\nback:ServiceConnect:{}\n",
            base64(POLICY_KEY),
            base64(POLICY_KEY)
        );
        std::fs::write(&policies, line).expect("a file can be written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&policies, mode).expect("it is there");
        let taken: Vec<TcpListener> = (0..plan.size)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"))
            .collect();
        let https: Vec<SocketAddr> = taken
            .iter()
            .map(|listener| listener.local_addr().expect("it is bound"))
            .collect();
        drop(taken);
        let environment = https.iter().enumerate().map(|(index, address)| {
            let name = "QUORUMQ__HUB__HTTPS_LISTEN".to_owned();
            (index, name, address.to_string())
        });
        let cluster = Cluster::start_with(Plan {
            extra: format!(
                "[hub]\nhost_names = [\"{HOST}\"]\npolicies_file = {policies:?}\nallow_plaintext = true\n{}",
                plan.extra
            ),
            environment: environment.chain(plan.environment).collect(),
            ..plan
        });
        Hub {
            cluster,
            back_end: BackEnd { https },
            _directory: directory,
        }
    }

    /// Asks a node as the back end.
    #[track_caller]
    pub fn ask_node(
        &self,
        node: usize,
        method: &str,
        path: &str,
        etag: &str,
        body: &Json,
    ) -> (u16, Json) {
        let answer = self.back_end.try_ask(node, method, path, etag, body);
        answer.unwrap_or_else(|| panic!("{method} {path}: no answer"))
    }

    /// Asks some node; panics unless the answer is 200 or 204.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, etag: &str, body: &Json) -> Json {
        let (status, answer) = self.ask_node(0, method, path, etag, body);
        assert!(
            matches!(status, 200 | 204),
            "{method} {path}: {status} {answer}"
        );
        answer
    }

    /// Makes a device, or a module of one, with [`KEYS`].
    #[track_caller]
    pub fn create(&self, identity: &str) {
        self.ask(
            "PUT",
            &path_of(identity),
            "",
            &document(identity, KEYS, "enabled"),
        );
    }

    /// The same with a certificate in place of keys.
    #[track_caller]
    pub fn create_with(&self, device: &str, authentication: &Json) {
        let document = json!({"deviceId": device, "authentication": authentication});
        self.ask("PUT", &path_of(device), "", &document);
    }

    #[track_caller]
    pub fn update(&self, identity: &str, keys: [&[u8]; 2], status: &str) {
        self.ask(
            "PUT",
            &path_of(identity),
            "*",
            &document(identity, keys, status),
        );
    }

    #[track_caller]
    pub fn delete(&self, identity: &str) {
        self.ask("DELETE", &path_of(identity), "*", &Json::Null);
    }

    #[track_caller]
    pub fn patch_desired(&self, identity: &str, desired: &Json) -> Json {
        let path = path_of(identity).replacen("/devices/", "/twins/", 1);
        self.ask(
            "PATCH",
            &path,
            "",
            &json!({"properties": {"desired": desired}}),
        )
    }
}

/// `devA` or `devA/modA` in a URL.
pub fn path_of(identity: &str) -> String {
    match identity.split_once('/') {
        None => format!("/devices/{identity}"),
        Some((device, module)) => format!("/devices/{device}/modules/{module}"),
    }
}

fn document(identity: &str, keys: [&[u8]; 2], status: &str) -> Json {
    let (device, module) = identity.split_once('/').unwrap_or((identity, ""));
    let keys = json!({"primaryKey": base64(keys[0]), "secondaryKey": base64(keys[1])});
    let mut document = json!({
        "deviceId": device,
        "authentication": {"type": "sas", "symmetricKey": keys},
    });
    match module {
        "" => document["status"] = status.into(),
        module => document["moduleId"] = module.into(),
    }
    document
}
