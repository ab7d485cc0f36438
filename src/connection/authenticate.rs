//! Extended authentication (MQTT 5.0 §4.12) of a client that is connected: AUTH 0x19 and what follows it. The exchange
//! before the CONNACK is in [`super::handshake`].

use std::time::Duration;

use tokio::time::Instant;

use super::Connection;
use super::end::Ended;
use crate::auth::{Exchange, Step};
use crate::codec::{Auth, ReasonCode, encode};
use crate::telemetry::labels::DisconnectReason;

/// Who a client has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proved {
    /// The method that its CONNECT named, and that every AUTH must name `[MQTT-4.12.0-5]` `[MQTT-4.12.1-1]`.
    pub(super) method: Box<str>,
    /// What the mechanism calls it.
    pub(super) identity: Box<str>,
}

/// An exchange that has succeeded before the CONNACK.
pub(super) struct Login {
    pub(super) proved: Proved,
    /// The mechanism's last data, for the CONNACK.
    pub(super) data: Vec<u8>,
}

/// A re-authentication under way; everything else goes on meanwhile (MQTT 5.0 §4.12.1).
pub(super) struct Renewal {
    exchange: Exchange,
    deadline: Instant,
}

/// A client that is not who it says it is, or does not show it.
pub(super) const fn not_authenticated(reason: ReasonCode, text: &'static str) -> Ended {
    Ended::told(DisconnectReason::NotAuthenticated, reason, text)
}

impl Connection {
    /// AUTH from a client that is connected. A failure ends the connection `[MQTT-4.12.1-2]`.
    pub(super) fn handle_auth(&mut self, auth: &Auth<'_>) -> Result<(), Ended> {
        let Some(proved) = &self.terms.proved else {
            // No extended authentication was agreed on [MQTT-4.12.0-7].
            return Err(Ended::protocol("AUTH without an authentication method"));
        };
        if auth.method != &*proved.method {
            return Err(Ended::protocol("AUTH names another method than CONNECT"));
        }
        let mut renewal = match (auth.reason, self.renewal.take()) {
            (ReasonCode::ReAuthenticate, None) => self.begin_renewal(auth.method)?,
            (ReasonCode::ContinueAuthentication, Some(renewal)) => renewal,
            _ => return Err(Ended::protocol("AUTH does not fit what went before")),
        };
        match renewal.exchange.step(auth.data) {
            Step::Continue(data) => {
                self.renewal = Some(renewal);
                self.send_auth(ReasonCode::ContinueAuthentication, auth.method, &data)
            }
            Step::Success { identity, .. } if identity != proved.identity => {
                let text = "the client has become somebody else";
                Err(not_authenticated(ReasonCode::NotAuthorized, text))
            }
            Step::Success { data, .. } => self.send_auth(ReasonCode::Success, auth.method, &data),
            Step::Refused(reason, text) => Err(not_authenticated(reason, text)),
        }
    }

    fn begin_renewal(&self, method: &str) -> Result<Box<Renewal>, Ended> {
        let client_id = &self.terms.client_id;
        match self.broker.begin_authentication(method, client_id, None) {
            Ok(Some(exchange)) => Ok(Box::new(Renewal {
                exchange,
                deadline: Instant::now()
                    + Duration::from_secs(self.broker.config.connect_timeout_s.into()),
            })),
            Ok(None) => Err(Ended::protocol("AUTH names a method that is not known")),
            Err(_) => {
                let text = "this node has no random numbers";
                Err(not_authenticated(ReasonCode::UnspecifiedError, text))
            }
        }
    }

    fn send_auth(&mut self, reason: ReasonCode, method: &str, data: &[u8]) -> Result<(), Ended> {
        let data = Some(data).filter(|data| !data.is_empty());
        let packet = Auth::new(reason, method, data);
        let (version, limits) = (self.terms.version, self.terms.limits);
        match encode::auth(&mut self.acks, version, &packet, limits) {
            Ok(_) => Ok(()),
            Err(_) => {
                let text = "AUTH is larger than the client accepts";
                Err(Ended::told(
                    DisconnectReason::PacketTooLarge,
                    ReasonCode::PacketTooLarge,
                    text,
                ))
            }
        }
    }

    /// When the re-authentication under way must be over.
    pub(super) fn renewal_deadline(&self) -> Option<Instant> {
        self.renewal.as_ref().map(|renewal| renewal.deadline)
    }

    /// Ends a connection whose re-authentication takes too long.
    pub(super) fn check_renewal(&self, now: Instant) -> Result<(), Ended> {
        match self.renewal_deadline() {
            Some(deadline) if deadline <= now => {
                let text = "the re-authentication was not finished in time";
                Err(not_authenticated(ReasonCode::NotAuthorized, text))
            }
            _ => Ok(()),
        }
    }
}
