//! The certificates that the configuration names: what is wrong with them, and what will be.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::error::RunError;
use super::http_ports;
use crate::config::Config;
use crate::http::Gate;
use crate::transport;
use crate::transport::tls::{EXPIRES_SOON, ServerTls};

/// What a look at the certificates has found.
#[derive(Debug, Default)]
pub struct Inspection {
    /// Files that can't be used: the node does not start with them.
    pub problems: Vec<String>,
    /// Certificates that expire soon, or have expired.
    pub warnings: Vec<String>,
}

/// Reads the certificates of all listeners and of the HTTP port, and the token of that.
pub fn inspect(config: &Config) -> Inspection {
    let mut found = Inspection::default();
    for listener in config.listeners() {
        match transport::tls_of(&listener) {
            Ok(tls) => found.look_at(tls.as_deref()),
            Err(error) => {
                let name = &listener.name;
                found
                    .problems
                    .push(format!("the listener {name:?}: {error}"));
            }
        }
    }
    match http_ports::load_tls(&config.http) {
        Ok(tls) => found.look_at(tls.as_deref()),
        Err(error) => found.problems.push(error.to_string()),
    }
    if let Err(error) = Gate::new(&config.http, Arc::default()) {
        found.problems.push(RunError::from(error).to_string());
    }
    found.warnings.sort();
    found.warnings.dedup();
    found
}

impl Inspection {
    /// Notes what expires soon.
    fn look_at(&mut self, tls: Option<&ServerTls>) {
        let now = SystemTime::now();
        let loaded = tls.map(ServerTls::loaded);
        let expiries = loaded.iter().flat_map(|loaded| &loaded.expiries);
        let soon = expiries.filter_map(|(path, at)| warning(path, *at, now));
        self.warnings.extend(soon);
    }
}

/// What there is to say about a certificate that expires at this time.
fn warning(path: &Path, at: SystemTime, now: SystemTime) -> Option<String> {
    let path = path.display();
    match at.duration_since(now) {
        Err(_) => Some(format!("{path}: the certificate has expired")),
        Ok(left) if left < EXPIRES_SOON => {
            let days = left.as_secs() / (24 * 3_600);
            Some(format!("{path}: the certificate expires in {days} days"))
        }
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_month_before_its_end_a_certificate_is_named() {
        let now = SystemTime::now();
        let days = |days: u64| Duration::from_secs(days * 24 * 3_600 + 1);
        let warning = |at| warning(Path::new("a.pem"), at, now);
        assert_eq!(warning(now + days(30)), None);
        let soon = "a.pem: the certificate expires in 29 days";
        assert_eq!(warning(now + days(29)).as_deref(), Some(soon));
        assert!(warning(now - days(1)).is_some_and(|text| text.contains("has expired")));
    }
}
