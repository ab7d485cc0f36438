//! PEM files: certificates, keys, revocation lists.

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use super::file::{self, FileError, Guard};

/// Largest file of certificates or of a key: the bundle of all public CAs has a quarter of it.
const LARGEST_PEM_BYTES: u64 = 1 << 20;

/// Largest file of revocation lists: those of large public CAs have some ten megabytes.
const LARGEST_CRL_BYTES: u64 = 64 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// It can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is no PEM, or broken PEM.
    #[error("{path}: {1}", path = .0.display())]
    Pem(PathBuf, pem::Error),
    /// It has nothing of what it should have.
    #[error("{path}: there is no {1} in it", path = .0.display())]
    Empty(PathBuf, &'static str),
}

fn all<T: PemObject>(path: &Path, most: u64, what: &'static str) -> Result<Vec<T>, PemError> {
    let bytes = file::read(path, most, Guard::Trusted)?;
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| PemError::Pem(path.to_owned(), error))?;
    match found.is_empty() {
        true => Err(PemError::Empty(path.to_owned(), what)),
        false => Ok(found),
    }
}

/// The certificates of a file, in its order.
///
/// # Errors
/// The file can't be used.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    all(path, LARGEST_PEM_BYTES, "certificate")
}

/// The revocation lists of a file.
///
/// # Errors
/// The file can't be used.
pub fn revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    all(path, LARGEST_CRL_BYTES, "revocation list")
}

/// The private key of a file.
///
/// # Errors
/// The file can't be used: also when everybody may write it.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    let bytes = file::read(path, LARGEST_PEM_BYTES, Guard::Key)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => PemError::Empty(path.to_owned(), "private key"),
        error => PemError::Pem(path.to_owned(), error),
    })
}
