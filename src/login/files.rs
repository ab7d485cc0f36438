//! Files with keys and tokens.
//!
//! Invariant: one thread at most looks at the file of a token, however many need it, and however long that takes: the
//! file may be on a file system that makes its readers wait.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::config::file::{self, Guard, Look, Looking, Stamp, stamp};

/// Largest file of keys that is read: sixty-four keys of RSA with 8192 bits in PEM have a tenth of it.
const LARGEST_FILE_BYTES: u64 = 1 << 20;

/// How often the file of a token is looked at, when it is needed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It can't be read, or is open to others.
    #[error(transparent)]
    File(#[from] file::FileError),
    /// A token that is no text.
    #[error("{}: it is no bearer token", .0.display())]
    NoToken(PathBuf),
    /// The thread that was to read it has ended.
    #[error("{}: it was not read", .0.display())]
    Unread(PathBuf),
    /// It was looked at a moment ago.
    #[error("{}: it could not be used a moment ago", .0.display())]
    Unusable(PathBuf),
}

/// The content of a file of keys.
///
/// # Errors
/// It can't be read, or is open to others.
pub(super) fn read_file(path: &Path, guard: Guard) -> Result<Zeroizing<Vec<u8>>, FileError> {
    Ok(file::read(path, LARGEST_FILE_BYTES, guard)?)
}

/// The value of the header `Authorization` for the token in a file.
fn bearer(path: &Path, guard: Guard) -> Result<HeaderValue, FileError> {
    let bytes = read_file(path, guard)?;
    let no_token = || FileError::NoToken(path.to_owned());
    let token = std::str::from_utf8(bytes.trim_ascii()).map_err(|_| no_token())?;
    if token.is_empty() {
        return Err(no_token());
    }
    let value = Zeroizing::new(format!("Bearer {token}"));
    let mut value = HeaderValue::from_str(&value).map_err(|_| no_token())?;
    value.set_sensitive(true);
    Ok(value)
}

/// A token in a file, which is read again when the file has changed.
#[derive(Clone)]
pub(crate) struct TokenFile {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    guard: Guard,
    held: Mutex<Held>,
    looking: Looking,
}

#[derive(Default)]
struct Held {
    /// As it was read last, when the file had this stamp.
    value: Option<(HeaderValue, Stamp)>,
    looked_at: Option<Instant>,
    /// It could not be used when it was looked at last.
    is_broken: bool,
}

impl TokenFile {
    /// The token of a file, which is read now.
    ///
    /// # Errors
    /// It can't be used.
    pub(crate) fn new(path: PathBuf, guard: Guard) -> Result<TokenFile, FileError> {
        let inner = Inner {
            path,
            guard,
            held: Mutex::default(),
            looking: Looking::default(),
        };
        inner.look()?;
        let inner = Arc::new(inner);
        Ok(TokenFile { inner })
    }

    /// The value of the header `Authorization`. While somebody else looks at the file, and a moment after somebody has,
    /// it is what is known.
    ///
    /// # Errors
    /// The file has changed and can't be used.
    pub(super) async fn header(&self) -> Result<HeaderValue, FileError> {
        let Some(look) = self.inner.begin() else {
            return self.inner.known();
        };
        let inner = self.inner.clone();
        let looked = tokio::task::spawn_blocking(move || {
            let found = inner.look();
            // Also if nobody waits for it any more.
            drop(look);
            found
        });
        let unread = |_| Err(FileError::Unread(self.inner.path.clone()));
        looked.await.unwrap_or_else(unread)
    }
}

impl Inner {
    /// Begins to look at the file, unless that was done a moment ago, or is done now.
    fn begin(&self) -> Option<Look> {
        let looked_at = self.held.lock().looked_at;
        match looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
            true => None,
            false => self.looking.begin(),
        }
    }

    /// What was found last.
    fn known(&self) -> Result<HeaderValue, FileError> {
        let held = self.held.lock();
        match &held.value {
            Some((value, _)) if !held.is_broken => Ok(value.clone()),
            _ => Err(FileError::Unusable(self.path.clone())),
        }
    }

    /// Looks at the file, and reads it if it has changed.
    fn look(&self) -> Result<HeaderValue, FileError> {
        let found = stamp(&self.path);
        let known = self.held.lock().value.clone();
        let read = match known.filter(|(_, known)| *known == found) {
            Some((value, _)) => Ok(value),
            None => bearer(&self.path, self.guard),
        };
        let mut held = self.held.lock();
        held.looked_at = Some(Instant::now());
        held.is_broken = read.is_err();
        let value = read?;
        held.value = Some((value.clone(), found));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_read_again_when_its_file_has_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        let write = |text: &str| {
            // As secrets are replaced: another file gets the name.
            let new = directory.path().join("new");
            std::fs::write(&new, text).expect("it is written");
            std::fs::rename(&new, &path).expect("it is moved");
        };
        write("first\n");
        let token = TokenFile::new(path.clone(), Guard::Key).expect("a token");
        let now = || async { token.header().await.ok() };
        let text = |value| HeaderValue::from_str(&format!("Bearer {value}")).ok();
        assert_eq!(now().await, text("first"));
        write("second\n");
        assert_eq!(now().await, text("first"), "not read for each question");
        token.inner.held.lock().looked_at = None;
        assert_eq!(now().await, text("second"));
        write(" \n");
        token.inner.held.lock().looked_at = None;
        assert!(token.header().await.is_err());
        assert!(token.header().await.is_err(), "also a moment later");
        write("third\n");
        token.inner.held.lock().looked_at = None;
        assert_eq!(now().await, text("third"));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_pipe_in_place_of_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("token");
        std::fs::write(&path, "first").expect("it is written");
        let token = TokenFile::new(path.clone(), Guard::Key).expect("a token");
        std::fs::remove_file(&path).expect("it is removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|status| status.success()), "a pipe");
        token.inner.held.lock().looked_at = None;
        for _ in 0..1_000 {
            let told = tokio::time::timeout(LOOK_INTERVAL, token.header()).await;
            assert!(told.expect("nobody waits").is_err(), "it is no file");
        }
    }
}
