//! The certificates that the configuration names: what is wrong with them, and what will be.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::error::RunError;
use super::http_ports;
use super::hub;
use super::hub_port;
use crate::config::{AuthConfig, Config, pem};
use crate::http::Gate;
use crate::peers::{Settings, Trust};
use crate::telemetry::metrics::Metrics;
use crate::transport;
use crate::transport::tls::{EXPIRES_SOON, ServerTls, earliest_expiry, note_expiry};

/// How often the certificate for the service that judges clients is looked at: that of a listener is as often.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The keys of what nodes show each other.
const OF_NODES: [&str; 4] = [
    "cluster.certificate",
    "cluster.key",
    "cluster.ca_file",
    "cluster.crl_files",
];

/// What a look at the certificates has found.
#[derive(Debug, Default)]
pub struct Inspection {
    /// Files that can't be used, by the key that they belong to: the node does not start with them.
    pub problems: Vec<(&'static str, String)>,
    /// Certificates that expire soon, or have expired.
    pub warnings: Vec<String>,
}

/// Reads the certificates of all listeners, of the HTTP port, and of this node for the others; the secret of the
/// cluster, the token of the HTTP port, and the files of the hub.
pub fn inspect(config: &Config) -> Inspection {
    let mut found = Inspection::default();
    for listener in config.listeners() {
        match transport::tls_of(&listener, !config.hub.host_names.is_empty()) {
            Ok(tls) => found.look_at(tls.as_deref()),
            Err(error) => {
                let name = &listener.name;
                found.add("listeners", format!("the listener {name:?}: {error}"));
            }
        }
    }
    match http_ports::load_tls(&config.http) {
        Ok(tls) => found.look_at(tls.as_deref()),
        Err(error) => found.add("http.certificates", error),
    }
    found.look_at_nodes(config);
    match hub_port::load_tls(config) {
        Ok(tls) => found.look_at(tls.as_deref()),
        Err(error) => found.add("hub.https_listen", error),
    }
    found.look_at_service(config);
    for problem in hub::load(config).err().into_iter().flatten() {
        found.add(problem.key, &problem);
    }
    if let Err(error) = Gate::new(&config.http, Arc::default(), Arc::default()) {
        found.add("http.token_file", RunError::from(error));
    }
    found.warnings.sort();
    found.warnings.dedup();
    found
}

impl Inspection {
    /// Notes a problem of this key. What says for itself which key it is about says so once.
    fn add(&mut self, key: &'static str, problem: impl Display) {
        let text = problem.to_string();
        let named = OF_NODES.iter().copied().chain([key]).find_map(|key| {
            let rest = text.strip_prefix(key)?.strip_prefix(": ")?;
            Some((key, rest.to_owned()))
        });
        self.problems.push(named.unwrap_or((key, text)));
    }

    /// Judges what this node shows to the others, as they would.
    fn look_at_nodes(&mut self, config: &Config) {
        let settings = Settings::of(config);
        let source = settings.source.clone();
        let files = source.files();
        let Some(own) = files.first() else {
            return;
        };
        match Trust::new(settings) {
            Ok(trust) => {
                let now = SystemTime::now();
                let left = trust.valid_for_s().map(Duration::from_secs);
                let soon = left.and_then(|left| warning(own.1, now + left, now));
                self.warnings.extend(soon);
            }
            Err(error) => {
                let text = error.to_string();
                let is_of = |path: &Path| {
                    let rest = text.strip_prefix(&path.display().to_string());
                    rest.is_some_and(|rest| rest.starts_with([':', ' ']))
                };
                let file = files.iter().find(|(_, path)| is_of(path));
                let key = file.unwrap_or(own).0;
                self.add(key, text);
            }
        }
    }

    /// Judges what this node shows to the service that judges clients. Whether it can be used is found when that
    /// service is made ready.
    fn look_at_service(&mut self, config: &Config) {
        let path = config.auth.http_certificate_file.as_deref();
        let found = path.and_then(|path| Some((path, expiry(path)?)));
        let soon = found.and_then(|(path, at)| warning(path, at, SystemTime::now()));
        self.warnings.extend(soon);
    }

    /// Notes what expires soon.
    fn look_at(&mut self, tls: Option<&ServerTls>) {
        let now = SystemTime::now();
        let loaded = tls.map(ServerTls::loaded);
        let expiries = loaded.iter().flat_map(|loaded| &loaded.expiries);
        let soon = expiries.filter_map(|(path, at)| warning(path, *at, now));
        self.warnings.extend(soon);
    }
}

/// When the first certificate of a file expires; `None` if it can't be read.
fn expiry(path: &Path) -> Option<SystemTime> {
    earliest_expiry(&pem::certificates(path).ok()?)
}

/// Tells how much time is left to the certificate that this node shows to the service that judges clients, also when
/// the file has another one: whoever asks the service reads the file by itself. Runs until the node stops.
pub(super) async fn watch_service(config: AuthConfig, metrics: Arc<Metrics>, interval: Duration) {
    let Some(path) = config.http_certificate_file else {
        return;
    };
    let mut told = None;
    loop {
        let (path, metrics) = (path.clone(), metrics.clone());
        // The file may be on a file system that makes its readers wait.
        let looked = tokio::task::spawn_blocking(move || {
            let found = expiry(&path).filter(|found| told != Some(*found));
            if let Some(found) = found {
                note_expiry(&path, found, &metrics);
            }
            found.or(told)
        });
        // It does not panic, and the runtime ends with the node.
        told = looked.await.unwrap_or(told);
        tokio::time::sleep(interval).await;
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
    use super::*;
    use crate::config::{CertificatePair, Listener, Transport};
    use crate::peers::authority::{Authority, Files, Subject};

    #[test]
    fn the_certificate_that_other_nodes_see_is_looked_at() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("nodes");
        let files = Files::in_directory(directory.path());
        let mut config = Config::default();
        config.cluster.name = "test".parse().expect("a word");
        config.node.id = 1;
        config.cluster.certificate = Some(files.certificate.clone());
        config.cluster.key = Some(files.key.clone());
        config.cluster.ca_file = Some(files.authorities.clone());
        files.put_authorities(&[&authority]);
        let found = |subject: &Subject| {
            files.put_certificate(&authority, subject);
            let found = inspect(&config);
            (found.problems, found.warnings)
        };
        let mut subject = Subject::node("test", 1);
        assert_eq!(found(&subject), (Vec::new(), Vec::new()));
        subject.valid_for = Some(Duration::from_secs(29 * 24 * 3_600 + 60));
        let (problems, warnings) = found(&subject);
        assert_eq!((problems.len(), warnings.len()), (0, 1), "{problems:?}");
        assert!(warnings[0].ends_with("node.pem: the certificate expires in 29 days"));
        subject.expired = true;
        subject.valid_for = None;
        let (problems, _) = found(&subject);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].0, "cluster.certificate");
    }

    /// Puts a pair under a key.
    type Name = fn(&mut Config, CertificatePair);

    /// A listener, the HTTP port, and the hub's: what is in its files is found under its key.
    #[test]
    fn the_certificates_that_clients_see_are_looked_at() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("servers");
        let days = |days: u64| Duration::from_secs(days * 24 * 3_600 + 3_600);
        let places: [(&str, Name); 3] = [
            ("listeners", |config, pair| {
                config.listeners = vec![Listener {
                    name: "outside".to_owned(),
                    transport: Transport::Tls,
                    certificates: vec![pair],
                    ..Listener::default()
                }];
            }),
            ("http.certificates", |config, pair| {
                config.http.certificates = vec![pair];
            }),
            ("hub.https_listen", |config, pair| {
                config.hub.https_certificates = vec![pair];
            }),
        ];
        for (key, name) in places {
            let files = Files::in_directory(&directory.path().join(key));
            let mut config = Config::default();
            let pair = CertificatePair {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
            };
            name(&mut config, pair);
            let found = |left, expired| {
                let mut subject = Subject::node("test", 1);
                (subject.valid_for, subject.expired) = (left, expired);
                files.put_certificate(&authority, &subject);
                let found = inspect(&config);
                assert_eq!(found.problems, Vec::new(), "{key}");
                found.warnings
            };
            let path = files.certificate.display();
            assert_eq!(found(Some(days(30)), false), Vec::<String>::new(), "{key}");
            let soon = format!("{path}: the certificate expires in 29 days");
            assert_eq!(found(Some(days(29)), false), [soon], "{key}");
            let late = format!("{path}: the certificate has expired");
            assert_eq!(found(None, true), [late], "{key}");
            std::fs::write(&files.certificate, "none").expect("a file can be written");
            let found = inspect(&config);
            assert_eq!(found.warnings, Vec::<String>::new(), "{key}");
            let keys: Vec<&str> = found.problems.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, [key], "{:?}", found.problems);
            let (_, text) = &found.problems[0];
            assert!(text.contains(&path.to_string()), "{text}");
        }
    }

    /// Each problem is under the key whose file has it, and says no key twice.
    #[test]
    fn a_problem_is_under_the_key_that_it_is_about() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("nodes");
        let put = |name: &str| {
            let files = Files::in_directory(&directory.path().join(name));
            files.put_certificate(&authority, &Subject::node("test", 1));
            files.put_authorities(&[&authority]);
            files
        };
        let (files, others) = (put("own"), put("other"));
        let pair = CertificatePair {
            certificate: files.certificate.clone(),
            key: others.key.clone(),
        };
        let mut config = Config::default();
        config.node.id = 1;
        config.cluster.name = "test".parse().expect("a word");
        config.cluster.certificate = Some(pair.certificate.clone());
        config.cluster.key = Some(pair.key.clone());
        config.cluster.ca_file = Some(files.authorities.clone());
        config.http.token_file = Some(directory.path().join("none"));
        config.http.certificates = vec![pair.clone()];
        let found = inspect(&config).problems;
        let missing = format!("{}/none: No such file", directory.path().display());
        let (key, certificate) = (pair.key.display(), pair.certificate.display());
        let fits = format!("{key}: it is not the key of {certificate}");
        let of_nodes = "it is not the key of cluster.certificate";
        let wanted = [
            ("http.certificates", &*fits),
            ("cluster.key", of_nodes),
            ("http.token_file", &*missing),
        ];
        assert_eq!(found.len(), wanted.len(), "{found:?}");
        for ((key, text), (wanted, begins)) in found.iter().zip(wanted) {
            assert_eq!(*key, wanted, "{text}");
            assert!(text.starts_with(begins), "{key}: {text}");
        }
        std::fs::write(&others.key, "none").expect("a file can be written");
        let found = inspect(&config).problems;
        assert!(
            found.iter().any(|(key, _)| *key == "cluster.key"),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn the_certificate_that_the_service_of_log_ins_sees_is_looked_at() {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("services");
        let files = Files::in_directory(directory.path());
        let days = |days: u64| Duration::from_secs(days * 24 * 3_600 + 3_600);
        let put = |left| {
            let mut subject = Subject::node("test", 1);
            subject.valid_for = Some(left);
            files.put_certificate(&authority, &subject);
        };
        let mut config = Config::default();
        config.auth.http_certificate_file = Some(files.certificate.clone());
        put(days(40));
        assert_eq!(inspect(&config).warnings, Vec::<String>::new());
        let metrics = Arc::new(Metrics::default());
        let often = Duration::from_millis(10);
        let watching = watch_service(config.auth.clone(), metrics.clone(), often);
        let watching = tokio::spawn(watching);
        let name = format!(
            "certificate_expiry_seconds{{file=\"{}\"}} ",
            files.certificate.display()
        );
        let left = || -> Option<u64> {
            let text = metrics.render();
            let rest = text.split(&name).nth(1)?;
            rest.lines().next()?.parse().ok()
        };
        let until = async |is_there: fn(u64) -> bool| {
            while !left().is_some_and(is_there) {
                assert!(!watching.is_finished(), "it goes on as long as the node");
                tokio::time::sleep(often).await;
            }
        };
        until(|left| left > 39 * 24 * 3_600).await;
        put(days(29));
        until(|left| left < 30 * 24 * 3_600).await;
        let warnings = inspect(&config).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("node.pem: the certificate expires in 29 days"));
        watching.abort();
    }

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
