//! Listening sockets.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::error::RunError;
use crate::config::Address;

/// Listens on the first address of a name that can be listened on.
pub(super) async fn bind(what: &'static str, address: &Address) -> Result<TcpListener, RunError> {
    let text = address.to_string();
    let fail = |error| RunError::Listen {
        what,
        address: text.clone(),
        error,
    };
    let mut last = None;
    for resolved in tokio::net::lookup_host(&text).await.map_err(fail)? {
        match listen(resolved) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(fail(last.unwrap_or_else(|| {
        std::io::Error::other("the name has no address")
    })))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    // Reconnecting fleets arrive all at once; the kernel caps this at net.core.somaxconn.
    socket.listen(16_384)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}
