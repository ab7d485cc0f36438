//! Who the client is after its CONNACK: extended authentication once more (MQTT 5.0 §4.12.1), AUTH 0x19 and what
//! follows it, and the end of what its identity rests on. The exchange before the CONNACK is in [`super::handshake`].
//!
//! Invariant: a connection never outlives the proof of its client's identity. A client that proves it again in time
//! goes on under the same name.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::certified::{Certified, Registration};
use super::context::Context;
use super::end::Ended;
use super::login_report;
use super::options::ConnectionOptions;
use crate::auth::{Client, Denial, ENTROPY_BYTES, Exchange, Later, Principal, Step};
use crate::base::time::wall_now;
use crate::codec::{Auth, ReasonCode, encode};
use crate::mailbox::Mailbox;
use crate::telemetry::audit::Kind;
use crate::telemetry::labels::DisconnectReason;

/// How often the wall clock is looked at for an expiry that is further away: it may have been set meanwhile.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A re-authentication; everything else goes on meanwhile (MQTT 5.0 §4.12.1).
struct Reauthentication {
    exchange: Exchange,
    deadline: Instant,
    /// What a step that takes a while has led to, and whether there is one.
    later: Option<Arc<Mutex<Option<Step>>>>,
}

/// The client's re-authentication, if one is under way, and the end of its identity. Most clients have neither, and
/// keep no room for it.
#[derive(Default)]
pub(super) struct Authentication {
    state: Option<Box<State>>,
}

#[derive(Default)]
struct State {
    under_way: Option<Reauthentication>,
    /// When to look whether the identity has expired.
    expiry_check: Option<Instant>,
    /// The client has shown a certificate.
    certified: Option<Registration>,
}

impl Authentication {
    /// Of a client that has proved to be who its options say.
    pub(super) fn new(
        certified: &Arc<Certified>,
        options: &ConnectionOptions,
        mailbox: &Arc<Mailbox>,
    ) -> Authentication {
        let expiry_check = next_expiry_check(&options.principal, Instant::now());
        let certified = certified.register(mailbox, &options.origin);
        let is_needed = expiry_check.is_some() || certified.is_some();
        let state = || {
            Box::new(State {
                under_way: None,
                expiry_check,
                certified,
            })
        };
        Authentication {
            state: is_needed.then(state),
        }
    }

    /// AUTH from a client that is connected.
    ///
    /// # Errors
    /// A failure ends the connection `[MQTT-4.12.1-2]`.
    pub(super) fn handle_auth(
        &mut self,
        context: &mut Context,
        auth: &Auth<'_>,
    ) -> Result<(), Ended> {
        let Some(method) = &context.options.origin.method else {
            // No extended authentication was agreed on [MQTT-4.12.0-7].
            return Err(Ended::protocol("AUTH without an authentication method"));
        };
        if auth.method != &**method {
            return Err(Ended::protocol("AUTH names another method than CONNECT"));
        }
        let state = self.state.get_or_insert_default();
        let mut under_way = match (auth.reason, state.under_way.take()) {
            (ReasonCode::ReAuthenticate, None) => begin(context, auth.method)?,
            (ReasonCode::ContinueAuthentication, Some(under_way)) if under_way.later.is_none() => {
                under_way
            }
            _ => return Err(Ended::protocol("AUTH does not fit what went before")),
        };
        let step = under_way.exchange.step(auth.data);
        state.take_step(context, under_way, step)
    }

    /// When [`Authentication::check`] has something to do.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let state = self.state.as_ref()?;
        let re_authentication = state.under_way.as_ref().map(|under_way| under_way.deadline);
        let deadlines = [re_authentication, state.expiry_check];
        deadlines.into_iter().flatten().min()
    }

    /// Goes on with what is due.
    ///
    /// # Errors
    /// The re-authentication failed or takes too long, or the identity has expired or was revoked.
    pub(super) fn check(&mut self, context: &mut Context, now: Instant) -> Result<(), Ended> {
        match &mut self.state {
            Some(state) => state.check(context, now),
            None => Ok(()),
        }
    }
}

impl State {
    fn take_step(
        &mut self,
        context: &mut Context,
        mut under_way: Reauthentication,
        step: Step,
    ) -> Result<(), Ended> {
        match step {
            Step::Continue(data) => {
                self.under_way = Some(under_way);
                send_auth(context, ReasonCode::ContinueAuthentication, &data)
            }
            Step::Pending(later) => {
                under_way.later = Some(wait_for(context, later));
                self.under_way = Some(under_way);
                Ok(())
            }
            Step::Success { principal, .. } if principal.name != context.options.principal.name => {
                let text = "the client has become somebody else";
                Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text))
            }
            Step::Success { principal, data } => {
                self.expiry_check = next_expiry_check(&principal, Instant::now());
                let identity = &context.broker.services.identity;
                identity.prove(context.mailbox.connection, &principal);
                let client = context.options.origin.client(&context.options.client_id);
                login_report::accepted(Kind::Reauthentication, &client, &principal);
                context.options.principal = Arc::new(*principal);
                send_auth(context, ReasonCode::Success, &data)
            }
            Step::Refused(denial) => Err(refused(context, &denial)),
        }
    }

    fn check(&mut self, context: &mut Context, now: Instant) -> Result<(), Ended> {
        if let Some(certified) = &mut self.certified {
            certified.check()?;
        }
        if self.expiry_check.is_some_and(|check| check <= now) {
            let principal = &context.options.principal;
            if principal.expires_at.is_some_and(|end| end <= wall_now()) {
                let text = "what the client has proved its identity with has expired";
                return Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text));
            }
            self.expiry_check = next_expiry_check(principal, now);
        }
        let Some(mut under_way) = self.under_way.take() else {
            return Ok(());
        };
        let step = under_way
            .later
            .as_ref()
            .and_then(|later| later.lock().take());
        if let Some(step) = step {
            under_way.later = None;
            return self.take_step(context, under_way, step);
        }
        if under_way.deadline <= now {
            let text = "the re-authentication was not finished in time";
            return Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text));
        }
        self.under_way = Some(under_way);
        Ok(())
    }
}

/// When to look at the wall clock next; `None` when the identity does not expire.
fn next_expiry_check(principal: &Principal, now: Instant) -> Option<Instant> {
    let left_ms = principal.expires_at?.since(wall_now());
    // The check must not come before the end.
    let left = Duration::from_millis(left_ms.saturating_add(1));
    Some(now + left.min(CLOCK_CHECK_INTERVAL))
}

/// Waits for a step beside the connection; it is woken when there is one.
fn wait_for(context: &Context, later: Later<Step>) -> Arc<Mutex<Option<Step>>> {
    let found = Arc::new(Mutex::new(None));
    let (step, mailbox) = (found.clone(), context.mailbox.clone());
    let timeout = Duration::from_secs(context.broker.settings.mqtt.connect_timeout_s.into());
    tokio::spawn(async move {
        // Without a step in time the connection ends by its own deadline.
        if let Ok(reached) = tokio::time::timeout(timeout, later).await {
            *step.lock() = Some(reached);
            mailbox.offer_again();
        }
    });
    found
}

fn begin(context: &Context, method: &str) -> Result<Reauthentication, Ended> {
    let mut entropy = [0; ENTROPY_BYTES];
    if getrandom::fill(&mut entropy).is_err() {
        let text = "this node has no random numbers";
        return Err(Ended::not_authenticated(ReasonCode::UnspecifiedError, text));
    }
    let origin = &context.options.origin;
    let client = Client {
        entropy,
        ..origin.client(&context.options.client_id)
    };
    let Some(exchange) = origin.chain.begin(method, &client) else {
        return Err(Ended::protocol("AUTH names a method that is not known"));
    };
    let timeout = Duration::from_secs(context.broker.settings.mqtt.connect_timeout_s.into());
    Ok(Reauthentication {
        exchange,
        deadline: Instant::now() + timeout,
        later: None,
    })
}

fn refused(context: &Context, denial: &Denial) -> Ended {
    let client = context.options.origin.client(&context.options.client_id);
    login_report::denied(Kind::Reauthentication, &context.broker, &client, denial);
    Ended::not_authenticated(denial.reason, denial.text)
}

fn send_auth(context: &mut Context, reason: ReasonCode, data: &[u8]) -> Result<(), Ended> {
    let method = context.options.origin.method.as_deref();
    let method = method.unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Method;
    use crate::base::time::Millis;

    fn client(expires_at: Option<Millis>) -> (Context, Authentication) {
        let mut context = Context::for_tests(false);
        let principal = Principal {
            expires_at,
            ..Principal::new("anna", Method::Jwt)
        };
        context.options.principal = Arc::new(principal);
        let certified = &context.broker.certified;
        let authentication = Authentication::new(certified, &context.options, &context.mailbox);
        (context, authentication)
    }

    #[tokio::test]
    async fn a_connection_ends_with_what_its_identity_rests_on() {
        let (mut context, mut authentication) = client(Some(wall_now()));
        let deadline = authentication.deadline().expect("it expires");
        let now = deadline + Duration::from_millis(1);
        tokio::time::sleep_until(now).await;
        let ended = authentication.check(&mut context, now).err();
        let ended = ended.expect("it has expired");
        assert_eq!(ended.reason, Some(ReasonCode::NotAuthorized));
        assert_eq!(ended.cause, DisconnectReason::NotAuthenticated);
    }

    #[tokio::test]
    async fn a_distant_expiry_is_looked_at_again_and_again() {
        let (mut context, mut authentication) = client(Some(wall_now().plus(3_600_000)));
        let first = authentication.deadline().expect("it expires");
        assert!(first <= Instant::now() + CLOCK_CHECK_INTERVAL);
        assert!(authentication.check(&mut context, first).is_ok());
        assert!(authentication.deadline() > Some(first));
        let (mut context, mut authentication) = client(None);
        assert_eq!(authentication.deadline(), None);
        assert!(authentication.check(&mut context, first).is_ok());
    }
}
