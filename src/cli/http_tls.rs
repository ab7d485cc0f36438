//! TLS of commands that speak HTTP with a node.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::exit::Failure;

/// What a client verifies a node by, and what it shows: its certificate and key.
///
/// # Errors
/// A file can't be used, or the machine has no CAs.
pub fn client(
    ca_file: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, Failure> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Failure::failed)?;
    let builder = match ca_file {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => builder.with_native_roots()?,
    };
    let Some((certificate, key)) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let explain = |error: rustls::pki_types::pem::Error| of_file(key, &error);
    let private = PrivateKeyDer::from_pem_file(key).map_err(explain)?;
    builder
        .with_client_auth_cert(chain, private)
        .map_err(|error| of_file(key, &error))
}

fn of_file(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::failed(format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|error| of_file(path, &error))?;
    match all.is_empty() {
        true => Err(of_file(path, &"there is no certificate in it")),
        false => Ok(all),
    }
}

fn roots(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| of_file(path, &error))?;
    }
    Ok(roots)
}
