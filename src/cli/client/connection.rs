//! One TCP connection that carries MQTT 5 packets. It keeps no state of a session.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::error::ClientError;
use crate::codec::client::{self, Packet};
use crate::codec::{MAX_PACKET_SIZE, Version, frame};
use crate::config::Address;

pub(super) struct Connection {
    stream: TcpStream,
    input: BytesMut,
    /// Bytes at the start of `input` that belong to the packet handed out last.
    consumed: usize,
    pub(super) output: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(
        address: &Address,
        limit: Duration,
    ) -> Result<Connection, ClientError> {
        let unreachable = |why: String| ClientError::Unreachable(format!("{address}: {why}"));
        let connect = TcpStream::connect((address.host(), address.port()));
        let stream = match tokio::time::timeout(limit, connect).await {
            Ok(stream) => stream.map_err(|error| unreachable(error.to_string()))?,
            Err(_) => {
                return Err(unreachable(format!(
                    "no connection within {} ms",
                    limit.as_millis()
                )));
            }
        };
        stream
            .set_nodelay(true)
            .map_err(|error| unreachable(error.to_string()))?;
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
