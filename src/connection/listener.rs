//! Accepts connections and gives each its task.
//!
//! Invariant: a client that finds no room is told so, as long as there are not too many of them at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};

use super::broker::Broker;
use super::linger::{end_stream, linger, write_last};
use super::refusal::{Refusal, version_of};
use super::socket::read_some;
use super::task;
use crate::codec::PacketType;
use crate::mailbox::memory::{CONNECTION_BYTES, Charge};
use crate::telemetry::labels::DisconnectReason;

/// Between two attempts, when the system has no descriptors or memory for a connection.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Clients that are being told that there is no room for them. Further ones find their connection closed.
const REFUSED_AT_ONCE: usize = 1024;

/// How long such a client may take to send the beginning of its CONNECT.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a CONNECT that tell its version.
const VERSION_BYTES: usize = 14;

/// Probes of an idle connection that are not answered before it counts as gone.
const PROBES: u32 = 4;

/// Accepts until the task is ended.
pub(crate) async fn run(listener: TcpListener, broker: Arc<Broker>) {
    let refused = Arc::new(AtomicUsize::new(0));
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                accept(&broker, stream, address, &refused);
                let rate = broker.settings.mqtt.connection_rate.into();
                let now = Instant::now();
                let pause = broker.state.connection_rate.lock().take(1, rate, now);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(RETRY_AFTER).await;
            }
        }
    }
}

fn accept(
    broker: &Arc<Broker>,
    stream: TcpStream,
    address: SocketAddr,
    refused: &Arc<AtomicUsize>,
) {
    let metrics = &broker.metrics;
    metrics.connections_opened.increment();
    let open = metrics.connections.get();
    let is_full = open >= i64::try_from(broker.settings.mqtt.max_connections).unwrap_or(i64::MAX);
    if is_full || broker.state.is_draining() {
        let text = "there are as many connections as there may be, or the server shuts down";
        refuse(
            broker,
            stream,
            address,
            refused,
            DisconnectReason::TooMany,
            text,
        );
        return;
    }
    let memory = &broker.settings.outbox.memory;
    if memory.is_exhausted() {
        let text = "the server is short of memory";
        refuse(
            broker,
            stream,
            address,
            refused,
            DisconnectReason::NodeMemory,
            text,
        );
        return;
    }
    if let Err(error) = prepare(&stream, broker.settings.mqtt.tcp_timeout_s.into()) {
        tracing::debug!(%address, %error, "options of the socket could not be set");
    }
    metrics.connections.increment();
    let charge = Charge::new(memory, CONNECTION_BYTES);
    let broker = broker.clone();
    tokio::spawn(async move {
        task::serve(&broker, stream, address).await;
        broker.metrics.connections.decrement();
        drop(charge);
    });
}

/// Sees that small packets leave at once, and that a dead client is noticed.
fn prepare(stream: &TcpStream, timeout_s: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    if timeout_s == 0 {
        return Ok(());
    }
    let timeout = Duration::from_secs(timeout_s);
    // The system counts in seconds.
    let interval = Duration::from_secs((timeout_s / 2 / u64::from(PROBES)).max(1));
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs((timeout_s / 2).max(1)))
        .with_interval(interval)
        .with_retries(PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(timeout))
}

/// Tells a client that there is no room for it.
fn refuse(
    broker: &Arc<Broker>,
    stream: TcpStream,
    address: SocketAddr,
    refused: &Arc<AtomicUsize>,
    cause: DisconnectReason,
    text: &'static str,
) {
    broker.metrics.disconnects.of(cause).increment();
    tracing::debug!(%address, ?cause, text, "refused");
    if refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_AT_ONCE {
        refused.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let refused = refused.clone();
    tokio::spawn(async move {
        if let Ok(Some(bytes)) = tokio::time::timeout(REFUSAL_TIMEOUT, beginning(&stream)).await {
            let refusal = Refusal::no_room(version_of(&bytes), cause, text);
            write_last(&stream, &refusal.packet).await;
            end_stream(&stream);
            linger(&stream).await;
        }
        drop(stream);
        refused.fetch_sub(1, Ordering::Relaxed);
    });
}

/// The beginning of a client's CONNECT; `None` when it sends something else.
async fn beginning(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < VERSION_BYTES {
        read_some(stream, &mut bytes).await.ok()?;
        if bytes.first() != Some(&PacketType::Connect.first_byte()) {
            return None;
        }
    }
    bytes.truncate(VERSION_BYTES);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dead_client_is_noticed_without_keep_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("listening");
        prepare(&stream, 120).expect("the options exist");
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("readable"));
        assert_eq!(
            socket.tcp_keepalive_time().ok(),
            Some(Duration::from_secs(60))
        );
        assert_eq!(
            socket.tcp_keepalive_interval().ok(),
            Some(Duration::from_secs(15))
        );
        let timeout = socket.tcp_user_timeout().expect("readable");
        assert_eq!(timeout, Some(Duration::from_secs(120)));
    }
}
