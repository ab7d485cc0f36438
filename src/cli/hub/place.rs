//! The flags of every command that asks the hub: where it is, and which policy's key shows who asks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hyper::{Method, StatusCode};
use serde_json::Value;
use zeroize::Zeroizing;

use super::super::client::TlsOptions;
use super::super::exit::{Exit, Failure};
use super::super::http_client::{Answer, Target, escape, send};
use super::super::http_node::HttpAddress;
use crate::base::time::wall_now;
use crate::config::secret_file;
use crate::registry::sas::key_from_base64;
use crate::registry::sign::sign;

/// The version of the API that is asked.
const API_VERSION: &str = "2021-04-12";

/// Longest time to wait for one answer: the hub waits 30 s for a commit.
const LIMIT: Duration = Duration::from_secs(50);

/// How long a token holds that is made for one request, seconds. Log time may be behind this machine's clock, or ahead.
const TOKEN_S: u64 = 600;

/// Least length of a key as text: base64 of 16 bytes.
const LEAST_KEY_LENGTH: usize = 22;

/// Where the hub is, and who asks.
#[derive(Args, Clone)]
pub struct Hub {
    /// Where any node has its HTTPS API; http:// may go first on loopback.
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "QUORUMQ_HUB",
        default_value = "127.0.0.1:8443",
        global = true
    )]
    hub: HttpAddress,

    /// Name of the hub for tokens, one of hub.host_names; the host of --hub when absent.
    #[arg(long, value_name = "NAME", env = "QUORUMQ_HUB_NAME", global = true)]
    host_name: Option<String>,

    /// Shared access policy to ask as.
    #[arg(
        long,
        value_name = "POLICY",
        env = "QUORUMQ_HUB_POLICY",
        default_value = "iothubowner",
        global = true
    )]
    policy: String,

    /// File whose first line is the policy's key; the environment variable QUORUMQ_HUB_KEY may have it instead.
    #[arg(long, value_name = "FILE", env = "QUORUMQ_HUB_KEY_FILE", global = true)]
    policy_key_file: Option<PathBuf>,

    /// PEM file of the CAs that the node's certificate comes from; those of the system when absent.
    #[arg(long, value_name = "FILE", env = "QUORUMQ_CA_FILE", global = true)]
    ca_file: Option<PathBuf>,
}

/// The key in the first line of a file.
pub fn key_of_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let line = secret_file::first_line(path, LEAST_KEY_LENGTH).map_err(Failure::failed)?;
    key(&line)
}

fn key(text: &str) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let key = key_from_base64(text.trim()).map(Zeroizing::new);
    key.ok_or_else(|| Failure::failed("a key is base64 of 16 to 64 bytes"))
}

impl Hub {
    /// The name that tokens are for.
    pub fn host_name(&self) -> &str {
        let host = self.hub.address.host();
        self.host_name.as_deref().unwrap_or(host)
    }

    /// The policy to ask as.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The key of that policy.
    pub fn policy_key(&self) -> Result<Zeroizing<Vec<u8>>, Failure> {
        if let Some(path) = &self.policy_key_file {
            return key_of_file(path);
        }
        let text = std::env::var("QUORUMQ_HUB_KEY").map(Zeroizing::new);
        match text.ok().filter(|text| !text.is_empty()) {
            Some(text) => key(&text),
            None => Err(Failure::failed(format!(
                "the key of the policy {:?} is needed: --policy-key-file FILE",
                self.policy
            ))),
        }
    }

    /// Asks; a refusal is a failure.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        fields: &[(&'static str, &str)],
        body: Option<&Value>,
    ) -> Result<Answer, Failure> {
        let path = match path.contains('?') {
            true => format!("{path}&api-version={API_VERSION}"),
            false => format!("{path}?api-version={API_VERSION}"),
        };
        let expires_at_s = wall_now().0 / 1000 + TOKEN_S;
        let key = self.policy_key()?;
        let token = sign(self.host_name(), &key, expires_at_s, Some(&self.policy));
        let target = Target {
            address: &self.hub.address,
            tls: self.tls()?,
            authorization: Some(Zeroizing::new(token)),
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer = send(target, method, &path, fields, body, LIMIT).await?;
        match answer.status.is_success() {
            true => Ok(answer),
            false => Err(failure(&answer)),
        }
    }

    fn tls(&self) -> Result<Option<rustls::ClientConfig>, Failure> {
        if self.hub.tls == Some(false) {
            return Ok(None);
        }
        let options = TlsOptions {
            ca_file: self.ca_file.clone(),
            certificate: None,
        };
        Ok(Some(options.config()?))
    }
}

/// The JSON of an answer.
pub fn json(answer: &Answer) -> Result<Value, Failure> {
    serde_json::from_slice(&answer.body)
        .map_err(|_| Failure::failed("the hub answered something that is not JSON"))
}

/// Why the hub refuses.
fn failure(answer: &Answer) -> Failure {
    let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
    let message = body.as_ref().and_then(|body| body["Message"].as_str());
    let Some(message) = message else {
        return Failure::failed(format!("the hub answered {}", answer.status));
    };
    let message = message.strip_prefix("ErrorCode:").unwrap_or(message);
    let message = message.replacen(';', ": ", 1);
    match answer.status {
        StatusCode::UNAUTHORIZED => Failure::failed(format!(
            "{message} (--policy, --policy-key-file, --host-name)"
        )),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Failure::new(Exit::NoLeader, message)
        }
        _ => Failure::failed(message),
    }
}

/// The path of an identity or a twin: `/devices/{device}[/modules/{module}]`.
pub fn path(collection: &str, id: &str) -> String {
    match id.split_once('/') {
        Some((device, module)) => {
            format!(
                "/{collection}/{}/modules/{}",
                escape(device),
                escape(module)
            )
        }
        None => format!("/{collection}/{}", escape(id)),
    }
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;

    use super::*;

    #[test]
    fn a_path_names_a_device_or_a_module() {
        assert_eq!(path("twins", "a"), "/twins/a");
        assert_eq!(path("devices", "50%/m@"), "/devices/50%25/modules/m%40");
    }

    #[test]
    fn a_refusal_is_told_with_its_name() {
        let answer = |status, body: &str| Answer {
            status,
            headers: HeaderMap::new(),
            body: body.to_owned().into(),
        };
        let body = r#"{"Message":"ErrorCode:DeviceNotFound;there; is none","ExceptionMessage":""}"#;
        let told = failure(&answer(StatusCode::NOT_FOUND, body));
        assert_eq!(told.message, "DeviceNotFound: there; is none");
        let told = failure(&answer(StatusCode::SERVICE_UNAVAILABLE, body));
        assert_eq!(told.exit, Exit::NoLeader);
        let told = failure(&answer(StatusCode::BAD_GATEWAY, "<html>"));
        assert_eq!(told.message, "the hub answered 502 Bad Gateway");
    }
}
