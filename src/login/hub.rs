//! What the credentials of devices, modules and back ends are judged by: the names of the hub, the shared policies, and
//! the authorities of certificates. Read when the node starts; the authorities again when their file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest as _, Sha256};

use crate::base::time::Millis;
use crate::config::HubConfig;
use crate::config::{pem, secret_file};
use crate::registry::hosts::Hosts;
use crate::registry::policies::Policies;

/// What is wrong with a file of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HubProblem {
    /// The key that names it.
    pub(crate) key: &'static str,
    /// The file, where the message does not name it.
    pub(crate) path: Option<PathBuf>,
    /// The line, counted from 1.
    pub(crate) line: Option<usize>,
    /// What is wrong, in half a sentence.
    pub(crate) message: String,
}

/// What the credentials of the hub's clients are judged by.
pub(crate) struct HubCredentials {
    /// The names of the hub.
    pub(crate) hosts: Hosts,
    /// The shared policies.
    pub(crate) policies: Policies,
    /// A key that nobody has: it is tried where there is no other, so that an unknown name takes as long as a known
    /// one.
    pub(crate) made_up: [u8; 32],
    authorities: Option<Authorities>,
    digest: u64,
}

/// The authorities of certificates.
struct Authorities {
    path: PathBuf,
    current: ArcSwap<Vouching>,
}

/// Those that a file had when it was read.
struct Vouching {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// What has come of reading the authorities' file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reread {
    /// It has what it had.
    Unchanged,
    /// New connections are judged by what it has now.
    Changed,
    /// It can't be used, and what was read before stays in use.
    Failed(String),
}

impl std::fmt::Debug for HubCredentials {
    /// Without keys.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubCredentials")
            .field("hosts", &self.hosts)
            .field("policies", &self.policies)
            .finish_non_exhaustive()
    }
}

impl HubCredentials {
    /// Reads the files that are configured.
    ///
    /// # Errors
    /// With everything that is wrong with them.
    pub(crate) fn load(config: &HubConfig) -> Result<HubCredentials, Vec<HubProblem>> {
        let mut problems = Vec::new();
        let policies = match &config.policies_file {
            Some(path) => policies(path).unwrap_or_else(|found| {
                problems.extend(found);
                Policies::default()
            }),
            None => Policies::default(),
        };
        let authorities = config.client_ca_file.as_deref().map(Authorities::load);
        let authorities = authorities.transpose().unwrap_or_else(|message| {
            problems.push(HubProblem {
                key: "hub.client_ca_file",
                path: None,
                line: None,
                message,
            });
            None
        });
        let mut made_up = [0; 32];
        if getrandom::fill(&mut made_up).is_err() {
            problems.push(HubProblem {
                key: "hub.host_names",
                path: None,
                line: None,
                message: "this machine has no random numbers".to_owned(),
            });
        }
        match problems.is_empty() {
            true => Ok(HubCredentials {
                hosts: Hosts::new(config.host_names.iter().map(String::as_str)),
                digest: digest(config, &policies),
                policies,
                made_up,
                authorities,
            }),
            false => Err(problems),
        }
    }

    /// Whether an authority of the hub vouches for a chain of certificates at this time.
    pub(crate) fn vouches_for(&self, chain: &[CertificateDer<'_>], now: Millis) -> bool {
        let (Some(authorities), Some((own, others))) = (&self.authorities, chain.split_first())
        else {
            return false;
        };
        let now = UnixTime::since_unix_epoch(Duration::from_millis(now.0));
        let current = authorities.current.load();
        let verified = current.verifier.verify_client_cert(own, others, now);
        verified.is_ok()
    }

    /// What every node must be configured with alike, as a number. The authorities are not in it: their file is
    /// replaced on one node after the other.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// The file of the authorities, if there is one.
    pub(crate) fn authorities_file(&self) -> Option<&Path> {
        self.authorities.as_ref().map(|known| &*known.path)
    }

    /// Reads the file of the authorities again.
    pub(crate) fn read_authorities_again(&self) -> Reread {
        let Some(authorities) = &self.authorities else {
            return Reread::Unchanged;
        };
        match Vouching::read(&authorities.path) {
            Ok(read) if read.certificates == authorities.current.load().certificates => {
                Reread::Unchanged
            }
            Ok(read) => {
                authorities.current.store(Arc::new(read));
                Reread::Changed
            }
            Err(error) => Reread::Failed(error),
        }
    }
}

impl Authorities {
    fn load(path: &Path) -> Result<Authorities, String> {
        let current = Vouching::read(path)?;
        Ok(Authorities {
            path: path.to_owned(),
            current: ArcSwap::from_pointee(current),
        })
    }
}

impl Vouching {
    fn read(path: &Path) -> Result<Vouching, String> {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let certificates = pem::certificates(path).map_err(|error| error.to_string())?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|error| said(&error))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
        Ok(Vouching {
            certificates,
            verifier: verifier.map_err(|error| said(&error))?,
        })
    }
}

fn digest(config: &HubConfig, policies: &Policies) -> u64 {
    let mut hasher = Sha256::new();
    for host in &config.host_names {
        let host = host.to_ascii_lowercase();
        hasher.update((host.len() as u64).to_be_bytes());
        hasher.update(host);
    }
    hasher.update(config.max_devices.to_be_bytes());
    hasher.update(config.max_retained.to_be_bytes());
    policies.digest(|bytes| hasher.update(bytes));
    let found = hasher.finalize();
    found
        .iter()
        .take(8)
        .fold(0, |all, byte| (all << 8) | u64::from(*byte))
}

fn policies(path: &Path) -> Result<Policies, Vec<HubProblem>> {
    let problem = |path: Option<&Path>, line, message| HubProblem {
        key: "hub.policies_file",
        path: path.map(Path::to_owned),
        line,
        message,
    };
    let text =
        secret_file::lines(path).map_err(|error| vec![problem(None, None, error.to_string())])?;
    Policies::parse(&text).map_err(|lines| {
        let lines = lines.into_iter();
        lines
            .map(|wrong| problem(Some(path), Some(wrong.line), wrong.message))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd,
    };

    use super::*;

    fn issuer() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("random numbers");
        CertifiedIssuer::self_signed(params, key).expect("a CA")
    }

    /// Valid in the year 2026.
    fn issued(issuer: &CertifiedIssuer<'static, KeyPair>) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.signed_by(&key, issuer).expect("signed");
        certificate.der().clone()
    }

    #[test]
    fn authorities_vouch_for_their_own_while_these_are_valid() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.pem");
        let issuer = issuer();
        write(&path, issuer.pem()).expect("writable");
        let config = HubConfig {
            client_ca_file: Some(path),
            ..HubConfig::default()
        };
        let loaded = HubCredentials::load(&config).expect("good files");
        let own = [issued(&issuer)];
        let (before, during, after) = (1_767_000_000_000, 1_780_000_000_000, 1_800_000_000_000);
        assert!(loaded.vouches_for(&own, Millis(during)));
        assert!(!loaded.vouches_for(&own, Millis(before)));
        assert!(!loaded.vouches_for(&own, Millis(after)));
        assert!(!loaded.vouches_for(&[], Millis(during)));
        let stranger = [issued(&super::tests::issuer())];
        assert!(!loaded.vouches_for(&stranger, Millis(during)));
        let none = HubCredentials::load(&HubConfig::default()).expect("no files");
        assert!(!none.vouches_for(&own, Millis(during)), "nobody vouches");
    }

    #[test]
    fn what_nodes_must_have_alike_is_told_apart() {
        let directory = tempfile::tempdir().expect("a directory");
        let digest_of = |lines: &str, host: &str, max_devices, max_retained| {
            let path = directory.path().join("policies");
            write(&path, lines).expect("writable");
            set_permissions(&path, Permissions::from_mode(0o600)).expect("it is there");
            let config = HubConfig {
                policies_file: Some(path),
                host_names: vec![host.into()],
                max_devices,
                max_retained,
                ..HubConfig::default()
            };
            HubCredentials::load(&config).expect("a good file").digest()
        };
        let digest = |lines: &str, host: &str, max_devices| digest_of(lines, host, max_devices, 16);
        let (a, b) = (
            "a:ServiceConnect:AAAAAAAAAAAAAAAAAAAAAA==",
            "b:RegistryRead:AAAAAAAAAAAAAAAAAAAAAA==",
        );
        let own = digest(&format!("{a}\n{b}"), "hub", 7);
        assert_eq!(own, digest(&format!("# again\n{b}\n{a}"), "HUB", 7));
        for other in [
            digest(a, "hub", 7),
            digest(&format!("{a}\n{b}"), "other", 7),
            digest(&format!("{a}\n{b}"), "hub", 8),
            digest_of(&format!("{a}\n{b}"), "hub", 7, 4),
            digest(&format!("{a}\n{b}").replace("AAAAA==", "AAAAQ=="), "hub", 7),
            digest(
                &format!("{a}\n{b}").replace("RegistryRead", "RegistryWrite"),
                "hub",
                7,
            ),
        ] {
            assert_ne!(own, other);
        }
    }

    #[test]
    fn authorities_are_those_that_the_file_has_now() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca.pem");
        let (former, next) = (issuer(), issuer());
        write(&path, former.pem()).expect("writable");
        let config = HubConfig {
            client_ca_file: Some(path.clone()),
            ..HubConfig::default()
        };
        let loaded = HubCredentials::load(&config).expect("good files");
        let (of_former, of_next) = ([issued(&former)], [issued(&next)]);
        let vouched = || {
            let during = Millis(1_780_000_000_000);
            [&of_former, &of_next].map(|chain| loaded.vouches_for(chain, during))
        };
        assert_eq!(loaded.read_authorities_again(), Reread::Unchanged);
        write(&path, former.pem() + &next.pem()).expect("writable");
        assert_eq!(vouched(), [true, false]);
        assert_eq!(loaded.read_authorities_again(), Reread::Changed);
        assert_eq!(vouched(), [true, true]);
        write(&path, "broken").expect("writable");
        let failed = loaded.read_authorities_again();
        assert!(matches!(failed, Reread::Failed(_)), "{failed:?}");
        assert_eq!(vouched(), [true, true], "what was read before stays in use");
        write(&path, next.pem()).expect("writable");
        assert_eq!(loaded.read_authorities_again(), Reread::Changed);
        assert_eq!(vouched(), [false, true]);
    }

    #[test]
    fn every_file_that_cannot_be_used_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("policies");
        write(&path, "good:ServiceConnect:AAAAAAAAAAAAAAAAAAAAAA==\nbad").expect("writable");
        let load = |mode| {
            set_permissions(&path, Permissions::from_mode(mode)).expect("it is there");
            let config = HubConfig {
                policies_file: Some(path.clone()),
                client_ca_file: Some(directory.path().join("absent.pem")),
                ..HubConfig::default()
            };
            let problems = HubCredentials::load(&config).expect_err("both are wrong");
            problems
                .into_iter()
                .map(|problem| (problem.key, problem.line))
                .collect::<Vec<_>>()
        };
        let ca = ("hub.client_ca_file", None);
        assert_eq!(load(0o600), [("hub.policies_file", Some(2)), ca]);
        assert_eq!(
            load(0o644),
            [("hub.policies_file", None), ca],
            "others may read it"
        );
    }
}
