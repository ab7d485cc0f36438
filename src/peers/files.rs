//! Reading certificates, keys and secrets.
//!
//! Invariant: what is secret is wiped from memory when it is dropped, and is never part of an error.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

/// Largest file that is read: some hundred certificates.
const LARGEST_BYTES: u64 = 1 << 20;

/// Bits of a file's mode that let everybody on the machine do something with it.
const OTHERS: u32 = 0o007;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("{} can't be read: {error}", .path.display())]
    Io {
        path: PathBuf,
        error: std::io::Error,
    },
    /// It is no such file.
    #[error("{} is larger than {LARGEST_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// Everybody on this machine could be this node.
    #[error("{} is open to every user of this machine: chmod o= {}", .0.display(), .0.display())]
    Exposed(PathBuf),
    /// What is in it is something else.
    #[error("{} holds no {what}", .path.display())]
    Holds { path: PathBuf, what: &'static str },
}

/// The bytes of a file, not more than are reasonable.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let io = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(io)?;
    // The whole capacity at once: a buffer that grows leaves copies behind that nobody wipes.
    let length = file.metadata().map_err(io)?.len();
    if length > LARGEST_BYTES {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    let capacity = usize::try_from(length).unwrap_or(0) + 64;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(LARGEST_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    match bytes.len() as u64 > LARGEST_BYTES {
        true => Err(FileError::TooLarge(path.to_owned())),
        false => Ok(bytes),
    }
}

/// As [`read`], for a file that only this node's user and group may read.
pub(super) fn read_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileError> {
    let metadata = std::fs::metadata(path).map_err(|error| FileError::Io {
        path: path.to_owned(),
        error,
    })?;
    if metadata.mode() & OTHERS != 0 {
        return Err(FileError::Exposed(path.to_owned()));
    }
    read(path)
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

/// The first private key of a PEM file.
pub(super) fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| holds(path, "private key in PEM"))
}
