//! Accepts connections and gives each its task.
//!
//! Invariant: a client that finds no room is told so, as long as there are not too many of them at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::broker::Broker;
use super::linger::{LINGER_TIMEOUT, end_stream, linger, write_last};
use super::rate::TokenBucket;
use super::refusal::{Refusal, STOPPING, version_of};
use super::serve::serve;
use super::socket::read_some;
use crate::codec::PacketType;
use crate::mailbox::memory::{CONNECTION_BYTES, Charge};
use crate::telemetry::labels::DisconnectReason;
use crate::transport::{Incoming, Listening, Stream};

/// Between two attempts, when the system has no descriptors or memory for a connection.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Clients of a listener that are being told that there is no room for them. Further ones find their connection closed.
const REFUSED_AT_ONCE: usize = 1024;

/// How long such a client may take to send the beginning of its CONNECT.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a CONNECT that tell its version.
const VERSION_BYTES: usize = 14;

/// The connections of one listener.
struct Places {
    /// Those that are open.
    open: AtomicUsize,
    /// Clients that are being told that there is no room.
    refused: AtomicUsize,
}

/// Accepts until the task is ended.
pub(crate) async fn run(listening: Listening, broker: Arc<Broker>) {
    let places = Arc::new(Places {
        open: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
    });
    let own_rate = listening.listener().config.connection_rate.into();
    let mut own = TokenBucket::default();
    loop {
        match listening.accept().await {
            Ok(incoming) => {
                accept(&broker, incoming, &places);
                let rate = broker.settings.mqtt.connection_rate.into();
                let now = Instant::now();
                let pause = broker.state.connection_rate.lock().take(1, rate, now);
                let pause = pause.max(own.take(1, own_rate, now));
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

/// Why the node, or this listener, takes no connection, if it does not.
fn refusal(
    broker: &Broker,
    incoming: &Incoming,
    places: &Places,
) -> Option<(DisconnectReason, &'static str)> {
    if broker.state.is_draining() {
        return Some((DisconnectReason::Shutdown, STOPPING));
    }
    let open = broker.metrics.connections.get();
    let most = broker.settings.mqtt.max_connections;
    let own = match incoming.listener.config.max_connections {
        0 => usize::MAX,
        most => most,
    };
    if open >= i64::try_from(most).unwrap_or(i64::MAX) || places.open.load(Ordering::Relaxed) >= own
    {
        let text = "there are as many connections as there may be";
        return Some((DisconnectReason::TooMany, text));
    }
    let is_exhausted = broker.settings.outbox.memory.is_exhausted();
    is_exhausted.then_some((
        DisconnectReason::NodeMemory,
        "the server is short of memory",
    ))
}

fn accept(broker: &Arc<Broker>, incoming: Incoming, places: &Arc<Places>) {
    let metrics = &broker.metrics;
    metrics.connections_opened.increment();
    if let Some((cause, text)) = refusal(broker, &incoming, places) {
        refuse(broker, incoming, places, cause, text);
        return;
    }
    let memory = &broker.settings.outbox.memory;
    let timeout = Duration::from_secs(broker.settings.mqtt.tcp_timeout_s.into());
    if let Err(error) = incoming.socket.prepare(timeout) {
        let peer = &incoming.peer;
        tracing::debug!(address = %peer, %error, "options of the socket could not be set");
    }
    metrics.connections.increment();
    places.open.fetch_add(1, Ordering::Relaxed);
    let taken = Taken {
        broker: broker.clone(),
        places: places.clone(),
        _charge: Charge::new(memory, CONNECTION_BYTES),
    };
    tokio::spawn(async move {
        serve(&taken.broker, incoming).await;
    });
}

/// The place of a connection, which is free again however its task ends.
struct Taken {
    broker: Arc<Broker>,
    places: Arc<Places>,
    _charge: Charge,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.broker.metrics.connections.decrement();
        self.places.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a client that there is no room for it.
fn refuse(
    broker: &Arc<Broker>,
    incoming: Incoming,
    places: &Arc<Places>,
    cause: DisconnectReason,
    text: &'static str,
) {
    broker.metrics.disconnects.of(cause).increment();
    tracing::debug!(address = %incoming.peer, ?cause, text, "refused");
    if places.refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_AT_ONCE {
        places.refused.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let places = places.clone();
    tokio::spawn(async move {
        if let Ok(Some((mut stream, bytes))) =
            tokio::time::timeout(REFUSAL_TIMEOUT, beginning(incoming)).await
        {
            let refusal = Refusal::no_room(version_of(&bytes), cause, text);
            write_last(&mut stream, &refusal.packet).await;
            end_stream(&mut stream).await;
            linger(&mut stream, LINGER_TIMEOUT).await;
        }
        places.refused.fetch_sub(1, Ordering::Relaxed);
    });
}

/// The beginning of a client's CONNECT; `None` when it sends something else.
async fn beginning(incoming: Incoming) -> Option<(Stream, Vec<u8>)> {
    let mut stream = incoming.establish(|_| true).await.ok()?.stream;
    let mut bytes = Vec::new();
    while bytes.len() < VERSION_BYTES {
        read_some(&mut stream, &mut bytes).await.ok()?;
        if bytes.first() != Some(&PacketType::Connect.first_byte()) {
            return None;
        }
    }
    bytes.truncate(VERSION_BYTES);
    Some((stream, bytes))
}
