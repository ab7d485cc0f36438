//! The CONNECT of a device or a module.
//!
//! Invariant: every refusal has the same answer, but for those that say nothing of an identity: no majority, and a user
//! name that can't be read.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, Admitted, Known, Refused, Shown};
use super::identity::HubIdentity;
use super::shared::Hub;
use crate::auth::{Client, Denial, Guess, Method, Principal};
use crate::base::time::elapsed_now;
use crate::codec::{Connect, ReasonCode};
use crate::connection::broker::Broker;
use crate::connection::login_report;
use crate::connection::opening::{Login, limits};
use crate::connection::origin::Origin;
use crate::connection::refusal::{NO_QUORUM, Refusal, unavailable};
use crate::identity::Applicant;
use crate::machine::hub::{has_devices, read};
use crate::registry::IdentityId;
use crate::registry::sas;
use crate::registry::user_name::{self, UserName, UserNameError};
use crate::telemetry::audit::Kind;
use crate::telemetry::labels::HubRefusal;
use crate::transport::TlsPeer;

/// How long a client that connects waits for its identity to be read. A node that takes longer has lost the majority.
const IDENTITY_READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Who a client says to be.
type Claim<'a> = Result<UserName<'a>, UserNameError>;

/// Sees that a client is the device or the module that it says to be.
pub(in crate::connection) async fn log_in(
    broker: &Broker,
    hub: &Hub,
    origin: &Arc<Origin>,
    connect: &Connect<'_>,
    claim: Claim<'_>,
) -> Result<Login, Refusal> {
    let client = Client {
        user_name: connect.username,
        ..origin.client(connect.client_id)
    };
    let judged = judge(broker, hub, origin, connect, claim).await;
    let judged = judged.and_then(|(identity, admitted)| {
        let principal = Principal {
            expires_at: Some(admitted.expires_at),
            ..Principal::new(connect.client_id, Method::Hub)
        };
        // Many may have failed since it was listened to, and who logs in again and again is slowed down, too.
        let (who, now) = (&broker.services.identity, elapsed_now());
        let listened = who.listen(applicant(origin, connect), now);
        let counted =
            listened.and_then(|()| who.count_log_in(applicant(origin, connect), &principal, now));
        counted.map_err(|_| Refused::from(HubRefusal::Throttled))?;
        Ok((identity, principal))
    });
    match judged {
        Ok((identity, principal)) => {
            login_report::accepted(Kind::LogIn, &client, &principal);
            Ok(Login {
                principal: Arc::new(principal),
                origin: without_unverified(origin),
                data: Vec::new(),
                hub: Some(Arc::new(identity)),
            })
        }
        Err(refused) => Err(refuse(broker, hub, origin, connect, &client, refused).await),
    }
}

/// Where a client that has logged in comes from. What nobody vouches for in what it has shown is not kept.
fn without_unverified(origin: &Arc<Origin>) -> Arc<Origin> {
    let is_unverified = |tls: &Arc<TlsPeer>| !tls.unverified.is_empty();
    if !origin.peer.tls.as_ref().is_some_and(is_unverified) {
        return origin.clone();
    }
    let mut origin = Origin::clone(origin);
    origin.peer.forget_unverified();
    Arc::new(origin)
}

/// Counts a refusal, says its true reason to the operator, and another one to the client.
async fn refuse(
    broker: &Broker,
    hub: &Hub,
    origin: &Origin,
    connect: &Connect<'_>,
    client: &Client<'_>,
    Refused { reason, is_proved }: Refused,
) -> Refusal {
    let (limits, version) = (limits(connect), connect.version);
    broker.metrics.hub_refused.of(reason).increment();
    if reason == HubRefusal::NoLeader {
        let code = ReasonCode::ServerUnavailable;
        return Refusal::connack(limits, Some(version), code, unavailable(&broker.state));
    }
    let denial = denial(reason, is_proved);
    login_report::denied(Kind::LogIn, broker, client, &denial);
    let now = elapsed_now();
    let identity = &broker.services.identity;
    let address = origin.peer.address.map(|address| address.ip());
    let proved_at = identity.counted(address).filter(|_| is_proved);
    let wait = hub.refused(connect.client_id, proved_at, now);
    match identity.failed(applicant(origin, connect), denial.guess, now) {
        Ok(failed) => {
            tokio::time::sleep(wait.max(failed)).await;
            Refusal::not_authenticated(limits, version, &denial)
        }
        Err(too_often) => Refusal::not_authenticated(limits, version, &too_often),
    }
}

/// What a refusal is. Who has not been listened to has guessed nothing, and neither has who has proved to be somebody:
/// a site is not locked out because some of its devices are disabled, or have tokens that have expired.
fn denial(reason: HubRefusal, is_proved: bool) -> Denial {
    let denial = Denial::new(detail(reason));
    match reason {
        HubRefusal::UserName => Denial {
            reason: ReasonCode::BadUserNameOrPassword,
            text: "the user name can't be read",
            ..denial
        },
        HubRefusal::Banned => Denial {
            reason: ReasonCode::Banned,
            text: "this client is banned",
            guess: Guess::Nothing,
            ..denial
        },
        HubRefusal::Throttled => Denial {
            reason: ReasonCode::QuotaExceeded,
            text: "too many log-ins, or too many that have failed",
            guess: Guess::Nothing,
            ..denial
        },
        _ if is_proved => Denial {
            guess: Guess::Nothing,
            ..denial
        },
        _ => denial,
    }
}

/// Who wants to connect, as far as failures are counted: by the address alone. Who a client says to be is not counted
/// here, or anybody could lock devices out.
fn applicant<'a>(origin: &Origin, connect: &Connect<'a>) -> Applicant<'a> {
    Applicant {
        client_id: connect.client_id,
        user: None,
        address: origin.peer.address.map(|address| address.ip()),
    }
}

/// For the log.
fn detail(reason: HubRefusal) -> &'static str {
    match reason {
        HubRefusal::NoLeader => NO_QUORUM,
        HubRefusal::UserName => "the user name names no identity, or has no api-version",
        HubRefusal::Plaintext => "devices and modules connect over TLS",
        HubRefusal::UnknownIdentity => "there is no such identity",
        HubRefusal::ClientId => "the client id is not the identity of the user name",
        HubRefusal::NoCredential => "there is neither a token nor a certificate",
        HubRefusal::Token => "the password is no token",
        HubRefusal::Signature => "no key of the identity or policy has signed the token",
        HubRefusal::Permission => "the policy that has signed does not let its holder connect",
        HubRefusal::Scope => "the token is for something else",
        HubRefusal::Expired => "the token or the certificate has expired, or is not valid yet",
        HubRefusal::Certificate => "the certificate is not the identity's",
        HubRefusal::Disabled => "the device is disabled",
        HubRefusal::Will => "the will is not for the identity's own messages",
        HubRefusal::Changed => "the identity has changed meanwhile",
        HubRefusal::Reserved => "the client id is an identity's",
        HubRefusal::Banned => "banned",
        HubRefusal::Throttled => "too many log-ins, or too many of its address that have failed",
    }
}

async fn judge(
    broker: &Broker,
    hub: &Hub,
    origin: &Origin,
    connect: &Connect<'_>,
    claim: Claim<'_>,
) -> Result<(HubIdentity, Admitted), Refused> {
    if !broker.state.accepts_clients() {
        return Err(HubRefusal::NoLeader.into());
    }
    let banned = Applicant {
        user: Some(connect.client_id),
        ..applicant(origin, connect)
    };
    let identity = &broker.services.identity;
    identity
        .check_bans(banned)
        .map_err(|_| HubRefusal::Banned)?;
    identity
        .listen(applicant(origin, connect), elapsed_now())
        .map_err(|_| HubRefusal::Throttled)?;
    let name = claim.map_err(|_| HubRefusal::UserName)?;
    if connect.authentication_method.is_some() {
        // Extended authentication is no way into a hub.
        return Err(HubRefusal::NoCredential.into());
    }
    if origin.listener.tls.is_none() && !hub.allow_plaintext {
        return Err(HubRefusal::Plaintext.into());
    }
    let barrier = broker.services.reader.barrier();
    if tokio::time::timeout(IDENTITY_READ_TIMEOUT, barrier).await != Ok(true) {
        return Err(HubRefusal::NoLeader.into());
    }
    let id = IdentityId::of_parts(name.device, name.module.unwrap_or_default()).ok();
    let known = id.as_ref().and_then(|id| known(broker, id));
    let tls = origin.peer.tls.as_ref();
    let shown = Shown {
        client_id: connect.client_id,
        password: connect.password,
        certificates: tls.map_or(&[], |tls| match tls.certificates.is_empty() {
            true => &tls.unverified,
            false => &tls.certificates,
        }),
    };
    let now = broker.services.clock.now();
    let admitted = admission::judge(&name, known.as_ref(), shown, &hub.credentials, now)?;
    let (Some(id), Some(known)) = (id, known) else {
        return Err(HubRefusal::UnknownIdentity.into());
    };
    let generation = known.identity.generation;
    let identity = HubIdentity::new(
        id,
        generation,
        &admitted.fingerprint,
        name.model_id,
        hub.max_retained,
    );
    let will = connect.will.as_ref();
    match will.is_none_or(|will| identity.topics.is_telemetry(will.topic)) {
        true => Ok((identity, admitted)),
        false => Err(Refused {
            reason: HubRefusal::Will,
            is_proved: true,
        }),
    }
}

/// How long whoever is told to come again waits for that: libraries repeat at once, for as long as it takes.
pub(in crate::connection) const ANOTHER_NODES_PAUSE: Duration = Duration::from_secs(1);

/// Whether a client that nobody lets in is a device or a module of a hub that this node does not serve, for all that
/// can be seen: it shows what a device shows, and the cluster has devices, so another node serves it, or this one will
/// when it is configured alike. Who is told that it is not authorized never comes again. Whether the identity is there
/// is not looked at, or anybody could find that out.
///
/// Who has a password, as others have, is none: its failures are counted.
pub(in crate::connection) fn is_for_another_node(broker: &Broker, connect: &Connect<'_>) -> bool {
    let name = connect.username.and_then(user_name::of_any_hub);
    let shows_token = connect.password.is_none_or(sas::is_like_one);
    shows_token
        && connect.authentication_method.is_none()
        && name.is_some_and(|name| name.is_client_id(connect.client_id))
        && has_devices(&*broker.services.backing)
}

/// What this node's state has of an identity.
fn known(broker: &Broker, id: &IdentityId) -> Option<Known> {
    let backing = &*broker.services.backing;
    let identity = read::identity(backing, id)?;
    // A module has no status of its own.
    let is_disabled = match id.is_module() {
        false => identity.disabled,
        true => read::identity(backing, &id.of_device())?.disabled,
    };
    Some(Known {
        identity,
        is_disabled,
    })
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
