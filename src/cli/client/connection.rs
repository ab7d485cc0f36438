//! One connection that carries MQTT 5 packets. It keeps no state of a session.

use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::error::ClientError;
use super::server::Server;
use super::transport::{Stream, TlsOptions};
use crate::codec::client::{self, Packet};
use crate::codec::{MAX_PACKET_SIZE, Version, frame};

pub(super) struct Connection {
    stream: Stream,
    input: BytesMut,
    /// Bytes at the start of `input` that belong to the packet handed out last.
    consumed: usize,
    pub(super) output: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(
        server: &Server,
        tls: &TlsOptions,
        limit: Duration,
    ) -> Result<Connection, ClientError> {
        let open = tokio::time::timeout(limit, Stream::open(server, tls)).await;
        let stream = open.unwrap_or_else(|_| {
            let why = format!("{server}: no connection within {} ms", limit.as_millis());
            Err(ClientError::Unreachable(why))
        })?;
        Ok(Connection {
            stream,
            input: BytesMut::new(),
            consumed: 0,
            output: Vec::new(),
        })
    }

    /// Sends what was encoded into `output`.
    pub(super) async fn flush(&mut self) -> Result<(), ClientError> {
        let sent = self.stream.write_all(&self.output).await;
        self.output.clear();
        sent.map_err(|error| ClientError::Closed(error.to_string()))
    }

    /// Waits until `input` holds a complete packet. Cancel safe.
    pub(super) async fn fill(&mut self) -> Result<(), ClientError> {
        self.input.advance(self.consumed);
        self.consumed = 0;
        loop {
            if frame::next(&self.input, MAX_PACKET_SIZE)?.is_some() {
                return Ok(());
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) => return Err(ClientError::Closed("by the server".into())),
                Ok(_) => {}
                Err(error) => return Err(ClientError::Closed(error.to_string())),
            }
        }
    }

    /// The packet that [`Connection::fill`] waited for.
    pub(super) fn packet(&mut self) -> Result<Packet<'_>, ClientError> {
        let Some(frame) = frame::next(&self.input, MAX_PACKET_SIZE)? else {
            return Err(ClientError::Protocol(
                "a packet was asked for too early".into(),
            ));
        };
        self.consumed = frame.length;
        Ok(client::decode(Version::V5, frame)?)
    }
}
