//! The port of the API.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::answer::Answer;
use super::error::{Code, Refusal};
use super::hub::Hub;
use super::log::COMMIT_TIMEOUT;
use crate::http::{self, ANSWER_TIMEOUT, Bounds, TlsSource};

/// Connections at once. A back end keeps a pool of some dozens.
const MOST_CONNECTIONS: usize = 1_024;

/// How long a connection may be without a request, and a request's header take.
const IDLE: Duration = Duration::from_secs(60);

/// How long a body may take, beside what the log may.
const BODY: Duration = Duration::from_secs(15);

/// A port that is served.
pub struct Port {
    /// Its socket.
    pub listener: TcpListener,
    /// The TLS that it speaks; `None`: plain HTTP.
    pub tls: Option<TlsSource>,
}

/// Serves until `shutdown` completes and the requests under way are answered. A write that has not begun, and waits for
/// no turn, is refused.
pub async fn serve(
    port: Port,
    hub: Arc<Hub>,
    shutdown: impl Future<Output = Instant> + Send + 'static,
) {
    let answer =
        |State(hub): State<Arc<Hub>>, request: Request| async move { hub.answer(request).await };
    let changes = hub.changes.clone();
    let refused = changes.clone();
    let shutdown = async move {
        refused.refuse(shutdown.await);
    };
    let routes = Router::new().fallback(answer).with_state(hub);
    let bounds = Bounds {
        connections: MOST_CONNECTIONS,
        header: IDLE,
        request: COMMIT_TIMEOUT + BODY,
        answer: ANSWER_TIMEOUT,
    };
    http::run(port.listener, port.tls, routes, bounds, late, shutdown).await;
    changes.carried_out().await;
}

/// The answer to a request that is not answered in time.
fn late() -> Response {
    let text = "not answered in time; what was asked may still be done";
    Answer::from(Refusal::new(Code::TimedOut, text)).into_response()
}
