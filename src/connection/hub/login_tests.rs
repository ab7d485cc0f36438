//! CONNECT of devices and modules: what each refusal looks like, and what is known of whoever is let in.

use super::*;
use crate::base::proto::state;
use crate::base::time::Elapsed;
use crate::codec::{decode_connect, frame};
use crate::connection::context::Context;
use crate::identity::{FailureLimits, Identity, IdentitySettings};
use crate::machine::hub::rows_of;
use crate::registry::fingerprint::{Authentication, Credential};

/// Signed with the key of the bytes 1 to 32 (see `registry::sas`).
const TOKEN: &str = "SharedAccessSignature sr=hub.example.com%2Fdevices%2FdevA&sig=3Iqs90emPypZ2pHUAOeq0DQJFEl2bP743YlVUKHP4OM%3D&se=1700000000";

/// As long as one, because the tests make packets of more than 127 bytes.
const NO_TOKEN: &str = "a secret, which is no token, and as long as one; a secret, which is no token, and as long as one; and so on";

const USER: &str = "hub.example.com/devA/?api-version=2019-10-01&model-id=dtmi%3Ax%3B1";

fn field(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A CONNECT with clean session 0.
fn connect(level: u8, client_id: &str, user: &str, password: &str, will: Option<&str>) -> Vec<u8> {
    let mut body = b"\0\x04MQTT".to_vec();
    let will_flag = if will.is_some() { 0x04 } else { 0 };
    body.extend([level, 0xC0 | will_flag, 0, 60]);
    body.extend((level == 5).then_some(0));
    body.extend(field(client_id));
    if let Some(topic) = will {
        body.extend((level == 5).then_some(0));
        body.extend([field(topic), field("gone")].concat());
    }
    body.extend([field(user), field(password)].concat());
    let length = body.len();
    assert!((128..16_384).contains(&length));
    let mut packet = vec![0x10, (length % 128) as u8 | 0x80, (length / 128) as u8];
    packet.extend(body);
    packet
}

/// A node with one device, which has the key.
fn node(allow_plaintext: bool) -> Arc<Broker> {
    let mut context = Context::for_tests(false);
    let identity = state::Identity {
        generation: 7,
        authentication: Authentication::Sas as u32,
        primary_key: (1..33).collect::<Vec<u8>>().into(),
        secondary_key: vec![9; 32].into(),
        ..state::Identity::default()
    };
    let id = IdentityId::device("devA").expect("an id");
    let rows = rows_of(&id, &identity);
    let broker = Arc::get_mut(&mut context.broker).expect("no other connection");
    broker.services.hub = Some(Hub::named("hub.example.com", allow_plaintext));
    broker.services.backing = Arc::new(rows);
    broker.state.set_registered(true);
    let forever = Elapsed::from_duration(Duration::MAX);
    broker.state.contact().hold_until(forever);
    context.broker
}

/// The same node, where an address may fail three times in an hour, and a client connect so often (0: always).
fn counting(connects: u32) -> Arc<Broker> {
    let mut broker = node(true);
    let services = &mut Arc::get_mut(&mut broker)
        .expect("nobody else has it")
        .services;
    let hour = Duration::from_secs(3600);
    let failures = FailureLimits {
        per_address: 3,
        per_user: 3,
        window: hour,
        pause: hour,
        delay: Duration::ZERO,
        exempt: Vec::new(),
    };
    let settings = IdentitySettings::new(failures, connects, hour, hour);
    services.identity = Identity::for_tests_with(
        &settings,
        &services.view,
        services.router.clone(),
        &services.backing,
    );
    broker
}

/// Logs in while a majority answers.
async fn try_log_in(broker: &Arc<Broker>, bytes: &[u8]) -> Result<Login, Vec<u8>> {
    try_log_in_from(broker, &Origin::for_tests(), bytes).await
}

async fn try_log_in_from(
    broker: &Arc<Broker>,
    origin: &Arc<Origin>,
    bytes: &[u8],
) -> Result<Login, Vec<u8>> {
    let found = frame::next(bytes, u32::MAX).expect("well-formed");
    let connect = decode_connect(found.expect("whole")).expect("well-formed");
    let hub = broker.services.hub.as_ref().expect("it has one");
    let claim = hub.claim(connect.username).expect("it is for the hub");
    let log_in = log_in(broker, hub, origin, &connect, claim);
    let majority = async {
        loop {
            broker.services.reader.pass_barriers();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        login = log_in => login.map_err(|refusal| refusal.packet),
        () = majority => unreachable!("it has no end"),
    }
}

#[tokio::test]
async fn a_device_is_let_in_with_its_token() {
    let broker = node(true);
    for level in [4, 5] {
        let will = Some("devices/devA/messages/events/bye");
        let login = try_log_in(&broker, &connect(level, "devA", USER, TOKEN, will)).await;
        let login = login.expect("it is itself");
        assert_eq!(
            (&*login.principal.name, login.principal.method),
            ("devA", Method::Hub)
        );
        assert_eq!(
            login.principal.expires_at.map(|end| end.0),
            Some(1_700_000_000_000)
        );
        let hub = login.hub.expect("it is a device");
        assert_eq!((hub.id.to_string(), hub.generation), ("devA".into(), 7));
        let key: Vec<u8> = (1..33).collect();
        assert_eq!(hub.fingerprint, Credential::Key(&key).fingerprint());
        assert_eq!(hub.model_id.as_deref(), Some("dtmi:x;1"));
    }
    let refused = &broker.metrics.hub_refused;
    assert_eq!(refused.of(HubRefusal::Signature).get(), 0);
}

/// Somebody at this address, who shows a certificate that nobody vouches for.
fn from(address: &str) -> Arc<Origin> {
    let mut origin = Origin::for_tests();
    let at = Arc::get_mut(&mut origin).expect("nobody else has it");
    at.peer.address = Some(address.parse().expect("an address"));
    at.peer.tls = Some(Arc::new(TlsPeer {
        unverified: vec![vec![0; 60_000].into()],
        ..TlsPeer::default()
    }));
    origin
}

/// Whatever names a client claims, its address is throttled as any other client's, and others are not.
#[tokio::test]
async fn whoever_fails_too_often_is_not_listened_to_for_a_time() {
    let broker = counting(4);
    let (attacker, device) = (from("192.0.2.1:1"), from("192.0.2.2:1"));
    let mut codes = Vec::new();
    for number in 0..6 {
        let packet = connect(4, &format!("x{number}"), USER, NO_TOKEN, None);
        let refused = try_log_in_from(&broker, &attacker, &packet).await;
        codes.push(refused.err().expect("it has no token")[3]);
    }
    assert_eq!(codes, [5, 5, 5, 5, 3, 3]);
    let refused = &broker.metrics.hub_refused;
    assert_eq!(refused.of(HubRefusal::Throttled).get(), 2);
    let good = connect(4, "devA", USER, TOKEN, None);
    let from_there = try_log_in_from(&broker, &attacker, &good).await;
    assert_eq!(from_there.err().expect("not listened to")[3], 3);
    // The device itself is, until it connects too often.
    let mut let_in = 0;
    while let Ok(login) = try_log_in_from(&broker, &device, &good).await {
        let tls = login.origin.peer.tls.as_ref().expect("it came over TLS");
        assert!(
            tls.unverified.is_empty(),
            "60,000 bytes for each connection"
        );
        let_in += 1;
    }
    assert_eq!(let_in, 4);
}

/// A site is behind one address. That some of its devices are disabled, or misconfigured, locks none of the others out.
#[tokio::test]
async fn whoever_has_proved_its_key_does_not_count_as_guessing() {
    let broker = counting(0);
    let site = from("192.0.2.1:1");
    for number in 0..20 {
        // One client id would have to wait, too.
        let packet = match number {
            0..4 => connect(4, "devA", USER, TOKEN, Some("not/its/own")),
            _ => connect(4, &format!("x{number}"), USER, TOKEN, None),
        };
        let refused = try_log_in_from(&broker, &site, &packet).await;
        assert_eq!(refused.err().expect("it is refused")[3], 5);
    }
    let good = connect(4, "devA", USER, TOKEN, None);
    assert!(try_log_in_from(&broker, &site, &good).await.is_ok());
}

/// Of many attempts that are begun at once, those that end behind the bound learn nothing.
#[tokio::test]
async fn nobody_hears_more_verdicts_than_may_fail() {
    let broker = counting(0);
    let attacker = from("192.0.2.1:1");
    let attempts = (0..20).map(|number| {
        let packet = connect(4, &format!("x{number}"), USER, NO_TOKEN, None);
        let (broker, attacker) = (&broker, &attacker);
        async move {
            let refused = try_log_in_from(broker, attacker, &packet).await;
            refused.err().expect("it has no token")[3]
        }
    });
    let codes = futures::future::join_all(attempts).await;
    let verdicts = codes.iter().filter(|code| **code == 5).count();
    assert!(verdicts <= 4, "{codes:?}");
}

/// The return code of 3.1.1, and the reason code of MQTT 5.
async fn codes(
    broker: &Arc<Broker>,
    client_id: &str,
    user: &str,
    password: &str,
    will: Option<&str>,
) -> (u8, u8) {
    let old = try_log_in(broker, &connect(4, client_id, user, password, will)).await;
    let new = try_log_in(broker, &connect(5, client_id, user, password, will)).await;
    let (old, new) = (old.err().expect("refused"), new.err().expect("refused"));
    assert_eq!((old[0], old.len(), new[0]), (0x20, 4, 0x20));
    (old[3], new[3])
}

#[tokio::test]
async fn each_refusal_has_its_code() {
    let broker = node(true);
    let refused = &broker.metrics.hub_refused;
    let other = USER.replace("devA", "devB");
    let not_authorized = (5, 0x87);
    for (client_id, user, password, will, reason) in [
        ("devB", &*other, TOKEN, None, HubRefusal::UnknownIdentity),
        ("devB", USER, TOKEN, None, HubRefusal::ClientId),
        ("devA", USER, NO_TOKEN, None, HubRefusal::Token),
        ("devA", USER, TOKEN, Some("a"), HubRefusal::Will),
        ("devA", USER, TOKEN, Some("$iothub/x"), HubRefusal::Will),
        (
            "devA",
            USER,
            TOKEN,
            Some("devices/devB/messages/events/"),
            HubRefusal::Will,
        ),
    ] {
        // No client is made to wait for the refusals of another case.
        let broker = &node(true);
        assert_eq!(
            codes(broker, client_id, user, password, will).await,
            not_authorized
        );
        assert_eq!(broker.metrics.hub_refused.of(reason).get(), 2, "{reason:?}");
    }
    let unreadable = format!("hub.example.com/devA/?api-version=&x={}", "y".repeat(100));
    assert_eq!(
        codes(&broker, "devA", &unreadable, TOKEN, None).await,
        (4, 0x86)
    );
    assert_eq!(refused.of(HubRefusal::UserName).get(), 2);
    let encrypted = node(false);
    assert_eq!(
        codes(&encrypted, "devA", USER, TOKEN, None).await,
        not_authorized
    );
    assert_eq!(
        encrypted
            .metrics
            .hub_refused
            .of(HubRefusal::Plaintext)
            .get(),
        2
    );
    broker.state.set_registered(false);
    assert_eq!(codes(&broker, "devA", USER, TOKEN, None).await, (3, 0x88));
    assert_eq!(refused.of(HubRefusal::NoLeader).get(), 2);
}
