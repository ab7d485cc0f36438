//! A connection from its acceptance to its end: the transport's handshake, CONNECT, the opening of the session, and
//! then its task; or the refusal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::broker::Broker;
use super::end::Ended;
use super::handshake;
use super::linger::{end_stream, linger, write_last};
use super::refusal::Refusal;
use super::task::{Task, report_end};
use crate::mailbox::memory::Charge;
use crate::telemetry::labels::DisconnectReason;
use crate::transport::{EstablishError, Incoming, Peer, Stream};

/// Serves one client until its connection ends. What the beginning needs is given back when it is over: most
/// connections are idle most of the time, and there are many.
pub(super) async fn serve(broker: &Arc<Broker>, incoming: Incoming) {
    match Box::pin(begin(broker, incoming)).await {
        Ok(mut task) => task.run().await,
        Err(refused) => Box::pin(refuse(broker, refused)).await,
    }
}

/// A client whose session was not opened; one that never came to MQTT has no stream.
struct Refused {
    stream: Option<Stream>,
    peer: Peer,
    refusal: Refusal,
}

/// Tells a client why it is refused.
async fn refuse(broker: &Broker, refused: Box<Refused>) {
    let Refused {
        stream,
        peer,
        refusal,
    } = *refused;
    let Some(mut stream) = stream else {
        report_end(broker, &refusal.ended, &peer, "");
        return;
    };
    write_last(&mut stream, &refusal.packet).await;
    end_stream(&mut stream).await;
    report_end(broker, &refusal.ended, &peer, "");
    if !refusal.packet.is_empty() {
        linger(&mut stream).await;
    }
}

/// CONNECT, authentication, and the session's opening.
async fn begin(broker: &Arc<Broker>, incoming: Incoming) -> Result<Box<Task>, Box<Refused>> {
    let mut unfinished = Vec::new();
    let mut charge = Charge::new(&broker.settings.handshake_memory, 0);
    let mqtt = &broker.settings.mqtt;
    let deadline = Instant::now() + Duration::from_secs(mqtt.connect_timeout_s.into());
    let too_late = || {
        let text = "no CONNECT, or not all of its authentication, came in time";
        Refusal::silent(Ended::close(DisconnectReason::ConnectTimeout, text))
    };
    let peer = incoming.peer.clone();
    let refused = |stream, peer, refusal| {
        Box::new(Refused {
            stream,
            peer,
            refusal,
        })
    };
    let has_room = |held| handshake::has_room(broker, &mut charge, held);
    let mut accepted = match timeout_at(deadline, incoming.establish(has_room)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => return Err(refused(None, peer, not_established(&error))),
        Err(_) => return Err(refused(None, peer, too_late())),
    };
    let open = handshake::open(broker, &mut accepted, &mut unfinished, &mut charge);
    let opening = match timeout_at(deadline, open).await {
        Ok(opening) => opening,
        Err(_) => Err(too_late()),
    };
    let connection = match opening {
        Ok(opening) => opening.finish(broker).await,
        Err(refusal) => Err(refusal),
    };
    match connection {
        Ok(connection) => Ok(Task::new(connection, accepted, unfinished)),
        Err(refusal) => Err(refused(Some(accepted.stream), accepted.peer, refusal)),
    }
}

/// Why a connection that never came to MQTT has ended.
fn not_established(error: &EstablishError) -> Refusal {
    use DisconnectReason::{NodeMemory, Transport};
    tracing::debug!(%error, "a connection never came to MQTT");
    Refusal::silent(match error {
        EstablishError::Network => Ended::network(),
        EstablishError::NoRoom => Ended::close(NodeMemory, "the server is short of memory"),
        EstablishError::Proxy(_) => Ended::close(Transport, "the PROXY header is not right"),
        EstablishError::Tls(_) => Ended::close(Transport, "TLS was not agreed on"),
        EstablishError::Upgrade(_) => Ended::close(Transport, "WebSocket was not agreed on"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F: Future>(_: impl Fn(&'static Arc<Broker>, Incoming) -> F) -> usize {
        size_of::<F>()
    }

    /// Nodes have many connections, nearly all of them idle.
    #[test]
    fn what_an_idle_connection_keeps_is_small() {
        assert!(size_of::<Task>() <= 1024, "{}", size_of::<Task>());
        let future = size_of_future(serve);
        assert!(future <= 448, "{future}");
    }
}
