//! A certificate authority for tests, and the files of nodes whose certificates it signs.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};

/// Signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// What a certificate of a node says; the default is one of `cluster`, node 1, that is valid.
#[derive(Clone, Debug)]
pub struct Subject {
    pub uris: Vec<String>,
    pub expired: bool,
    pub usages: Vec<ExtendedKeyUsagePurpose>,
}

impl Subject {
    pub fn node(cluster: &str, id: u64) -> Subject {
        Subject {
            uris: vec![format!("quorumq://{cluster}/nodes/{id}")],
            expired: false,
            usages: vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        }
    }
}

/// Where the files of a node are.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
}

impl Files {
    /// Those in `directory`, whether they are there or not.
    pub fn in_directory(directory: &Path) -> Files {
        Files {
            certificate: directory.join("node.pem"),
            key: directory.join("node.key"),
            authorities: directory.join("ca.pem"),
        }
    }

    /// Writes a certificate that `authority` signs, with its key.
    pub fn put_certificate(&self, authority: &Authority, subject: &Subject) {
        let (certificate, key) = authority.sign(subject);
        put(&self.key, &key);
        put(&self.certificate, &certificate);
    }

    /// Writes whom the node trusts.
    pub fn put_authorities(&self, authorities: &[&Authority]) {
        let text: String = authorities.iter().map(|one| one.issuer.pem()).collect();
        put(&self.authorities, &text);
    }
}

/// Replaces a file at once, as a careful operator does; nobody else may read it.
pub fn put(path: &Path, text: &str) {
    let directory = path.parent().expect("a file is in a directory");
    fs::create_dir_all(directory).expect("a directory can be made");
    let new = path.with_added_extension("new");
    fs::write(&new, text).expect("a file can be written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("it is ours");
    fs::rename(&new, path).expect("a file can be renamed");
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a key signs itself");
        Authority { issuer }
    }

    /// A certificate and its key, in PEM.
    pub fn sign(&self, subject: &Subject) -> (String, String) {
        let mut params = CertificateParams::default();
        let uris = subject.uris.iter();
        params.subject_alt_names = uris
            .map(|uri| SanType::URI(uri.as_str().try_into().expect("ASCII")))
            .collect();
        params.extended_key_usages = subject.usages.clone();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if subject.expired {
            params.not_after = date_time_ymd(2020, 1, 1);
        }
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.expect("the authority signs").pem();
        (certificate, key.serialize_pem())
    }

    /// Makes the files of node `id` in `directory`.
    pub fn files(&self, directory: &Path, cluster: &str, id: u64) -> Files {
        let files = Files::in_directory(directory);
        files.put_certificate(self, &Subject::node(cluster, id));
        files.put_authorities(&[self]);
        files
    }
}
