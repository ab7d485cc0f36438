//! A CA for tests.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

use crate::config::{CertificatePair, ClientCertificates};
use crate::transport::tls::Files;

/// A CA with certificates of its own.
pub(super) struct Authority {
    directory: TempDir,
    pub(super) issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as a client has them.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
    serial: SerialNumber,
}

impl Authority {
    pub(super) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("random numbers");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a CA");
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("writable");
        Authority { directory, issuer }
    }

    pub(super) fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn issue(
        &self,
        name: &str,
        serial: u64,
        usage: ExtendedKeyUsagePurpose,
    ) -> (String, String, Identity) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![usage];
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().expect("random numbers");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        let identity = Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            serial: serial.into(),
        };
        (certificate.pem(), key.serialize_pem(), identity)
    }

    /// Writes a server's certificate and key, named after the server.
    pub(super) fn server(&self, name: &str, serial: u64) -> CertificatePair {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let (certificate, key, _) = self.issue(name, serial, usage);
        let pair = CertificatePair {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        };
        std::fs::write(&pair.certificate, certificate).expect("writable");
        std::fs::write(&pair.key, key).expect("writable");
        pair
    }

    pub(super) fn client(&self, serial: u64) -> Identity {
        self.issue("device", serial, ExtendedKeyUsagePurpose::ClientAuth)
            .2
    }

    /// Writes a revocation list with these certificates.
    pub(super) fn revoke(&self, revoked: &[&Identity]) {
        let revoked = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: identity.serial.clone(),
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
        let list = list.signed_by(issuer).expect("signed").pem().expect("PEM");
        std::fs::write(self.path("crl.pem"), list).expect("writable");
    }

    pub(super) fn files(&self, names: &[&str], asks: ClientCertificates) -> Files {
        let asked = asks != ClientCertificates::Off;
        Files {
            certificates: names
                .iter()
                .zip(1..)
                .map(|(name, serial)| self.server(name, serial))
                .collect(),
            client_certificates: asks,
            client_ca_file: asked.then(|| self.path("ca.pem")),
            crl_files: Vec::new(),
            asks_everybody: false,
        }
    }

    pub(super) fn client_config(&self, identity: Option<&Identity>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a CA");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("both versions")
            .with_root_certificates(roots);
        match identity {
            Some(identity) => builder
                .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())
                .expect("a certificate"),
            None => builder.with_no_client_auth(),
        }
    }
}
