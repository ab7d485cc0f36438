//! Reading certificates, keys and secrets.
//!
//! Invariant: what is secret is wiped from memory when it is dropped, and is never part of an error.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::config::file::{self, Guard};

/// Largest file that is read: some hundred certificates.
const LARGEST_BYTES: u64 = 1 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It can't be read, or is open to others.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// What is in it is something else.
    #[error("{} holds no {what}", .path.display())]
    Holds { path: PathBuf, what: &'static str },
}

/// The bytes of a file that everybody may know.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    Ok(file::read(path, LARGEST_BYTES, Guard::Trusted)?)
}

/// As [`read`], for a file that only this node's user and group may read: others could be this node.
pub(super) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    Ok(file::read(path, LARGEST_BYTES, Guard::Secret)?)
}

fn holds(path: &Path, what: &'static str) -> FileError {
    FileError::Holds {
        path: path.to_owned(),
        what,
    }
}

/// The certificates of a PEM file, at least one.
pub(super) fn certificates(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let what = "certificate in PEM";
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(holds(path, what)),
    }
}

/// The lists of revoked certificates of a PEM file, at least one.
pub(super) fn lists(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, FileError> {
    let all: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(holds(path, "list of revoked certificates in PEM")),
    }
}

/// The first private key of a PEM file.
pub(super) fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| holds(path, "private key in PEM"))
}
