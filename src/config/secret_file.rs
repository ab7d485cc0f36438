//! Files that hold a secret: who else can read them, and what is in them.
//!
//! Invariant: what was read is wiped from memory when it is dropped.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// Largest secret that is read, bytes.
const LARGEST_SECRET_BYTES: u64 = 4_096;

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The system does not let it be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Others can read it, so it is no secret.
    #[error("{}: every user of this machine can read it: chmod o-rwx", .0.display())]
    Readable(PathBuf),
    /// Others can write it, so what it says is theirs.
    #[error("{}: every user of this machine can write it: chmod o-w", .0.display())]
    Writable(PathBuf),
    /// It is something else.
    #[error("{}: it is larger than {LARGEST_SECRET_BYTES} bytes, or no text", .0.display())]
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

/// Who beside its owner and group may do what with a file, by its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Nothing.
    Nothing,
    /// Read it.
    Read,
    /// Write it, and perhaps read it.
    Write,
}

impl Others {
    /// By the mode of the file; a symbolic link is followed.
    ///
    /// # Errors
    /// It can't be looked at.
    pub fn of(path: &Path) -> io::Result<Others> {
        let mode = std::fs::metadata(path)?.permissions().mode();
        Ok(match mode {
            mode if mode & 0o002 != 0 => Others::Write,
            mode if mode & 0o004 != 0 => Others::Read,
            _ => Others::Nothing,
        })
    }
}

/// The first line of a secret file that nobody else may read or write, as OpenSSH and PostgreSQL ask of keys.
///
/// # Errors
/// The file can't be used.
pub fn first_line(path: &Path, least: usize) -> Result<Zeroizing<String>, SecretFileError> {
    let io = |error| SecretFileError::Io {
        path: path.to_owned(),
        error,
    };
    match Others::of(path).map_err(io)? {
        Others::Nothing => {}
        Others::Read => return Err(SecretFileError::Readable(path.to_owned())),
        Others::Write => return Err(SecretFileError::Writable(path.to_owned())),
    }
    let file = File::open(path).map_err(io)?;
    // Without growing: nothing is left behind in memory that was given back.
    let mut bytes = Zeroizing::new(Vec::with_capacity(LARGEST_SECRET_BYTES as usize + 1));
    let mut limited = file.take(LARGEST_SECRET_BYTES + 1);
    let read = limited.read_to_end(&mut bytes).map_err(io)?;
    let text = std::str::from_utf8(&bytes).ok();
    let text = text.filter(|_| read as u64 <= LARGEST_SECRET_BYTES);
    let text = text.ok_or_else(|| SecretFileError::NoText(path.to_owned()))?;
    let line = text.lines().next().unwrap_or_default().trim();
    if line.chars().count() < least {
        return Err(SecretFileError::Short {
            path: path.to_owned(),
            least,
        });
    }
    Ok(Zeroizing::new(line.to_owned()))
}

/// Warns of a private key that every user of the machine can read.
///
/// # Errors
/// They can write it: whoever does so speaks in its name.
pub fn check_key(path: &Path) -> Result<(), SecretFileError> {
    match Others::of(path) {
        Ok(Others::Write) => Err(SecretFileError::Writable(path.to_owned())),
        Ok(Others::Read) => {
            tracing::warn!(file = %path.display(), "every user of this machine can read this key");
            Ok(())
        }
        // Who opens it will say why it can't be read.
        Ok(Others::Nothing) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};

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
            Err(SecretFileError::Readable(_))
        ));
        assert!(matches!(
            read(0o602, b"eight888"),
            Err(SecretFileError::Writable(_))
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
            Err(SecretFileError::NoText(_))
        ));
    }

    #[test]
    fn a_key_may_be_readable_but_not_writable() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("key");
        write(&path, "key").expect("it is written");
        for (mode, is_fine) in [(0o600, true), (0o644, true), (0o666, false)] {
            set_permissions(&path, Permissions::from_mode(mode)).expect("its mode is set");
            assert_eq!(check_key(&path).is_ok(), is_fine, "{mode:o}");
        }
        assert!(check_key(&directory.path().join("absent")).is_ok());
    }
}
