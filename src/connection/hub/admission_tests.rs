//! Who is let in, and the true reason of whoever is not.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

use super::*;
use crate::config::HubConfig;
use crate::registry::user_name;

/// Signed with the key of the bytes 1 to 32 (see `registry::sas`).
const TOKEN: &str = "SharedAccessSignature sr=hub.example.com%2Fdevices%2FdevA&sig=3Iqs90emPypZ2pHUAOeq0DQJFEl2bP743YlVUKHP4OM%3D&se=1700000000";

/// The same of the module `modA`.
const MODULE_TOKEN: &str = "SharedAccessSignature sr=hub.example.com%2fdevices%2fdevA%2fmodules%2fmodA&sig=6l8ZG9GzbU30uOJKdtKviqp4YrDopWvEnBLb1r65sRE%3d&se=1700000000";

/// The same, for the whole hub, of the policy `service`.
const POLICY_TOKEN: &str = "SharedAccessSignature se=1700000000&skn=service&sig=FDKb07DiS6oEfjVUalRfKJad31B%2Bqp7cfCe286jkyVQ%3D&sr=hub.example.com";

const KEY: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
const NOW: Millis = Millis(1_699_999_999_999);
const DEVICE: &str = "hub.example.com/devA/?api-version=1";
const MODULE: &str = "hub.example.com/devA/modA/?api-version=1";

fn key(first: u8) -> Vec<u8> {
    (first..first + 32).collect()
}

fn credentials(policies: &str, authority: Option<&str>) -> HubCredentials {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("policies");
    std::fs::write(&path, policies).expect("writable");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("it is there");
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, authority.unwrap_or_default()).expect("writable");
    let config = HubConfig {
        host_names: vec!["hub.example.com".into()],
        policies_file: Some(path),
        client_ca_file: authority.map(|_| ca),
        ..HubConfig::default()
    };
    HubCredentials::load(&config).expect("good files")
}

fn with_keys() -> Known {
    Known {
        identity: state::Identity {
            generation: 7,
            authentication: Authentication::Sas as u32,
            primary_key: key(2).into(),
            secondary_key: key(1).into(),
            ..state::Identity::default()
        },
        is_disabled: false,
    }
}

fn by_password(
    user_name: &str,
    client_id: &str,
    known: Option<&Known>,
    password: Option<&str>,
    now: Millis,
) -> Result<Admitted, HubRefusal> {
    let credentials = credentials(&format!("service:DeviceConnect:{KEY}"), None);
    let name = user_name::read(user_name, &credentials.hosts);
    let name = name.expect("it is for the hub").expect("an identity");
    let shown = Shown {
        client_id,
        password: password.map(str::as_bytes),
        certificates: &[],
    };
    reasoned(judge(&name, known, shown, &credentials, now))
}

/// The reason alone, where the credential is as genuine as the reason says.
fn reasoned(judged: Result<Admitted, Refused>) -> Result<Admitted, HubRefusal> {
    use HubRefusal::{Disabled, Expired, Permission, Scope};
    judged.map_err(|Refused { reason, is_proved }| {
        match reason {
            Disabled | Expired | Permission | Scope => assert!(is_proved, "{reason:?}"),
            HubRefusal::ClientId | HubRefusal::UnknownIdentity => {}
            _ => assert!(!is_proved, "{reason:?}"),
        }
        reason
    })
}

#[test]
fn the_keys_of_an_identity_and_of_a_policy_let_it_in() {
    let known = with_keys();
    let admitted = |fingerprint| {
        Ok(Admitted {
            fingerprint,
            expires_at: Millis(1_700_000_000_000),
        })
    };
    let own = admitted(Credential::Key(&key(1)).fingerprint());
    let policy = admitted(Credential::Policy.fingerprint());
    let judge = |user_name, client_id, token| {
        by_password(user_name, client_id, Some(&known), Some(token), NOW)
    };
    assert_eq!(judge(DEVICE, "devA", TOKEN), own);
    assert_eq!(judge(MODULE, "devA/modA", MODULE_TOKEN), own);
    assert_eq!(judge(DEVICE, "devA", POLICY_TOKEN), policy);
    assert_eq!(judge(MODULE, "devA/modA", POLICY_TOKEN), policy);
}

#[test]
fn whoever_is_refused_has_one_true_reason() {
    use HubRefusal::{ClientId, Disabled, Expired, NoCredential, Scope, Signature, Token};
    let known = with_keys();
    let judge = |known: &Known, user_name, client_id, password, now| {
        by_password(user_name, client_id, Some(known), password, now).err()
    };
    let other = TOKEN.replace("3Iqs", "3Iqt");
    let unknown_policy = POLICY_TOKEN.replace("service", "other");
    let end = Millis(NOW.0 + 1);
    for (user_name, client_id, password, now, reason) in [
        (DEVICE, "devA", None, NOW, NoCredential),
        (DEVICE, "devA", Some(""), NOW, NoCredential),
        (DEVICE, "devA", Some("secret"), NOW, Token),
        (DEVICE, "devA", Some(&*other), NOW, Signature),
        (DEVICE, "devA", Some(&*unknown_policy), NOW, Signature),
        (DEVICE, "devA", Some(TOKEN), end, Expired),
        (DEVICE, "devA", Some(MODULE_TOKEN), NOW, Scope),
        (
            "hub.example.com/devB/?api-version=1",
            "devB",
            Some(TOKEN),
            NOW,
            Scope,
        ),
        (DEVICE, "devB", Some(TOKEN), NOW, ClientId),
        (DEVICE, "devA/modA", Some(TOKEN), NOW, ClientId),
    ] {
        assert_eq!(
            judge(&known, user_name, client_id, password, now),
            Some(reason)
        );
    }
    let disabled = Known {
        is_disabled: true,
        ..known
    };
    assert_eq!(
        judge(&disabled, DEVICE, "devA", Some(TOKEN), NOW),
        Some(Disabled)
    );
    // Who does not hold the key is not told that either.
    assert_eq!(
        judge(&disabled, DEVICE, "devA", Some(&other), NOW),
        Some(Signature)
    );
    for password in [None, Some("secret"), Some(TOKEN), Some(POLICY_TOKEN)] {
        let unknown = by_password(DEVICE, "devA", None, password, NOW);
        assert_eq!(unknown, Err(HubRefusal::UnknownIdentity));
    }
}

/// Who is somebody else, or nobody any more, but has a genuine credential guesses nothing.
#[test]
fn a_genuine_credential_is_no_guess_whoever_shows_it() {
    let known = with_keys();
    let credentials = credentials(&format!("service:DeviceConnect:{KEY}"), None);
    let is_proved = |known: Option<&Known>, token: &str| {
        let name = user_name::read(DEVICE, &credentials.hosts);
        let name = name.expect("it is for the hub").expect("an identity");
        let shown = Shown {
            client_id: "devB",
            password: Some(token.as_bytes()),
            certificates: &[],
        };
        let judged = judge(&name, known, shown, &credentials, NOW);
        judged.expect_err("it is refused").is_proved
    };
    let guessed = TOKEN.replace("3Iqs", "3Iqt");
    assert!(is_proved(Some(&known), TOKEN) && is_proved(None, POLICY_TOKEN));
    assert!(!is_proved(Some(&known), &guessed) && !is_proved(None, TOKEN));
}

/// A device's key does not open its modules, nor the other way round.
#[test]
fn a_key_is_for_the_identity_that_has_it() {
    let mut others = with_keys();
    others.identity.secondary_key = key(9).into();
    let judge = |user_name, client_id, token| {
        by_password(user_name, client_id, Some(&others), Some(token), NOW)
    };
    assert_eq!(
        judge(MODULE, "devA/modA", TOKEN),
        Err(HubRefusal::Signature)
    );
    assert_eq!(
        judge(DEVICE, "devA", MODULE_TOKEN),
        Err(HubRefusal::Signature)
    );
}

#[test]
fn a_policy_that_may_not_connect_does_not() {
    let credentials = credentials(&format!("service:ServiceConnect,RegistryWrite:{KEY}"), None);
    let name = user_name::read(DEVICE, &credentials.hosts);
    let name = name.expect("it is for the hub").expect("an identity");
    let shown = Shown {
        client_id: "devA",
        password: Some(POLICY_TOKEN.as_bytes()),
        certificates: &[],
    };
    let judged = reasoned(judge(&name, Some(&with_keys()), shown, &credentials, NOW));
    assert_eq!(judged, Err(HubRefusal::Permission));
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2023, 1, 1);
    params.not_after = date_time_ymd(2024, 1, 1);
    params
}

fn self_signed(name: &str) -> CertificateDer<'static> {
    let key = KeyPair::generate().expect("random numbers");
    params(name)
        .self_signed(&key)
        .expect("signed")
        .der()
        .clone()
}

fn with_certificate(
    known: &Known,
    credentials: &HubCredentials,
    certificates: &[CertificateDer<'static>],
    now: Millis,
) -> Result<Admitted, HubRefusal> {
    let name = user_name::read(DEVICE, &credentials.hosts);
    let name = name.expect("it is for the hub").expect("an identity");
    let shown = Shown {
        client_id: "devA",
        // It is ignored.
        password: Some(b"secret"),
        certificates,
    };
    reasoned(judge(&name, Some(known), shown, credentials, now))
}

#[test]
fn a_certificate_has_a_thumbprint_of_the_identity() {
    use sha1::{Digest as _, Sha1};
    use std::fmt::Write as _;
    let own = self_signed("whoever");
    let digits = Sha1::digest(&own)
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02X}");
            text
        });
    let mut known = with_keys();
    known.identity.authentication = Authentication::SelfSigned as u32;
    known.identity.primary_thumbprint = Some("00".repeat(32));
    known.identity.secondary_thumbprint = Some(digits.clone());
    let credentials = credentials("", None);
    let judge = |certificates: &[_], now| with_certificate(&known, &credentials, certificates, now);
    let end = Millis(1_704_067_200_000);
    let admitted = Admitted {
        fingerprint: Credential::Thumbprint(&digits).fingerprint(),
        expires_at: end,
    };
    let own = [own];
    assert_eq!(judge(&own, NOW), Ok(admitted));
    assert_eq!(judge(&own, end), Err(HubRefusal::Expired));
    assert_eq!(judge(&[], NOW), Err(HubRefusal::NoCredential));
    let other = [self_signed("whoever")];
    assert_eq!(judge(&other, NOW), Err(HubRefusal::Certificate));
    // Its keys count no more.
    let token = by_password(DEVICE, "devA", Some(&known), Some(TOKEN), NOW);
    assert_eq!(token, Err(HubRefusal::NoCredential));
}

#[test]
fn an_authoritys_certificate_has_the_identity_as_its_name() {
    let mut params_of_ca = CertificateParams::default();
    params_of_ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("random numbers");
    let issuer = CertifiedIssuer::self_signed(params_of_ca, key).expect("a CA");
    let issued = |name: &str| {
        let key = KeyPair::generate().expect("random numbers");
        let signed = params(name).signed_by(&key, &issuer).expect("signed");
        [signed.der().clone()]
    };
    let mut known = with_keys();
    known.identity.authentication = Authentication::CertificateAuthority as u32;
    let credentials = credentials("", Some(&issuer.pem()));
    let judge = |certificates: &[_], now| with_certificate(&known, &credentials, certificates, now);
    let own = issued("devA");
    let end = Millis(1_704_067_200_000);
    let admitted = Admitted {
        fingerprint: Credential::Authority.fingerprint(),
        expires_at: end,
    };
    assert_eq!(judge(&own, NOW), Ok(admitted));
    assert_eq!(judge(&own, end), Err(HubRefusal::Expired));
    assert_eq!(judge(&issued("devB"), NOW), Err(HubRefusal::Certificate));
    assert_eq!(judge(&issued("deva"), NOW), Err(HubRefusal::Certificate));
    assert_eq!(
        judge(&[self_signed("devA")], NOW),
        Err(HubRefusal::Certificate)
    );
    assert_eq!(judge(&[], NOW), Err(HubRefusal::NoCredential));
    // Anybody can make one that has expired.
    assert_eq!(
        judge(&[self_signed("devA")], end),
        Err(HubRefusal::Certificate)
    );
}
