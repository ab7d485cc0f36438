use std::sync::Arc;

use super::*;
use crate::auth::{self, ENTROPY_BYTES, Mechanism, Method, Negotiation, Principal, Step};
use crate::codec::ReasonCode;

/// RFC 7677 §3: user "user", password "pencil".
const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const CLIENT_NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
const SERVER_FINAL: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

fn example() -> Verifier {
    let salt = from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").expect("it is Base64");
    Verifier::of_password(Algorithm::Sha256, "pencil", &salt, 4096).expect("a plain password")
}

fn credentials() -> Credentials {
    let other = Verifier::of_password(Algorithm::Sha256, "other", b"another salt", 5000)
        .expect("a plain password");
    let text = format!(
        "# users\n\n{}\n{}\n",
        example().line("user"),
        other.line("a:b")
    );
    Credentials::parse(&text).expect("made lines can be read")
}

fn begin() -> Box<dyn Negotiation> {
    let client = auth::Client {
        client_id: "c",
        entropy: [7; ENTROPY_BYTES],
        ..auth::Client::default()
    };
    Server::new(Algorithm::Sha256, Arc::new(credentials())).begin(&client)
}

fn client(user: &str, password: &str) -> Client {
    Client::new(user, password, &[9; ENTROPY_BYTES]).expect("they can be prepared")
}

/// The server's challenge to `first` and its last word.
fn log_in(user: &str, password: &str) -> (String, Step) {
    let mut client = client(user, password);
    let mut server = begin();
    let Step::Continue(challenge) = server.step(client.first().as_bytes()) else {
        panic!("a first message is answered");
    };
    let answer = client
        .answer(&challenge)
        .expect("the challenge is well formed");
    let step = server.step(answer.as_bytes());
    if let Step::Success { data, .. } = &step {
        assert_eq!(client.verify(data), Ok(()));
    }
    (
        String::from_utf8(challenge).expect("challenges are text"),
        step,
    )
}

fn example_client() -> Client {
    Client::with_nonce(Algorithm::Sha256, "user", "pencil", CLIENT_NONCE.into())
        .expect("they can be prepared")
}

/// What clients are told; why it is wrong is for the log.
fn is_wrong(step: &Step) -> bool {
    let text = "the user name or the password is wrong";
    matches!(step, Step::Refused(denial) if denial.reason == ReasonCode::NotAuthorized && denial.text == text)
}

#[test]
fn the_servers_side_of_rfc_7677() {
    let mut server = server::Login::with_nonce(Algorithm::Sha256, credentials(), SERVER_NONCE);
    let challenge = server.step(CLIENT_FIRST.as_bytes());
    assert_eq!(challenge, Step::Continue(SERVER_FIRST.into()));
    let expected = Step::Success {
        principal: Box::new(Principal::new("user", Method::Scram)),
        data: SERVER_FINAL.into(),
    };
    assert_eq!(server.step(CLIENT_FINAL.as_bytes()), expected);
    assert!(
        matches!(server.step(CLIENT_FINAL.as_bytes()), Step::Refused(..)),
        "an exchange that is over goes no further"
    );
}

#[test]
fn the_clients_side_of_rfc_7677() {
    let mut client = example_client();
    assert_eq!(client.first(), CLIENT_FIRST);
    assert_eq!(
        client.answer(SERVER_FIRST.as_bytes()).as_deref(),
        Ok(CLIENT_FINAL)
    );
    assert_eq!(client.verify(SERVER_FINAL.as_bytes()), Ok(()));
    let forged = format!("v={}", base64(&[0; 32]));
    assert_eq!(client.verify(forged.as_bytes()), Err(ServerError::Unproved));
    assert_eq!(client.verify(b"e=other-error"), Err(ServerError::Malformed));
}

#[test]
fn a_line_is_postgresqls_and_read_back() {
    let line = example().line("user");
    assert_eq!(
        line,
        "user:SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    );
    assert_eq!(Verifier::parse_line(&line), Ok(("user", example())));
    let line = example().line("a:b");
    let (name, _) = Verifier::parse_line(&line).expect("a name may hold colons");
    assert_eq!(name, "a:b");
}

#[test]
fn lines_that_cannot_be_used_are_all_named() {
    let good = example().line("user");
    let keys = good.split_once(":SCRAM").expect("it has one").1;
    let bad = [
        "user:pencil".to_owned(),
        format!(":SCRAM{keys}"),
        format!("two\u{a0}words:SCRAM{keys}"),
        format!("bell\u{7}:SCRAM{keys}"),
        good.replace("user:", "u1:").replace("$4096:", "$4095:"),
        good.replace("user:", "u2:").replace("gQ==", "gQ"),
        good.replace("user:", "u3:")
            .replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22Z"),
        good.replace("user:", "u4:").replace("WG5d", "WG"),
        format!("{}x", good.replace("user:", "u5:")),
        good.clone(),
    ];
    let text = format!("{good}\n{}\n", bad.join("\n"));
    let problems = Credentials::parse(&text).expect_err("none of them can be used");
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, (2..=11).collect::<Vec<_>>(), "{problems:#?}");
    assert_eq!(
        problems[9].message,
        "the user \"user\" is in line 1 already"
    );
    assert!(Credentials::parse("# nobody\n").is_err());
    assert!(Credentials::parse("").is_err());
}

#[test]
fn the_right_password_and_no_other() {
    let (_, step) = log_in("user", "pencil");
    assert!(matches!(step, Step::Success { principal, .. } if &*principal.name == "user"));
    let (_, step) = log_in("a:b", "other");
    assert!(matches!(step, Step::Success { principal, .. } if &*principal.name == "a:b"));
    for (user, password) in [("user", "other"), ("user", "Pencil"), ("User", "pencil")] {
        assert!(is_wrong(&log_in(user, password).1), "{user} {password}");
    }
}

/// RFC 5802 §9: no answer tells whether there is such a user.
#[test]
fn an_unknown_user_is_challenged_like_a_known_one() {
    let known = [log_in("user", "x"), log_in("a:b", "x")];
    let mut seen = std::collections::BTreeSet::new();
    for index in 0..64 {
        let name = format!("nobody-{index}");
        let (challenge, step) = log_in(&name, "x");
        assert!(is_wrong(&step));
        assert_eq!(challenge, log_in(&name, "y").0, "the same each time");
        let known = known
            .iter()
            .any(|(known, _)| shape(known) == shape(&challenge));
        assert!(known, "{challenge}");
        seen.insert(shape(&challenge).2);
    }
    assert_eq!(seen.len(), 2, "as varied as the users' own: {seen:?}");
    let (one, other) = (log_in("nobody-1", "x").0, log_in("nobody-2", "x").0);
    assert_ne!(one, other, "every name has its own salt");
}

fn shape(challenge: &str) -> (usize, usize, String) {
    let parts: Vec<&str> = challenge.split(',').collect();
    (parts[0].len(), parts[1].len(), parts[2].to_owned())
}

#[test]
fn first_messages_that_are_refused() {
    for (message, why) in [
        ("", "no message at all asks for one"),
        ("n,,n=user,r=abc", "the plain form"),
        ("y,,n=user,r=abc", "a client that could bind channels"),
        (
            "n,a=user,n=user,r=abc",
            "its own name as authorization identity",
        ),
        ("n,,n=user,r=abc,x=y", "an extension that may be ignored"),
    ] {
        let step = begin().step(message.as_bytes());
        assert!(matches!(step, Step::Continue(_)), "{why}: {step:?}");
    }
    for (message, why) in [
        (
            "p=tls-unique,,n=user,r=abc",
            "channel binding is not offered",
        ),
        (
            "n,,m=x,n=user,r=abc",
            "an extension that must be understood",
        ),
        ("n,,n=user,r=abc,m=x", "the same at the end"),
        ("n,,n=user", "no nonce"),
        ("n,,n=user,r=", "an empty nonce"),
        ("n,,n=user,r=a c", "a nonce with a space"),
        ("n,,n=,r=abc", "no name"),
        ("n,,n=us=er,r=abc", "a bare ="),
        ("n,,n=us=2cer,r=abc", "a small letter"),
        ("n,,n=us=é,r=abc", "an = in front of a longer character"),
        ("n,b=user,n=user,r=abc", "no authorization identity"),
        ("n", "cut off"),
        ("n,,", "cut off"),
    ] {
        let step = begin().step(message.as_bytes());
        assert!(matches!(step, Step::Refused(..)), "{why}: {step:?}");
    }
    assert!(matches!(begin().step(b"\xff"), Step::Refused(..)));
}

#[test]
fn another_identity_is_refused_with_the_proof_and_not_before() {
    let mut server = server::Login::with_nonce(Algorithm::Sha256, credentials(), SERVER_NONCE);
    let first = CLIENT_FIRST.replace("n,,", "n,a=root,");
    let Step::Continue(challenge) = server.step(first.as_bytes()) else {
        panic!("the first message is well formed");
    };
    assert_eq!(challenge, SERVER_FIRST.as_bytes());
    let header = base64(b"n,a=root,");
    let last = CLIENT_FINAL.replace("biws", &header);
    assert!(is_wrong(&server.step(last.as_bytes())));
}

#[test]
fn final_messages_that_are_refused() {
    let changed = [
        CLIENT_FINAL.replace("biws", &base64(b"y,,")),
        CLIENT_FINAL.replace("c=biws,", ""),
        CLIENT_FINAL.replace("k0,", "k1,"),
        CLIENT_FINAL.replace("p=dHzb", "p=eHzb"),
        CLIENT_FINAL.replace("ndVQ=", "ndQ=="),
        CLIENT_FINAL
            .split_once(",p=")
            .expect("it has one")
            .0
            .to_owned(),
        CLIENT_FIRST.to_owned(),
        String::new(),
    ];
    for last in changed {
        let mut server = server::Login::with_nonce(Algorithm::Sha256, credentials(), SERVER_NONCE);
        server.step(CLIENT_FIRST.as_bytes());
        let step = server.step(last.as_bytes());
        assert!(matches!(step, Step::Refused(..)), "{last}: {step:?}");
    }
}

#[test]
fn challenges_a_client_refuses() {
    use ServerError::{Iterations, Malformed};
    for (challenge, error) in [
        (SERVER_FIRST.replace("rOpr", "rOqr"), Malformed),
        (format!("r={CLIENT_NONCE},s=W22Z,i=4096"), Malformed),
        (SERVER_FIRST.replace("i=4096", "i=x"), Malformed),
        (SERVER_FIRST.replace("i=4096", "i=4095"), Iterations(4095)),
        (
            SERVER_FIRST.replace("i=4096", "i=4000000000"),
            Iterations(4_000_000_000),
        ),
        ("e=unknown-user".to_owned(), Malformed),
    ] {
        let mut client = example_client();
        let answer = client.answer(challenge.as_bytes());
        assert_eq!(answer, Err(error), "{challenge}");
    }
}

/// RFC 4013 §3.
#[test]
fn names_and_passwords_are_prepared() {
    assert_eq!(prepare("I\u{AD}X").as_deref(), Some("IX"));
    assert_eq!(prepare("user").as_deref(), Some("user"));
    assert_eq!(prepare("\u{AA}").as_deref(), Some("a"));
    assert_eq!(prepare("\u{2168}").as_deref(), Some("IX"));
    assert_eq!(prepare("\u{7}"), None);
    assert_eq!(prepare("\u{AD}"), None, "nothing is left");
    assert_eq!(prepare(""), None);
    let (_, step) = log_in("us\u{AD}er", "pen\u{AD}cil");
    assert!(matches!(step, Step::Success { principal, .. } if &*principal.name == "user"));
    let unusable = Client::new("user", "\u{7}", &[0; ENTROPY_BYTES]);
    assert_eq!(unusable.err(), Some(ServerError::Unusable));
}

#[test]
fn names_with_commas_and_equals_signs_are_escaped() {
    let verifier = Verifier::of_password(Algorithm::Sha256, "p", b"0123456789", 4096)
        .expect("a plain password");
    let text = verifier.line("a,b=c");
    let credentials = Credentials::parse(&text).expect("a made line can be read");
    let mut server = server::Login::with_nonce(Algorithm::Sha256, credentials, SERVER_NONCE);
    let mut client = client("a,b=c", "p");
    assert!(client.first().contains("n=a=2Cb=3Dc,"));
    let Step::Continue(challenge) = server.step(client.first().as_bytes()) else {
        panic!("it is well formed");
    };
    let answer = client.answer(&challenge).expect("it is well formed");
    let step = server.step(answer.as_bytes());
    assert!(matches!(step, Step::Success { principal, .. } if &*principal.name == "a,b=c"));
}

/// The exchange of RFC 7677 §3 with the other hash; its bytes were made with OpenSSL.
#[test]
fn both_sides_of_scram_sha_512() {
    let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==";
    let signature = "v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==";
    let line = "user:SCRAM-SHA-512$4096:W22ZaJ0SNY7soEsUEjb6gQ==$6AAub3065EYRmyFpM2RNwqK+eGnrkYuEWbXn19LsEmBqzu8QaCXNc1FwpnX9NhH2hK/60dzj9DoO5DvVkOHbvg==:jZHbYjC1aHh0/hKbxyBuGFjDrgjgKTT1esA7awWiKcRZ0o/0b1yWEebBeSVkkCFewf91nLDfKF24mvD5nmE6rA==";
    let salt = from_base64("W22ZaJ0SNY7soEsUEjb6gQ==").expect("it is Base64");
    let made = Verifier::of_password(Algorithm::Sha512, "pencil", &salt, 4096);
    assert_eq!(made.expect("a plain password").line("user"), line);
    // Both of a user's verifiers may stand in one file.
    let text = format!("{line}\n{}\n", example().line("user"));
    let credentials = Credentials::parse(&text).expect("made lines can be read");
    assert!(
        Algorithm::ALL
            .into_iter()
            .all(|algorithm| credentials.has(algorithm))
    );
    let mut server = server::Login::with_nonce(Algorithm::Sha512, credentials, SERVER_NONCE);
    let nonce = CLIENT_NONCE.to_owned();
    let client = Client::with_nonce(Algorithm::Sha512, "user", "pencil", nonce);
    let mut client = client.expect("they can be prepared");
    let challenge = server.step(client.first().as_bytes());
    assert_eq!(challenge, Step::Continue(SERVER_FIRST.into()));
    assert_eq!(client.answer(SERVER_FIRST.as_bytes()).as_deref(), Ok(last));
    let Step::Success { data, .. } = server.step(last.as_bytes()) else {
        panic!("it is the password");
    };
    assert_eq!(data, signature.as_bytes());
    assert_eq!(client.verify(&data), Ok(()));
}

#[test]
fn a_made_up_verifier_fits_no_password_and_differs_by_mechanism() {
    let made = |algorithm| Verifier::made_up(algorithm, b"secret", "nobody", 4096, 16);
    let [one, other] = Algorithm::ALL.map(made);
    assert!(!one.verify(b"") && !one.verify(b"nobody"));
    assert_ne!(one.salt, other.salt);
    assert_eq!(one, made(Algorithm::Sha256), "the same each time");
    assert_eq!((one.salt.len(), other.stored_key.len()), (16, 64));
}
