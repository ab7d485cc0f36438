//! A certificate authority for tests, and the files of nodes whose certificates it signs.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
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
    /// By which it can be revoked; any one otherwise.
    pub serial: Option<u64>,
    /// When it ends, counted from now; in a thousand years otherwise.
    pub valid_for: Option<Duration>,
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
            serial: None,
            valid_for: None,
        }
    }
}

/// Where the files of a node are.
#[derive(Clone, Debug)]
pub struct Files {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authorities: PathBuf,
    pub list: PathBuf,
}

impl Files {
    /// Those in `directory`, whether they are there or not.
    pub fn in_directory(directory: &Path) -> Files {
        Files {
            certificate: directory.join("node.pem"),
            key: directory.join("node.key"),
            authorities: directory.join("ca.pem"),
            list: directory.join("revoked.pem"),
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
        params.serial_number = subject.serial.map(SerialNumber::from);
        if let Some(valid_for) = subject.valid_for {
            params.not_after = (SystemTime::now() + valid_for).into();
        }
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.expect("the authority signs").pem();
        (certificate, key.serialize_pem())
    }

    /// Writes the list of what this authority has revoked.
    pub fn put_list(&self, path: &Path, revoked: &[u64]) {
        let revoked = revoked.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: 1u64.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let list = list.signed_by(issuer).expect("the authority signs");
        put(path, &list.pem().expect("a list has a PEM form"));
    }

    /// Makes the files of node `id` in `directory`.
    pub fn files(&self, directory: &Path, cluster: &str, id: u64) -> Files {
        let files = Files::in_directory(directory);
        files.put_certificate(self, &Subject::node(cluster, id));
        files.put_authorities(&[self]);
        files
    }
}
