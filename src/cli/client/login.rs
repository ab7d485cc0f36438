//! Extended authentication from the client's side: SCRAM-SHA-256 between CONNECT and CONNACK.

use super::connection::Connection;
use super::error::ClientError;
use super::options::Options;
use crate::auth::ENTROPY_BYTES;
use crate::auth::scram::{self, ServerError};
use crate::codec::client::{self, Packet};
use crate::codec::{Auth, PeerLimits, ReasonCode, Version};

/// A log-in with SCRAM-SHA-256 under way.
pub(super) struct Login {
    scram: scram::Client,
}

impl Login {
    /// A log-in, when the options ask for one.
    pub(super) fn begin(options: &Options) -> Result<Option<Login>, ClientError> {
        if !options.scram {
            return Ok(None);
        }
        let user = options.username.as_deref().unwrap_or_default();
        let password = options.password.as_deref().unwrap_or_default();
        let mut entropy = [0; ENTROPY_BYTES];
        getrandom::fill(&mut entropy).map_err(|error| ClientError::LogIn(error.to_string()))?;
        let scram = scram::Client::new(user, password, &entropy)?;
        Ok(Some(Login { scram }))
    }

    /// The authentication data of CONNECT.
    pub(super) fn first(&self) -> String {
        self.scram.first()
    }

    /// Waits for the server's challenge and answers it.
    pub(super) async fn answer(&mut self, connection: &mut Connection) -> Result<(), ClientError> {
        connection.fill().await?;
        let answer = match connection.packet()? {
            Packet::Auth(auth) if auth.reason == ReasonCode::ContinueAuthentication => {
                self.scram.answer(auth.data.unwrap_or_default())?
            }
            // A server that does not ask for the proof does not know the authentication method.
            Packet::ConnAck(ack) if ack.reason == ReasonCode::Success => {
                return Err(ServerError::Unproved.into());
            }
            packet => return Err(ClientError::from_refusal(&packet)),
        };
        let packet = Auth::new(
            ReasonCode::ContinueAuthentication,
            scram::Algorithm::Sha256.name(),
            Some(answer.as_bytes()),
        );
        client::auth(
            &mut connection.output,
            Version::V5,
            &packet,
            PeerLimits::NONE,
        )?;
        connection.flush().await
    }

    /// Checks the server's proof that it knows the user, too; the data came with its CONNACK.
    pub(super) fn verify(&self, data: Option<&[u8]>) -> Result<(), ClientError> {
        Ok(self.scram.verify(data.unwrap_or_default())?)
    }
}
