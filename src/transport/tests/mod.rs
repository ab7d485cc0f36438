//! Connections through each transport, with independent clients: the TLS library's own, and WebSocket's.

mod authority;
mod streams;
mod tls;
