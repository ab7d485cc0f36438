//! PEM files: certificates, keys, revocation lists.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// Largest file of certificates or of a key: the bundle of all public CAs has a quarter of it.
const LARGEST_PEM_BYTES: u64 = 1 << 20;

/// Largest file of revocation lists: those of large public CAs have some ten megabytes.
const LARGEST_CRL_BYTES: u64 = 64 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The system does not let it be read.
    #[error("{path}: {1}", path = .0.display())]
    Io(PathBuf, std::io::Error),
    /// It is something else.
    #[error("{path}: larger than {1} bytes", path = .0.display())]
    TooLarge(PathBuf, u64),
    /// It is no PEM, or broken PEM.
    #[error("{path}: {1}", path = .0.display())]
    Pem(PathBuf, pem::Error),
    /// It has nothing of what it should have.
    #[error("{path}: there is no {1} in it", path = .0.display())]
    Empty(PathBuf, &'static str),
}

fn read(path: &Path, largest: u64) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let io = |error| FileError::Io(path.to_owned(), error);
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len().min(largest);
    // Without growing: a key is not left behind in memory that was given back.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1));
    let read = file.take(largest + 1).read_to_end(&mut bytes).map_err(io)?;
    match read as u64 > largest {
        true => Err(FileError::TooLarge(path.to_owned(), largest)),
        false => Ok(bytes),
    }
}

fn all<T: PemObject>(path: &Path, largest: u64, what: &'static str) -> Result<Vec<T>, FileError> {
    let bytes = read(path, largest)?;
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|error| FileError::Pem(path.to_owned(), error))?;
    match found.is_empty() {
        true => Err(FileError::Empty(path.to_owned(), what)),
        false => Ok(found),
    }
}

/// The certificates of a file, in its order.
///
/// # Errors
/// The file can't be used.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    all(path, LARGEST_PEM_BYTES, "certificate")
}

/// The revocation lists of a file.
///
/// # Errors
/// The file can't be used.
pub(crate) fn revocation_lists(
    path: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, FileError> {
    all(path, LARGEST_CRL_BYTES, "revocation list")
}

/// The private key of a file.
///
/// # Errors
/// The file can't be used.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let bytes = read(path, LARGEST_PEM_BYTES)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => FileError::Empty(path.to_owned(), "private key"),
        error => FileError::Pem(path.to_owned(), error),
    })
}
