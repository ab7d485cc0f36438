//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener};

use super::incoming::Incoming;
use super::listener::{Listener, tls_of};
use super::peer::Peer;
use super::socket::Socket;
use super::tls::TlsError;
use crate::config::{self, Address, FileMode, ListenAddress};
use crate::telemetry::metrics::Metrics;

/// Connections that wait to be accepted. Fleets that connect again arrive all at once; the kernel caps this at
/// net.core.somaxconn.
const BACKLOG: i32 = 16_384;

/// Why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The system does not let it listen there.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The files of TLS can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Another process listens on the Unix socket.
    #[error("another process listens there")]
    InUse,
    /// There is something that is no socket.
    #[error("there is a file, and no socket")]
    NoSocket,
}

/// An open listening socket.
#[derive(Debug)]
pub(crate) struct Listening {
    socket: ListeningSocket,
    listener: Arc<Listener>,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Held for its end.
        _file: SocketFile,
    },
}

/// The file of a Unix socket, removed with its listener.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever starts next removes it, too.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listening {
    /// Opens a listener's socket; clients of a hub may connect there if it `serves_hub`.
    ///
    /// # Errors
    /// It can't be opened.
    pub(crate) async fn open(
        config: config::Listener,
        serves_hub: bool,
        metrics: Arc<Metrics>,
    ) -> Result<Listening, OpenError> {
        let tls = tls_of(&config, serves_hub)?;
        let socket = match &config.address {
            ListenAddress::Tcp(address) => ListeningSocket::Tcp(listen(address).await?),
            ListenAddress::Unix(path) => {
                let listener = bind_unix(path, config.file_mode())?;
                let _file = SocketFile(path.clone());
                ListeningSocket::Unix { listener, _file }
            }
        };
        Ok(Listening {
            socket,
            listener: Arc::new(Listener {
                config,
                tls,
                serves_hub,
                metrics,
            }),
        })
    }

    /// What holds for its connections.
    pub(crate) fn listener(&self) -> &Arc<Listener> {
        &self.listener
    }

    /// The next connection.
    ///
    /// # Errors
    /// The system has no descriptor or memory for it, or it is gone already.
    pub(crate) async fn accept(&self) -> io::Result<Incoming> {
        let (socket, address) = match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Socket::Tcp(stream), Some(address))
            }
            ListeningSocket::Unix { listener, .. } => {
                (Socket::Unix(listener.accept().await?.0), None)
            }
        };
        Ok(Incoming {
            socket,
            peer: Peer { address, tls: None },
            listener: self.listener.clone(),
        })
    }
}

/// Listens on the first address of a name that can be listened on.
///
/// # Errors
/// There is none.
pub(crate) async fn listen(address: &Address) -> io::Result<TcpListener> {
    let mut last = None;
    for resolved in tokio::net::lookup_host(address.to_string()).await? {
        match bind(resolved) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("the name has no address")))
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Listens at `path`. The socket that a process has left there is removed.
fn bind_unix(path: &Path, mode: FileMode) -> Result<UnixListener, OpenError> {
    use socket2::{Domain, SockAddr, Socket, Type};
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(OpenError::NoSocket);
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(OpenError::InUse);
        }
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Nobody can connect before it listens.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode.0))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(UnixListener::from_std(socket.into())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &Path) -> config::Listener {
        config::Listener {
            address: ListenAddress::Unix(path.to_owned()),
            unix_mode: Some(FileMode(0o600)),
            ..config::Listener::default()
        }
    }

    #[tokio::test]
    async fn a_unix_socket_has_its_mode_and_outlives_no_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        // What a process that was killed has left.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("it can be bound"));
        let listening = Listening::open(at(&path), false, Arc::default())
            .await
            .expect("it can be bound");
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
        let again = Listening::open(at(&path), false, Arc::default()).await;
        assert!(matches!(again, Err(OpenError::InUse)));
        let client = tokio::net::UnixStream::connect(&path);
        let (client, accepted) = tokio::join!(client, listening.accept());
        client.expect("it listens");
        assert_eq!(accepted.expect("it connects").peer.to_string(), "local");
        drop(listening);
        assert!(!path.exists());
        std::fs::write(&path, "data").expect("writable");
        let file = Listening::open(at(&path), false, Arc::default()).await;
        assert!(matches!(file, Err(OpenError::NoSocket)));
    }
}
