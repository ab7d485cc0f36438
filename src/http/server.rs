//! The server loop: connections, bounded in number and in time.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::bounded_writes::BoundedWrites;
use super::caller::{Caller, Certificate, TlsSource};
use super::places::{Place, Places};
use crate::config::bounds::ADMIN_REQUEST_TIMEOUT_S;

/// Connections at once. Probes, a few scrapers and an administrator need a dozen.
const MOST_CONNECTIONS: usize = 512;

/// Largest header of a request, bytes.
const LARGEST_HEADER_BYTES: usize = 64 << 10;

/// How long a client may take to read an answer: its bytes are in memory until it has.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long sent bytes may stay unacknowledged by a client's machine.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// How long requests that are under way when the server is shut down are waited for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// Pause after a failed accept, such as one without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many clients the server has, and how long it waits for them.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once; a further one takes the place of another, see [`Places`].
    pub connections: usize,
    /// From a connection's beginning, or its last answer, to the end of the next request's header.
    pub header: Duration,
    /// From the end of the header to the answer; the request's body must come within it.
    pub request: Duration,
    /// How long the client may take to read the answer, once it does not read as fast as the node writes.
    pub answer: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            connections: MOST_CONNECTIONS,
            header: Duration::from_secs(10),
            // Administration answers within its own bound once the body is there.
            request: Duration::from_secs(ADMIN_REQUEST_TIMEOUT_S + 5),
            answer: ANSWER_TIMEOUT,
        }
    }
}

/// Serves `routes` until `shutdown` completes and the requests under way are answered; they have a moment for that.
/// `late` is the answer to a request that is not answered in time.
pub async fn run(
    listener: TcpListener,
    tls: Option<TlsSource>,
    routes: Router,
    bounds: Bounds,
    late: fn() -> Response,
    shutdown: impl Future<Output = ()> + Send,
) {
    let bound = move |request, next| bound_request(bounds.request, late, request, next);
    let routes = routes.layer(middleware::from_fn(bound));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.header)
        .max_buf_size(LARGEST_HEADER_BYTES);
    let places = Places::new(bounds.connections);
    let graceful = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, address) = tokio::select! {
            accepted = accept(&listener) => accepted,
            () = &mut shutdown => break,
        };
        let conversation = Conversation {
            builder: builder.clone(),
            routes: routes.clone(),
            place: Arc::new(places.take()),
            watcher: graceful.watcher(),
            handshake: bounds.header,
            answer: bounds.answer,
        };
        let tls = tls.clone();
        tokio::spawn(async move {
            let place = conversation.place.clone();
            tokio::select! {
                () = conversation.hold(stream, address, tls) => {}
                () = place.must_leave() => {}
            }
        });
    }
    drop(listener);
    // Who has not asked yet, or reads slowly, is not waited for.
    let _ = tokio::time::timeout(ANSWERED_WITHIN, graceful.shutdown()).await;
}

/// One connection.
struct Conversation {
    builder: http1::Builder,
    routes: Router,
    place: Arc<Place>,
    watcher: Watcher,
    /// How long the TLS handshake may take.
    handshake: Duration,
    /// How long the client may take to read an answer.
    answer: Duration,
}

impl Conversation {
    async fn hold(self, stream: TcpStream, address: SocketAddr, tls: Option<TlsSource>) {
        let mut caller = Caller {
            address: Some(address),
            certificate: None,
        };
        let Some(tls) = tls else {
            return self.serve(stream, caller).await;
        };
        let config = tls();
        let handshake = TlsAcceptor::from(config.clone()).accept(stream);
        // A handshake that fails concerns nobody but its client.
        let Ok(Ok(stream)) = tokio::time::timeout(self.handshake, handshake).await else {
            return;
        };
        let chain = stream.get_ref().1.peer_certificates();
        let leaf = chain.and_then(|chain| chain.first());
        caller.certificate = leaf.and_then(|leaf| Certificate::new(leaf, config, tls));
        self.serve(stream, caller).await;
    }

    async fn serve<S>(self, stream: S, caller: Caller)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let service = TowerToHyperService::new(self.routes);
        let place = self.place;
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(caller.clone());
            note_request(place.clone(), service.call(request))
        });
        let stream = TokioIo::new(BoundedWrites::new(stream, self.answer));
        let connection = self.builder.serve_connection(stream, service);
        // A broken connection concerns nobody but its client.
        let _ = self.watcher.watch(connection).await;
    }
}

/// Answers within `limit`, the reading of the request's body included.
async fn bound_request(
    limit: Duration,
    late: fn() -> Response,
    request: Request,
    next: Next,
) -> Response {
    // What is read at once may be more than the buffer may grow to.
    if header_bytes(&request) > LARGEST_HEADER_BYTES {
        return StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response();
    }
    let answer = tokio::time::timeout(limit, next.run(request)).await;
    answer.unwrap_or_else(|_| late())
}

/// Bytes of a request's target and its header fields.
fn header_bytes(request: &Request) -> usize {
    let target = request.uri().path_and_query();
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
    target.map_or(0, |target| target.as_str().len()) + fields.sum::<usize>()
}

/// Awaits the answer to a request, which is under way meanwhile.
async fn note_request<F: Future>(place: Arc<Place>, answer: F) -> F::Output {
    place.set_busy(true);
    let answer = answer.await;
    place.set_busy(false);
    answer
}

/// The next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let _ = stream.set_nodelay(true);
                let socket = socket2::SockRef::from(&stream);
                #[cfg(target_os = "linux")]
                let _ = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
                return (stream, address);
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection to the HTTP port cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether accepting failed because of the connection that was to be accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::response::IntoResponse as _;
    use axum::routing::get;
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    /// More than sockets hold.
    const LARGE: usize = 64 << 20;

    /// The bytes of an answer, which say when nobody has them any more.
    struct Watched(Vec<u8>, Arc<Notify>);

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.1.notify_one();
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_not_read_is_let_go() {
        let gone = Arc::new(Notify::new());
        let watch = gone.clone();
        let answer = move || {
            let watched = Watched(vec![b'1'; LARGE], watch.clone());
            async move { Bytes::from_owner(watched) }
        };
        let routes = Router::new().route("/", get(answer));
        let bounds = Bounds {
            answer: Duration::from_millis(300),
            ..Bounds::default()
        };
        let late = || StatusCode::GATEWAY_TIMEOUT.into_response();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let never = std::future::pending();
        tokio::spawn(run(listener, None, routes, bounds, late, never));
        for reads in [false, true] {
            let mut client = TcpStream::connect(address).await.expect("it listens");
            let request = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            client.write_all(request).await.expect("it reads");
            let let_go = tokio::time::timeout(Duration::from_secs(30), gone.notified());
            if reads {
                let mut bytes = [0; 100];
                tokio::select! {
                    let_go = let_go => let_go.expect("the time for an answer bounds it"),
                    () = async {
                        loop {
                            if client.read_exact(&mut bytes).await.is_err() {
                                // The connection has ended; so has the answer, or it will not.
                                std::future::pending::<()>().await;
                            }
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    } => {}
                }
            } else {
                let_go.await.expect("the time for an answer bounds it");
            }
        }
    }
}
