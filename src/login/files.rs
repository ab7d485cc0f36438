//! Files with keys and secrets.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use hyper::header::HeaderValue;

/// Largest file of keys that is read: sixty-four keys of RSA with 8192 bits in PEM have a tenth of it.
const LARGEST_FILE_BYTES: u64 = 1 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The system does not let it be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is something else.
    #[error("{}: it is larger than {LARGEST_FILE_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// A token that is no text.
    #[error("{}: it is no bearer token", .0.display())]
    NoToken(PathBuf),
}

/// The content of a file.
///
/// # Errors
/// It can't be read, or is too large.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, FileError> {
    let io = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let file = std::fs::File::open(path).map_err(io)?;
    let mut bytes = Vec::new();
    let mut bounded = file.take(LARGEST_FILE_BYTES + 1);
    bounded.read_to_end(&mut bytes).map_err(io)?;
    match bytes.len() as u64 > LARGEST_FILE_BYTES {
        true => Err(FileError::TooLarge(path.to_owned())),
        false => Ok(bytes),
    }
}

/// The value of the header `Authorization` for the token in a file.
///
/// # Errors
/// It can't be read, or is no token.
pub(super) fn bearer(path: &Path) -> Result<HeaderValue, FileError> {
    let bytes = read_file(path)?;
    let no_token = || FileError::NoToken(path.to_owned());
    let token = std::str::from_utf8(bytes.trim_ascii()).map_err(|_| no_token())?;
    if token.is_empty() {
        return Err(no_token());
    }
    let value = HeaderValue::try_from(format!("Bearer {token}"));
    let mut value = value.map_err(|_| no_token())?;
    value.set_sensitive(true);
    Ok(value)
}
