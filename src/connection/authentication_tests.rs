//! The end of an identity, and re-authentications by SCRAM.

use super::*;
use crate::auth::chain::Extended;
use crate::auth::scram::{self, Algorithm, Credentials, Server, Verifier};
use crate::auth::{Chain, Method};
use crate::base::time::Millis;
use crate::connection::origin::Origin;
use crate::transport::Peer;

fn client(expires_at: Option<Millis>) -> (Context, Authentication) {
    let mut context = Context::for_tests(false);
    let principal = Principal {
        expires_at,
        ..Principal::new("anna", Method::Jwt)
    };
    context.options.principal = Arc::new(principal);
    let authentication = Authentication::new(&context.broker, &context.options, &context.mailbox);
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

/// The connection of `anna`, who has logged in by SCRAM, at a listener that knows `anna` and `admin`.
fn by_scram() -> Context {
    let mut context = Context::for_tests(false);
    let line = |user, password| {
        let verifier = Verifier::of_password(
            Algorithm::Sha256,
            password,
            b"salt of 8 bytes or more",
            4096,
        );
        verifier.expect("a plain password").line(user)
    };
    let lines = [line("anna", "pencil"), line("admin", "secret")].join("\n");
    let users = Credentials::parse(&lines).expect("made lines can be read");
    let server = Server::new(Algorithm::Sha256, Arc::new(users));
    let chain = Chain::new(vec![Arc::new(Extended::new(Method::Scram, server))]);
    context.options.principal = Arc::new(Principal::new("anna", Method::Scram));
    context.options.origin = Arc::new(Origin {
        peer: Peer {
            address: Some(([192, 0, 2, 1], 9).into()),
            ..Peer::default()
        },
        chain: Arc::new(chain),
        method: Some(Algorithm::Sha256.name().into()),
        ..(*Origin::for_tests()).clone()
    });
    context
}

/// Authenticates again. The end of the connection, and how long its client waits for it.
fn authenticate_again(
    context: &mut Context,
    user: &str,
    password: &str,
) -> (Result<(), Ended>, Duration) {
    let mut authentication = Authentication::default();
    let mut scram = scram::Client::new(user, password, &[7; ENTROPY_BYTES]).expect("plain names");
    let first = scram.first();
    let auth = |reason, data| Auth::new(reason, Algorithm::Sha256.name(), Some(data));
    let begun = auth(ReasonCode::ReAuthenticate, first.as_bytes());
    if let Err(ended) = authentication.handle_auth(context, &begun) {
        return (Err(ended), Duration::ZERO);
    }
    let sent = context.take_acknowledgements();
    let at = sent
        .windows(2)
        .position(|bytes| bytes == b"r=")
        .expect("a challenge");
    let answer = scram.answer(&sent[at..]).expect("a challenge of SCRAM");
    let answer = auth(ReasonCode::ContinueAuthentication, answer.as_bytes());
    if let Err(ended) = authentication.handle_auth(context, &answer) {
        return (Err(ended), Duration::ZERO);
    }
    let Some(deadline) = authentication.deadline() else {
        return (Ok(()), Duration::ZERO);
    };
    let early = authentication.check(context, deadline - Duration::from_millis(1));
    assert_eq!(early, Ok(()), "the answer waits");
    let ended = authentication.check(context, deadline);
    (ended, deadline.saturating_duration_since(Instant::now()))
}

#[tokio::test]
async fn a_re_authentication_does_not_tell_whether_it_has_guessed_anothers_password() {
    let mut context = by_scram();
    let again = authenticate_again(&mut context, "anna", "pencil");
    assert_eq!(again.0, Ok(()));
    let (wrong, _) = authenticate_again(&mut context, "admin", "guess");
    let (right, wait) = authenticate_again(&mut context, "admin", "secret");
    let (own, _) = authenticate_again(&mut context, "anna", "guess");
    assert_eq!(right, wrong);
    assert_eq!(own, wrong);
    assert_eq!(
        wrong.expect_err("refused").reason,
        Some(ReasonCode::NotAuthorized)
    );
    assert!(
        wait > Duration::from_millis(150),
        "longer than the first: {wait:?}"
    );
    assert_eq!(context.broker.metrics.logins_refused.get(), 3);
}

/// A rate of the client's may hold an answer back for longer than a re-authentication may take.
#[tokio::test]
async fn a_challenge_waits_for_no_answer() {
    let mut context = by_scram();
    context.output.note_answer();
    context
        .output
        .acknowledgements()
        .extend_from_slice(b"puback");
    let scram = scram::Client::new("anna", "pencil", &[7; ENTROPY_BYTES]).expect("plain names");
    let first = scram.first();
    let begun = Auth::new(
        ReasonCode::ReAuthenticate,
        Algorithm::Sha256.name(),
        Some(first.as_bytes()),
    );
    let handled = Authentication::default().handle_auth(&mut context, &begun);
    assert_eq!(handled, Ok(()));
    let sent = &context.output.packets().bytes;
    assert!(sent.starts_with(b"\xf0"), "{sent:x?}");
    assert_eq!(context.output.acknowledgements(), b"puback");
}

#[tokio::test]
async fn who_guesses_by_re_authentications_is_not_listened_to() {
    let mut context = by_scram();
    let reasons: Vec<_> = (0..6)
        .map(|number| {
            let password = if number == 5 { "secret" } else { "guess" };
            let (ended, _) = authenticate_again(&mut context, "admin", password);
            ended.expect_err("refused").reason
        })
        .collect();
    let (refused, paused) = (ReasonCode::NotAuthorized, ReasonCode::QuotaExceeded);
    let expected = [refused, refused, refused, refused, paused, paused];
    assert_eq!(reasons, expected.map(Some));
    let applicant = Applicant {
        client_id: "another",
        user: Some("admin"),
        address: Some([192, 0, 2, 77].into()),
    };
    let identity = &context.broker.services.identity;
    let told = identity
        .admit(applicant, elapsed_now())
        .expect_err("paused");
    assert_eq!(told.reason, paused, "a CONNECT hears the same");
}

#[tokio::test]
async fn who_authenticates_again_and_again_is_sent_away() {
    let mut context = by_scram();
    let chain = Chain::new(vec![Arc::new(Extended::new(Method::Jwt, Groups))]);
    context.options.origin = Arc::new(Origin {
        chain: Arc::new(chain),
        method: Some("GROUPS".into()),
        ..(*context.options.origin).clone()
    });
    let mut authentication = Authentication::default();
    let packet = Auth::new(ReasonCode::ReAuthenticate, "GROUPS", None);
    let mut again = || authentication.handle_auth(&mut context, &packet);
    let begun = Instant::now();
    let accepted = (0..10_000).take_while(|_| again().is_ok()).count() as u64;
    let most = SPARE + 1 + begun.elapsed().as_secs();
    assert!((SPARE..=most).contains(&accepted), "{accepted}");
    let reason = again().expect_err("it is too often").reason;
    assert_eq!(reason, Some(ReasonCode::MessageRateTooHigh));
}

/// As `by_scram`, on a node that may be behind.
fn by_scram_behind() -> Context {
    use crate::identity::scram::ScramCheck;
    use crate::identity::users::DirectoryUsers;
    let mut context = Context::for_tests(false);
    let line = |user, password| {
        let salt = b"salt of 8 bytes or more";
        let verifier = Verifier::of_password(Algorithm::Sha256, password, salt, 4096);
        verifier.expect("a plain password").line(user)
    };
    let lines = [line("anna", "pencil"), line("admin", "secret")].join("\n");
    let file = Credentials::parse(&lines).expect("made lines can be read");
    let backing = context.broker.services.backing.clone();
    let nobody = Arc::new(DirectoryUsers::new(backing, scram::LEAST_ITERATIONS));
    let check = ScramCheck::new(nobody, Some(Arc::new(file)), Arc::new(|| false));
    context.options.principal = Arc::new(Principal::new("anna", Method::Scram));
    context.options.origin = Arc::new(Origin {
        chain: Arc::new(Chain::new(vec![Arc::new(check)])),
        ..(*by_scram().options.origin).clone()
    });
    context
}

#[tokio::test]
async fn a_node_that_may_be_behind_is_no_better_for_guessing() {
    let mut context = by_scram_behind();
    let again = authenticate_again(&mut context, "anna", "pencil");
    assert_eq!(again.0, Ok(()));
    let (wrong, first) = authenticate_again(&mut context, "admin", "guess");
    let (right, wait) = authenticate_again(&mut context, "admin", "secret");
    assert_eq!(right, wrong);
    let reason = wrong.expect_err("refused").reason;
    assert_eq!(
        reason,
        Some(ReasonCode::ServerBusy),
        "nobody is refused for good"
    );
    assert!(wait > first, "it is counted: {first:?}, {wait:?}");
    let reasons: Vec<_> = (0..4)
        .map(|_| {
            let (ended, _) = authenticate_again(&mut context, "admin", "guess");
            ended.expect_err("refused").reason
        })
        .collect();
    let (busy, paused) = (ReasonCode::ServerBusy, ReasonCode::QuotaExceeded);
    assert_eq!(reasons, [busy, busy, paused, paused].map(Some));
    let (own, _) = authenticate_again(&mut context, "admin", "secret");
    assert_eq!(own.expect_err("refused").reason, Some(paused));
}

/// A node whose directory has this user, and rules that give wills to the group `staff`.
fn with_user(user: Option<&crate::auth::user::User>) -> Context {
    use crate::base::directory::Kind;
    use crate::machine::read::put_directory;
    use crate::machine::tables::Tables;
    let nothing = std::collections::BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let mut tables = Tables::new(&nothing);
    let entry = user.map(|user| (Kind::User, "anna", user.encode()));
    put_directory(&mut tables, entry);
    let changes = tables.into_changes().into_iter();
    let rows = changes.filter_map(|(key, change)| Some((key, change.value()?.to_vec())));
    let rows: std::collections::BTreeMap<_, _> = rows.collect();
    let mut context = Context::with_state(false, Arc::new(rows));
    let rules = r#"{"rules": [{"principals": {"groups": ["staff"]}, "broker_resources": [
        {"method": "publish"}, {"method": "will"}]}]}"#;
    let rules = crate::acl::Rules::parse(rules.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    let principal = Principal {
        groups: vec!["staff".into()],
        ..Principal::new("anna", Method::Password)
    };
    context.rights.identify(&principal);
    context.options.principal = Arc::new(principal);
    context.rights.keep_will(&crate::codec::Will {
        topic: "t",
        payload: b"",
        qos: crate::codec::QoS::AtMostOnce,
        retain: false,
        delay: 0,
        properties: crate::codec::PublishProperties::EMPTY,
    });
    context
}

#[test]
fn who_has_changed_has_its_will_if_it_may_still_have_it() {
    use crate::auth::user::User;
    use crate::mailbox::End;
    let of = |groups: &[&str]| User {
        groups: groups.iter().map(|group| (*group).into()).collect(),
        ..User::default()
    };
    let disabled = User {
        disabled: true,
        ..of(&["staff"])
    };
    let drops_will = |user: Option<&User>, end| with_user(user).ended(end).discard_will;
    // Its note or its password, which say nothing about its rights; another group; the one that gave it the will.
    assert!(!drops_will(Some(&of(&["staff"])), End::Changed));
    assert!(!drops_will(Some(&of(&["others", "staff"])), End::Changed));
    assert!(drops_will(Some(&of(&["others"])), End::Changed));
    // Meanwhile it was disabled, or is gone.
    assert!(drops_will(Some(&disabled), End::Changed));
    assert!(drops_will(None, End::Changed));
    assert!(drops_will(Some(&of(&["staff"])), End::Revoked));
}

/// Takes every AUTH for a proof of `anna`, with the groups that its data names.
struct Groups;

impl crate::auth::Mechanism for Groups {
    fn name(&self) -> &'static str {
        "GROUPS"
    }

    fn begin(&self, _client: &Client<'_>) -> Box<dyn crate::auth::Negotiation> {
        Box::new(Groups)
    }
}

impl crate::auth::Negotiation for Groups {
    fn step(&mut self, data: &[u8]) -> Step {
        let groups = String::from_utf8_lossy(data).into_owned();
        let principal = Principal {
            groups: groups.split_whitespace().map(Into::into).collect(),
            ..Principal::new("anna", Method::Jwt)
        };
        Step::Success {
            principal: Box::new(principal),
            data: Vec::new(),
        }
    }
}

#[tokio::test]
async fn rights_are_those_of_the_last_proof() {
    let mut context = by_scram();
    let chain = Chain::new(vec![Arc::new(Extended::new(Method::Jwt, Groups))]);
    context.options.origin = Arc::new(Origin {
        chain: Arc::new(chain),
        method: Some("GROUPS".into()),
        ..(*context.options.origin).clone()
    });
    let rules = r#"{"rules": [{"principals": {"groups": ["admins"]}, "broker_resources": [
        {"method": "publish"}, {"method": "subscribe"}]}]}"#;
    let rules = crate::acl::Rules::parse(rules.as_bytes(), 1).expect("rules");
    context.broker.services.rules.set(rules);
    context.mailbox.belongs_to(context.rights.client().clone());
    let subscriptions = context.broker.services.router.subscriptions().clone();
    subscriptions.put(context.session, None, Default::default(), &["t"]);
    let mut authentication = Authentication::default();
    for (groups, may) in [
        ("admins staff", true),
        ("admins staff", true),
        ("staff", false),
        ("admins", true),
        ("", false),
    ] {
        let (known, other) = (subscriptions.validity("t"), subscriptions.validity("u"));
        let changes = context.rights.now().publish("t").allow(PUBLICATION) != may;
        context.rights.take_change();
        let method = "GROUPS";
        let packet = Auth::new(ReasonCode::ReAuthenticate, method, Some(groups.as_bytes()));
        let again = authentication.handle_auth(&mut context, &packet);
        assert_eq!(again, Ok(()), "{groups}");
        let rights = context.rights.now();
        assert_eq!(rights.publish("t").allow(PUBLICATION), may, "{groups}");
        assert_eq!(
            context.mailbox.may_receive("t", crate::acl::Share::None),
            may,
            "{groups}"
        );
        // Routes that lead to the client are looked up anew, and the connection is judged as a whole.
        assert!(!changes || !subscriptions.is_current(&known), "{groups}");
        assert!(subscriptions.is_current(&other), "others' are not");
        assert!(!changes || context.rights.take_change(), "{groups}");
    }
}

const PUBLICATION: crate::acl::Publication = crate::acl::Publication {
    qos: crate::codec::QoS::AtLeastOnce,
    retain: false,
};
