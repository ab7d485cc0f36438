//! Extended authentication (MQTT 5.0 §4.12) of a client that is connected: AUTH 0x19 and what follows it. The exchange
//! before the CONNACK is in [`super::handshake`].

use std::time::Duration;

use tokio::time::Instant;

use super::context::Context;
use super::end::Ended;
use crate::auth::{Exchange, Step};
use crate::codec::{Auth, ReasonCode, encode};
use crate::telemetry::labels::DisconnectReason;

/// A re-authentication; everything else goes on meanwhile (MQTT 5.0 §4.12.1).
struct Reauthentication {
    exchange: Exchange,
    deadline: Instant,
}

/// The client's re-authentication, if one is under way.
#[derive(Default)]
pub(super) struct Authentication {
    under_way: Option<Box<Reauthentication>>,
}

impl Authentication {
    /// AUTH from a client that is connected.
    ///
    /// # Errors
    /// A failure ends the connection `[MQTT-4.12.1-2]`.
    pub(super) fn handle_auth(
        &mut self,
        context: &mut Context,
        auth: &Auth<'_>,
    ) -> Result<(), Ended> {
        let Some(identity) = &context.options.identity else {
            // No extended authentication was agreed on [MQTT-4.12.0-7].
            return Err(Ended::protocol("AUTH without an authentication method"));
        };
        if auth.method != &*identity.method {
            return Err(Ended::protocol("AUTH names another method than CONNECT"));
        }
        let mut under_way = match (auth.reason, self.under_way.take()) {
            (ReasonCode::ReAuthenticate, None) => begin(context, auth.method)?,
            (ReasonCode::ContinueAuthentication, Some(under_way)) => under_way,
            _ => return Err(Ended::protocol("AUTH does not fit what went before")),
        };
        match under_way.exchange.step(auth.data) {
            Step::Continue(data) => {
                self.under_way = Some(under_way);
                let reason = ReasonCode::ContinueAuthentication;
                send_auth(context, reason, auth.method, &data)
            }
            Step::Success { identity: name, .. } if name != identity.name => {
                let text = "the client has become somebody else";
                Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text))
            }
            Step::Success { data, .. } => {
                send_auth(context, ReasonCode::Success, auth.method, &data)
            }
            Step::Refused(reason, text) => Err(Ended::not_authenticated(reason, text)),
        }
    }

    /// When the re-authentication under way must be over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.under_way.as_ref().map(|under_way| under_way.deadline)
    }

    /// Checks the deadline.
    ///
    /// # Errors
    /// The re-authentication takes too long.
    pub(super) fn check_deadline(&self, now: Instant) -> Result<(), Ended> {
        match self.deadline() {
            Some(deadline) if deadline <= now => {
                let text = "the re-authentication was not finished in time";
                Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text))
            }
            _ => Ok(()),
        }
    }
}

fn begin(context: &Context, method: &str) -> Result<Box<Reauthentication>, Ended> {
    let broker = &context.broker;
    match broker.begin_authentication(method, &context.options.client_id, None) {
        Ok(Some(exchange)) => {
            let timeout = Duration::from_secs(broker.settings.mqtt.connect_timeout_s.into());
            Ok(Box::new(Reauthentication {
                exchange,
                deadline: Instant::now() + timeout,
            }))
        }
        Ok(None) => Err(Ended::protocol("AUTH names a method that is not known")),
        Err(_) => {
            let text = "this node has no random numbers";
            Err(Ended::not_authenticated(ReasonCode::UnspecifiedError, text))
        }
    }
}

fn send_auth(
    context: &mut Context,
    reason: ReasonCode,
    method: &str,
    data: &[u8],
) -> Result<(), Ended> {
    let data = Some(data).filter(|data| !data.is_empty());
    let packet = Auth::new(reason, method, data);
    let (version, limits) = (context.options.version, context.options.limits);
    let out = context.output.acknowledgements();
    match encode::auth(out, version, &packet, limits) {
        Ok(_) => Ok(()),
        Err(_) => {
            let text = "AUTH is larger than the client accepts";
            Err(Ended::disconnect(
                DisconnectReason::PacketTooLarge,
                ReasonCode::PacketTooLarge,
                text,
            ))
        }
    }
}
