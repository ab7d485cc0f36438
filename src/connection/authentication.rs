//! Who the client is after its CONNACK: extended authentication once more (MQTT 5.0 §4.12.1), AUTH 0x19 and what
//! follows it, and the end of what its identity rests on. The exchange before the CONNACK is in [`super::handshake`].
//!
//! Invariant: a connection never outlives the proof of its client's identity. A client that proves it again in time
//! goes on under the same name, with the rights of its last proof.
//! Invariant: a re-authentication is no better for guessing than a CONNECT. It is counted in the same way, its answer
//! waits as long, and what the client is told does not depend on what was wrong.
//! Invariant: a connection authenticates again once a second at most, but for [`SPARE`] more: each costs a check of a
//! proof, and may cost a look at all subscriptions.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::broker::Broker;
use super::certified::Registration;
use super::context::Context;
use super::end::Ended;
use super::login_report;
use super::options::ConnectionOptions;
use super::rate::TokenBucket;
use crate::auth::{Client, Denial, ENTROPY_BYTES, Exchange, Later, Method, Principal, Step};
use crate::base::time::{Millis, elapsed_now, wall_now};
use crate::codec::{Auth, ReasonCode, encode};
use crate::events::DisconnectionReason;
use crate::identity::Applicant;
use crate::mailbox::Mailbox;
use crate::telemetry::audit::Kind;
use crate::telemetry::labels::DisconnectReason;

/// How often the wall clock is looked at for an expiry that is further away: it may have been set meanwhile.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What a client is told whose re-authentication fails, whatever is wrong: also if it has proved to be somebody else,
/// which would tell it that it has guessed that one's password.
const NOT_AGAIN: &str = "the client has not proved again who it is";

/// Re-authentications that one connection may begin beyond one in each second.
const SPARE: u64 = 10;

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
    begun: TokenBucket,
    /// The re-authentication has failed: when the client is told, and what.
    refused: Option<(Instant, Ended)>,
    /// When to look whether the identity has expired.
    expiry_check: Option<Instant>,
    /// The client has shown a certificate.
    certified: Option<Registration>,
}

impl Authentication {
    /// Of a client that has proved to be who its options say.
    pub(super) fn new(
        broker: &Broker,
        options: &ConnectionOptions,
        mailbox: &Arc<Mailbox>,
    ) -> Authentication {
        let now = time_of(broker, options);
        let expiry_check = next_expiry_check(&options.principal, now, Instant::now());
        let certified = &broker.certified;
        let certified = certified.register(mailbox, &options.origin, &options.principal);
        let is_needed = expiry_check.is_some() || certified.is_some();
        let state = || {
            Box::new(State {
                expiry_check,
                certified,
                ..State::default()
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
            _ if state.refused.is_some() => return Err(Ended::protocol("AUTH after a failed one")),
            (ReasonCode::ReAuthenticate, None) => {
                state.count()?;
                begin(context, auth.method)?
            }
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
        let refused = state.refused.as_ref().map(|(until, _)| *until);
        let certified = state.certified.as_ref().and_then(Registration::deadline);
        let deadlines = [re_authentication, refused, state.expiry_check, certified];
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
    /// Counts a re-authentication that begins.
    ///
    /// # Errors
    /// There were too many.
    fn count(&mut self) -> Result<(), Ended> {
        let wait = self.begun.take(1, 1, std::time::Instant::now());
        if wait < Duration::from_secs(SPARE) {
            return Ok(());
        }
        let (reason, text) = (
            ReasonCode::MessageRateTooHigh,
            "the client authenticates again too often",
        );
        Err(Ended::not_authenticated(reason, text))
    }

    fn take_step(
        &mut self,
        context: &mut Context,
        mut under_way: Reauthentication,
        step: Step,
    ) -> Result<(), Ended> {
        let claimed = under_way.exchange.claimed().map(str::to_owned);
        let applicant = applicant(context, claimed.as_deref());
        let identity = context.broker.services.identity.clone();
        match step {
            Step::Continue(_) | Step::Pending(_)
                if let Err(denial) = identity.listen(applicant, elapsed_now()) =>
            {
                Err(refused(context, &applicant, &denial))
            }
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
                let detail = "the client has become somebody else";
                let denial = under_way.exchange.refusal(detail);
                self.refuse(context, applicant, &denial)
            }
            Step::Success { principal, data } => {
                if let Err(denial) = identity.succeeded(applicant, &principal, elapsed_now()) {
                    return Err(refused(context, &applicant, &denial));
                }
                let time = time_of(&context.broker, &context.options);
                self.expiry_check = next_expiry_check(&principal, time, Instant::now());
                identity.prove(context.mailbox.connection, &principal);
                let client = context.options.origin.client(&context.options.client_id);
                login_report::accepted(Kind::Reauthentication, &client, &principal);
                if context.rights.identify(&principal) {
                    // What the client may get is in routes; the rest is judged at the end of the turn.
                    let subscriptions = context.broker.services.router.subscriptions();
                    subscriptions.outdate_session(context.session);
                }
                context.options.principal = Arc::new(*principal);
                send_auth(context, ReasonCode::Success, &data)
            }
            Step::Refused(denial) => self.refuse(context, applicant, &denial),
        }
    }

    /// A proof has failed: that is counted, and the client is told after a while.
    fn refuse(
        &mut self,
        context: &Context,
        applicant: Applicant<'_>,
        denial: &Denial,
    ) -> Result<(), Ended> {
        let mut ended = refused(context, &applicant, denial);
        let identity = &context.broker.services.identity;
        match identity.failed(applicant, denial.guess, elapsed_now()) {
            Ok(Duration::ZERO) => Err(ended),
            Ok(wait) => {
                self.refused = Some((Instant::now() + wait, ended));
                Ok(())
            }
            Err(too_often) => {
                ended = Ended::not_authenticated(too_often.reason, too_often.text);
                Err(ended)
            }
        }
    }

    fn check(&mut self, context: &mut Context, now: Instant) -> Result<(), Ended> {
        if let Some(certified) = &mut self.certified {
            certified.check(&context.options.principal, now)?;
        }
        if self.expiry_check.is_some_and(|check| check <= now) {
            let principal = &context.options.principal;
            let time = time_of(&context.broker, &context.options);
            if principal.expires_at.is_some_and(|end| end <= time) {
                let text = "what the client has proved its identity with has expired";
                return Err(Ended::not_authenticated(ReasonCode::NotAuthorized, text));
            }
            self.expiry_check = next_expiry_check(principal, time, now);
        }
        if let Some((_, ended)) = self.refused.filter(|(until, _)| *until <= now) {
            return Err(ended);
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

/// The time by which the proof of an identity ends. That of a device or a module ends by log time, so that all nodes
/// agree.
fn time_of(broker: &Broker, options: &ConnectionOptions) -> Millis {
    match options.principal.method {
        Method::Hub => broker.services.clock.now(),
        _ => wall_now(),
    }
}

/// When to look at the clock next, which shows `time`; `None` when the identity does not expire.
fn next_expiry_check(principal: &Principal, time: Millis, now: Instant) -> Option<Instant> {
    let left_ms = principal.expires_at?.since(time);
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
        return Err(Ended::not_authenticated(ReasonCode::UnspecifiedError, text)
            .because(DisconnectionReason::ServerError));
    }
    let origin = &context.options.origin;
    let client = Client {
        entropy,
        ..origin.client(&context.options.client_id)
    };
    let nobody = applicant(context, None);
    if let Err(denial) = context
        .broker
        .services
        .identity
        .listen(nobody, elapsed_now())
    {
        return Err(refused(context, &nobody, &denial));
    }
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

/// The client, as somebody who says to have this name.
fn applicant<'a>(context: &'a Context, claimed: Option<&'a str>) -> Applicant<'a> {
    let address = context.options.origin.peer.address;
    Applicant {
        client_id: &context.options.client_id,
        user: claimed,
        address: address.map(|address| address.ip()),
    }
}

/// Reports a refusal. Returns what the client is told.
fn refused(context: &Context, applicant: &Applicant<'_>, denial: &Denial) -> Ended {
    let client = Client {
        user_name: applicant.user,
        ..context.options.origin.client(&context.options.client_id)
    };
    login_report::denied(Kind::Reauthentication, &context.broker, &client, denial);
    let text = match denial.reason {
        ReasonCode::NotAuthorized => NOT_AGAIN,
        _ => denial.text,
    };
    Ended::not_authenticated(denial.reason, text)
}

fn send_auth(context: &mut Context, reason: ReasonCode, data: &[u8]) -> Result<(), Ended> {
    let method = context.options.origin.method.as_deref();
    let method = method.unwrap_or_default();
    let data = Some(data).filter(|data| !data.is_empty());
    let packet = Auth::new(reason, method, data);
    let (version, limits) = (context.options.version, context.options.limits);
    let out = context.output.unordered();
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
#[path = "authentication_tests.rs"]
mod tests;
