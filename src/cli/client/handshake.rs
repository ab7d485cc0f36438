//! CONNECT to CONNACK with one server.

use std::time::Duration;

use super::connection::Connection;
use super::error::ClientError;
use super::login::Login;
use super::options::Options;
use super::server::Server;
use crate::auth::scram;
use crate::cli::hint;
use crate::codec::client::{self, Packet};
use crate::codec::{Connect, ReasonCode, Version};

/// The keep-alive that is asked for; CONNACK may replace it.
const KEEP_ALIVE_S: u16 = 30;

/// A connection that the server has accepted, and the keep-alive that it wants; `None` turns it off.
pub(super) struct Accepted {
    pub(super) connection: Connection,
    pub(super) keep_alive: Option<Duration>,
}

/// Connects to one server and logs in.
///
/// # Errors
/// A server that cannot be reached, does not answer in time, or refuses.
pub(super) async fn connect(options: &Options, server: &Server) -> Result<Accepted, ClientError> {
    let limit = options.connect_timeout;
    let mut connection = Connection::open(server, &options.tls, limit).await?;
    let handshake = shake_hands(options, &mut connection);
    let keep_alive_s = tokio::time::timeout(limit, handshake)
        .await
        .unwrap_or_else(|_| {
            let why = format!("{server} did not answer CONNECT");
            Err(ClientError::Closed(why))
        })
        .map_err(|error| hinted(error, server))?;
    Ok(Accepted {
        connection,
        keep_alive: (keep_alive_s > 0).then(|| Duration::from_secs(keep_alive_s.into())),
    })
}

/// The same with what to try, where the server may speak something else than MQTT without TLS.
fn hinted(error: ClientError, server: &Server) -> ClientError {
    let hint = hint::NOT_MQTT;
    match error {
        _ if server.transport.is_tls() => error,
        ClientError::Protocol(why) => ClientError::Protocol(format!("{why}; {hint}")),
        ClientError::Closed(why) => ClientError::Closed(format!("{why}; {hint}")),
        other => other,
    }
}

/// Exchanges the packets of the handshake. Returns the keep-alive in seconds.
async fn shake_hands(options: &Options, connection: &mut Connection) -> Result<u16, ClientError> {
    let mut login = Login::begin(options)?;
    let first = login.as_ref().map(|login| login.first());
    let mut connect = Connect {
        clean_start: true,
        keep_alive: KEEP_ALIVE_S,
        ..Connect::new(Version::V5, &options.client_id)
    };
    match &first {
        Some(first) => {
            connect.authentication_method = Some(scram::Algorithm::Sha256.name());
            connect.authentication_data = Some(first.as_bytes());
        }
        None => {
            connect.username = options.username.as_deref();
            connect.password = options.password.as_deref().map(str::as_bytes);
        }
    }
    client::connect(&mut connection.output, &connect)?;
    connection.flush().await?;
    if let Some(login) = &mut login {
        login.answer(connection).await?;
    }
    connection.fill().await?;
    match connection.packet()? {
        Packet::ConnAck(ack) if ack.reason == ReasonCode::Success => {
            if let Some(login) = &login {
                login.verify(ack.properties.authentication_data)?;
            }
            Ok(ack.properties.server_keep_alive.unwrap_or(KEEP_ALIVE_S))
        }
        packet => Err(ClientError::from_refusal(&packet)),
    }
}
