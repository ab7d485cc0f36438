//! The server of the other nodes' calls: what it takes of HTTP/2, whoever is at the other end.
//!
//! It knows none of the services. The fuzz targets put it before services of their own.

use std::time::Duration;

use tonic::transport::Server;

use crate::base::limits;

/// Calls at once on a connection of another node. A node has some dozens, and up to
/// [`limits::HAND_OVERS_AT_ONCE`] hand-overs; further ones wait on its side.
const STREAMS_PER_CONNECTION: u32 = 512;

/// Bytes of the headers of a call; ours have some hundred.
const HEADER_BYTES: u32 = 16 << 10;

const _: () = assert!(STREAMS_PER_CONNECTION as usize > limits::HAND_OVERS_AT_ONCE);

/// A server without services.
pub fn peer_server() -> Server {
    Server::builder()
        // A peer whose calls time out on a starved machine resets streams; that is no attack.
        .http2_max_pending_accept_reset_streams(Some(4096))
        .http2_keepalive_interval(Some(Duration::from_secs(2)))
        .http2_keepalive_timeout(Some(Duration::from_secs(4)))
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES)
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(16 << 20)
}
