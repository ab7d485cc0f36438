//! A connection from its acceptance to its end: the transport's handshake, CONNECT, the opening of the session, and
//! then its task; or the refusal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::broker::Broker;
use super::end::Ended;
use super::handshake;
use super::linger::{LINGER_TIMEOUT, end_stream, linger, write_last};
use super::refusal::Refusal;
use super::task::{Task, report_end};
use super::unfinished::Place;
use crate::base::time::elapsed_now;
use crate::mailbox::memory::Charge;
use crate::telemetry::labels::DisconnectReason;
use crate::transport::{EstablishError, Incoming, Located, Peer, Stream};

/// Serves one client until its connection ends. What the beginning needs is given back when it is over: most
/// connections are idle most of the time, and there are many.
pub(super) async fn serve(broker: &Arc<Broker>, incoming: Incoming) {
    match Box::pin(begin(broker, incoming)).await {
        Ok(task) => task.run().await,
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
        linger(&mut stream, LINGER_TIMEOUT).await;
    }
}

/// CONNECT, authentication, and the session's opening.
async fn begin(broker: &Arc<Broker>, incoming: Incoming) -> Result<Box<Task>, Box<Refused>> {
    // May have the beginning of a password when the client goes away.
    let mut unfinished = Zeroizing::new(Vec::new());
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
    let located = match timeout_at(deadline, incoming.locate()).await {
        Ok(Ok(located)) => located,
        Ok(Err(error)) => return Err(refused(None, peer, not_established(&error))),
        Err(_) => return Err(refused(None, peer, too_late())),
    };
    let peer = located.peer().clone();
    let _place = match judge_address(broker, &located) {
        Ok(place) => place,
        Err(ended) => return Err(refused(None, peer, Refusal::silent(ended))),
    };
    let has_room = |held| handshake::has_room(broker, &mut charge, held);
    let mut accepted = match timeout_at(deadline, located.establish(has_room)).await {
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
        Ok(connection) => Ok(Task::new(
            connection,
            accepted,
            std::mem::take(&mut unfinished),
        )),
        Err(refusal) => Err(refused(Some(accepted.stream), accepted.peer, refusal)),
    }
}

/// Judges where a connection comes from, before a handshake is paid for. Returns its place among those of its address,
/// if they are counted. Who comes without a handshake is told in the CONNACK that its address is banned, and why not.
fn judge_address<'b>(broker: &'b Broker, located: &Located) -> Result<Option<Place<'b>>, Ended> {
    let address = located.peer().address.map(|address| address.ip());
    let identity = &broker.services.identity;
    if located.shakes_hands()
        && let Err(denial) = identity.admit_address(address, elapsed_now())
    {
        return Err(Ended::close(
            DisconnectReason::NotAuthenticated,
            denial.text,
        ));
    }
    let Some(address) = identity.counted(address) else {
        return Ok(None);
    };
    let most = broker.settings.mqtt.unfinished_per_address;
    match broker.state.unfinished.take(address, most) {
        Some(place) => Ok(Some(place)),
        None => {
            let text = "too many clients of this address have not proved who they are";
            Err(Ended::close(DisconnectReason::TooMany, text))
        }
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

    /// A connection of this machine to a listener that speaks TLS, or not.
    async fn incoming(has_tls: bool) -> (tokio::net::TcpStream, Incoming) {
        use crate::config::CertificatePair;
        use crate::peers::authority::{Authority, Files, Subject};
        use crate::transport::tls::{Files as TlsFiles, ServerTls};
        use crate::transport::{Listener, Socket};

        let directory = tempfile::tempdir().expect("a directory");
        let files = Files::in_directory(directory.path());
        files.put_certificate(&Authority::new("a"), &Subject::node("test", 1));
        let files = TlsFiles {
            certificates: vec![CertificatePair {
                certificate: files.certificate,
                key: files.key,
            }],
            client_certificates: crate::config::ClientCertificates::Off,
            client_ca_file: None,
            crl_files: Vec::new(),
            asks_everybody: false,
        };
        let tls = has_tls.then(|| ServerTls::load(files, &["mqtt"]).expect("good files"));
        let listening = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listening = listening.expect("a free port");
        let address = listening.local_addr().expect("bound");
        let client = tokio::net::TcpStream::connect(address);
        let (client, accepted) = tokio::join!(client, listening.accept());
        let (socket, address) = accepted.expect("it connects");
        let incoming = Incoming {
            socket: Socket::Tcp(socket),
            peer: Peer {
                address: Some(address),
                tls: None,
            },
            listener: Arc::new(Listener::for_tests(tls)),
        };
        (client.expect("it listens"), incoming)
    }

    /// What comes back to who says nothing; `None` while it is waited for.
    async fn answer(broker: &Arc<Broker>, has_tls: bool) -> Option<Vec<u8>> {
        use tokio::io::AsyncReadExt as _;
        let (mut client, incoming) = incoming(has_tls).await;
        let served = tokio::time::timeout(Duration::from_millis(300), serve(broker, incoming));
        served.await.ok()?;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.ok()?;
        Some(answer)
    }

    #[tokio::test]
    async fn an_address_that_is_banned_or_has_its_places_gets_no_handshake() {
        let context = super::super::context::Context::for_tests(false);
        let broker = &context.broker;
        assert_eq!(answer(broker, true).await, None, "it is waited for");
        let here = std::net::IpAddr::from([127, 0, 0, 1]);
        let most = broker.settings.mqtt.unfinished_per_address;
        let take = || broker.state.unfinished.take(here, most);
        let held: Vec<_> = std::iter::from_fn(take).collect();
        assert_eq!(held.len(), most);
        assert_eq!(answer(broker, true).await, Some(Vec::new()));
        assert_eq!(answer(broker, false).await, Some(Vec::new()));
        drop(held);
        assert_eq!(answer(broker, true).await, None, "there is room");
        let ban = "address:127.0.0.0/8".parse().expect("a network");
        broker.services.identity.ban(&ban);
        assert_eq!(answer(broker, true).await, Some(Vec::new()));
        // Without a handshake it is told so, once its CONNECT is here.
        assert_eq!(answer(broker, false).await, None);
    }

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
