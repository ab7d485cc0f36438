//! Whether a client is the device or the module that it says to be.
//!
//! Invariant: what a client is told does not depend on why it is refused, and neither does the work: an unknown
//! identity has keys tried like a known one, and a certificate that is shown is judged whoever shows it.

use rustls::pki_types::CertificateDer;

use crate::base::proto::state;
use crate::base::time::Millis;
use crate::login::hub::HubCredentials;
use crate::registry::certificate::Certificate;
use crate::registry::fingerprint::{Authentication, BYTES, Credential};
use crate::registry::policies::Permission;
use crate::registry::sas::{self, SasError, Token};
use crate::registry::user_name::UserName;
use crate::telemetry::labels::HubRefusal;

/// What the cluster knows of an identity.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The identity.
    pub(super) identity: state::Identity,
    /// Its device is disabled: itself, or the one that it is a module of.
    pub(super) is_disabled: bool,
}

/// What a client shows.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    /// The client identifier.
    pub(super) client_id: &'a str,
    /// The password of its CONNECT.
    pub(super) password: Option<&'a [u8]>,
    /// Its certificate, and those that lead to an authority, whoever vouches for them.
    pub(super) certificates: &'a [CertificateDer<'static>],
}

/// An identity whose credential holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The credential, as the log names it.
    pub(super) fingerprint: [u8; BYTES],
    /// When it loses its force.
    pub(super) expires_at: Millis,
}

/// A client that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The true reason.
    pub(super) reason: HubRefusal,
    /// It has shown a key or a certificate that is genuine: it guesses nothing.
    pub(super) is_proved: bool,
}

impl From<HubRefusal> for Refused {
    /// Of a client that has proved nothing.
    fn from(reason: HubRefusal) -> Refused {
        Refused {
            reason,
            is_proved: false,
        }
    }
}

/// The same of one that has shown what it must.
fn proved(reason: HubRefusal) -> Refused {
    Refused {
        reason,
        is_proved: true,
    }
}

/// Judges a client at a log time.
///
/// # Errors
/// Why it is refused.
pub(super) fn judge(
    name: &UserName<'_>,
    known: Option<&Known>,
    shown: Shown<'_>,
    credentials: &HubCredentials,
    now: Millis,
) -> Result<Admitted, Refused> {
    let identity = known.map(|known| &known.identity);
    let way = identity.and_then(|identity| Authentication::of_number(identity.authentication));
    // All of it, whatever the identity is proved by: how long it takes says nothing of that.
    let with_keys = identity.filter(|_| way == Some(Authentication::Sas));
    let by_token = by_token(name, with_keys, shown.password, credentials, now);
    let by_authority = by_authority(shown, credentials, now);
    let by_thumbprint = self_signed(identity, shown.certificates, now);
    let shown_to_be = match way {
        Some(Authentication::SelfSigned) => by_thumbprint,
        Some(Authentication::CertificateAuthority) => by_authority,
        _ => by_token,
    };
    let is_proved = shown_to_be.map_or_else(|refused| refused.is_proved, |_| true);
    let refused = |reason| Err(Refused { reason, is_proved });
    let Some(known) = known else {
        return refused(HubRefusal::UnknownIdentity);
    };
    if !name.is_client_id(shown.client_id) {
        return refused(HubRefusal::ClientId);
    }
    let admitted = shown_to_be?;
    match known.is_disabled {
        true => refused(HubRefusal::Disabled),
        false => Ok(admitted),
    }
}

fn by_token(
    name: &UserName<'_>,
    identity: Option<&state::Identity>,
    password: Option<&[u8]>,
    credentials: &HubCredentials,
    now: Millis,
) -> Result<Admitted, Refused> {
    let password = password.filter(|password| !password.is_empty());
    let password = password.ok_or(HubRefusal::NoCredential)?;
    let text = std::str::from_utf8(password).map_err(|_| HubRefusal::Token)?;
    let token = sas::read(text).map_err(|_| HubRefusal::Token)?;
    let fingerprint = signer(&token, identity, credentials)?;
    let device = ["devices", name.device];
    let module = [
        "devices",
        name.device,
        "modules",
        name.module.unwrap_or_default(),
    ];
    let path = match name.module {
        None => &device[..],
        Some(_) => &module[..],
    };
    let checked = token.check(&credentials.hosts, path, now);
    checked.map_err(|error| match error {
        SasError::Malformed => HubRefusal::Token.into(),
        SasError::Scope => proved(HubRefusal::Scope),
        SasError::Expired => proved(HubRefusal::Expired),
    })?;
    Ok(Admitted {
        fingerprint,
        expires_at: token.expires_at(),
    })
}

/// Who has signed a token: the identity itself, or a policy that lets its holder connect.
fn signer(
    token: &Token<'_>,
    identity: Option<&state::Identity>,
    credentials: &HubCredentials,
) -> Result<[u8; BYTES], Refused> {
    if token.policy().is_some() {
        let policy = credentials.policies.signer(token, &credentials.made_up);
        let policy = policy.ok_or(HubRefusal::Signature)?;
        return match policy.permits(Permission::DeviceConnect) {
            true => Ok(Credential::Policy.fingerprint()),
            false => Err(proved(HubRefusal::Permission)),
        };
    }
    let made_up = &credentials.made_up[..];
    let keys = identity.map_or([made_up; 2], |identity| {
        [&identity.primary_key[..], &identity.secondary_key[..]]
    });
    let signer = token.signer(keys).ok_or(HubRefusal::Signature)?;
    Ok(Credential::Key(keys[signer]).fingerprint())
}

fn self_signed(
    identity: Option<&state::Identity>,
    certificates: &[CertificateDer<'static>],
    now: Millis,
) -> Result<Admitted, Refused> {
    let own = certificates.first().ok_or(HubRefusal::NoCredential)?;
    let certificate = Certificate::read(own).ok_or(HubRefusal::Certificate)?;
    let identity = identity.ok_or(HubRefusal::UnknownIdentity)?;
    let thumbprints = [&identity.primary_thumbprint, &identity.secondary_thumbprint];
    let mut thumbprints = thumbprints.into_iter().flatten();
    let thumbprint = thumbprints.find(|thumbprint| certificate.has_thumbprint(thumbprint));
    let thumbprint = thumbprint.ok_or(HubRefusal::Certificate)?;
    if !certificate.is_valid_at(now) {
        return Err(proved(HubRefusal::Expired));
    }
    Ok(Admitted {
        fingerprint: Credential::Thumbprint(thumbprint).fingerprint(),
        expires_at: certificate.not_after(),
    })
}

fn by_authority(
    shown: Shown<'_>,
    credentials: &HubCredentials,
    now: Millis,
) -> Result<Admitted, Refused> {
    let own = shown.certificates.first();
    let own = own.ok_or(HubRefusal::NoCredential)?;
    let certificate = Certificate::read(own).ok_or(HubRefusal::Certificate)?;
    // The client identifier is the identity's, or the client is refused for that.
    if !certificate.is_of(shown.client_id) {
        return Err(HubRefusal::Certificate.into());
    }
    // Anybody makes certificates that have expired: this one is genuine if it was vouched for while it was valid.
    if !credentials.vouches_for(shown.certificates, certificate.valid_time(now)) {
        return Err(HubRefusal::Certificate.into());
    }
    if !certificate.is_valid_at(now) {
        return Err(proved(HubRefusal::Expired));
    }
    Ok(Admitted {
        fingerprint: Credential::Authority.fingerprint(),
        expires_at: certificate.not_after(),
    })
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
