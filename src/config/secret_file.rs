//! Secrets that are one line of a file, or a line each.
//!
//! Invariant: what was read is wiped from memory when it is dropped.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::file::{self, FileError, Guard};

/// Largest secret that is read, bytes.
const LARGEST_SECRET_BYTES: u64 = 4_096;

/// Largest file of secrets with a line for each, bytes.
const LARGEST_LIST_BYTES: u64 = 1 << 20;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It can't be read, or others can read it, too.
    #[error(transparent)]
    File(#[from] FileError),
    /// It is something else.
    #[error("{}: it is no text", .0.display())]
    NoText(PathBuf),
    /// It has nothing in its first line, or too little.
    #[error("{}: its first line has less than {least} characters", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Characters that it must have.
        least: usize,
    },
}

/// The first line of a secret file.
///
/// # Errors
/// The file can't be used.
pub fn first_line(path: &Path, least: usize) -> Result<Zeroizing<String>, SecretFileError> {
    let text = text(path, LARGEST_SECRET_BYTES)?;
    let line = text.lines().next().unwrap_or_default().trim();
    if line.chars().count() < least {
        return Err(SecretFileError::Short {
            path: path.to_owned(),
            least,
        });
    }
    Ok(Zeroizing::new(line.to_owned()))
}

/// The text of a file with a secret in each line.
///
/// # Errors
/// The file can't be used.
pub fn lines(path: &Path) -> Result<Zeroizing<String>, SecretFileError> {
    text(path, LARGEST_LIST_BYTES)
}

fn text(path: &Path, most: u64) -> Result<Zeroizing<String>, SecretFileError> {
    let bytes = file::read(path, most, Guard::Secret)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| SecretFileError::NoText(path.to_owned()))?;
    Ok(Zeroizing::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn read(mode: u32, content: &[u8]) -> Result<String, SecretFileError> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("secret");
        write(&path, content).expect("it is written");
        set_permissions(&path, Permissions::from_mode(mode)).expect("its mode is set");
        first_line(&path, 8).map(|line| line.to_string())
    }

    #[test]
    fn a_secret_is_the_first_line_of_a_file_that_others_cannot_read() {
        assert_eq!(
            read(0o600, b"eight888\nmore").ok().as_deref(),
            Some("eight888")
        );
        assert_eq!(read(0o440, b"eight888").ok().as_deref(), Some("eight888"));
        assert!(matches!(
            read(0o604, b"eight888"),
            Err(SecretFileError::File(FileError::Readable(_)))
        ));
        assert!(matches!(
            read(0o602, b"eight888"),
            Err(SecretFileError::File(FileError::Writable(_)))
        ));
        assert!(matches!(
            read(0o600, b"seven77\n"),
            Err(SecretFileError::Short { .. })
        ));
        assert!(matches!(
            read(0o600, b""),
            Err(SecretFileError::Short { .. })
        ));
        assert!(matches!(
            read(0o600, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
            Err(SecretFileError::NoText(_))
        ));
        assert!(matches!(
            read(0o600, &[b'a'; 5_000]),
            Err(SecretFileError::File(FileError::TooLarge { .. }))
        ));
    }
}
