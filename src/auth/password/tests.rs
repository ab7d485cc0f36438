use proptest::prelude::*;

use super::file::parse_file;
use super::*;

/// Cheap, for tests.
const CHEAP: Cost = Cost {
    memory_kib: 8,
    passes: 1,
    lanes: 1,
};

/// Of the reference implementation's own tests: "password", "somesalt".
const REFERENCE: &str =
    "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";

/// Of "pencil"; made with OpenSSL as `mosquitto_passwd` does it.
const PBKDF2: &str = "$7$101$AAECAwQFBgcICQoL$itntC8QS4iuE06UG7o0PxU0qM5UBFdNFBtAux6ya3Syz6oR19T2jx8EIwdBkk+3zME8xITagvpZst1brmEBXRQ==";
const PBKDF2_LONG_SALT: &str = "$7$1000$AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4OTo7PD0+Pw==$jn2JUHqlNAjWB54Pps4H21mMOmM4kX3JKnnH3EYhNjlAa4dfwtspLX/cchNf8c5N5RuqIVN5BUtjVxW8dBc+Vg==";
const SHA512: &str = "$6$AAECAwQFBgcICQoL$rRzn37trE3g/BjzdN2mmtKsUjbdiQp6JD9blv4UHWyEGk5h7UCh8xJCi6Kfnkhoq2n9xbnqkIfqD5tBAb7eLdQ==";

fn parse(text: &str) -> PasswordHash {
    PasswordHash::parse(text).expect("a hash")
}

#[test]
fn known_hashes_are_of_their_passwords_and_no_others() {
    for (text, password) in [
        (REFERENCE, "password"),
        (PBKDF2, "pencil"),
        (PBKDF2_LONG_SALT, "pencil"),
        (SHA512, "pencil"),
    ] {
        let hash = parse(text);
        assert_eq!(hash.text(), text);
        assert!(hash.verify(password.as_bytes()), "{text}");
        for wrong in ["", "Password", "pencil "] {
            assert!(!hash.verify(wrong.as_bytes()), "{text} {wrong:?}");
        }
        assert!(!hash.is_strong(Cost::default()));
    }
}

#[test]
fn a_new_hash_is_read_again() {
    let hash = PasswordHash::new(b"\xff\0secret", b"0123456789abcdef", CHEAP).expect("it is cheap");
    let again = parse(&hash.text());
    assert!(again == hash && again.is_strong(CHEAP) && !again.is_strong(Cost::default()));
    assert!(again.verify(b"\xff\0secret") && !again.verify(b"\xff\0secret "));
    let other = PasswordHash::new(b"\xff\0secret", b"0123456789abcdeF", CHEAP);
    assert!(other.is_some_and(|other| other != hash), "the salt matters");
    assert!(PasswordHash::new(b"x", b"short", CHEAP).is_none());
    assert!(Cost::default().is_allowed());
}

#[test]
fn what_costs_too_much_is_refused_before_it_is_computed() {
    let with = |parameters: &str| REFERENCE.replace("m=256,t=2,p=1", parameters);
    for parameters in [
        "m=4294967295,t=1,p=1",
        "m=131073,t=1,p=1",
        "m=131072,t=5,p=1",
        "m=256,t=4294967295,p=1",
        "m=256,t=17,p=1",
        "m=256,t=1,p=17",
        "m=256,t=1,p=16777215",
        "m=7,t=1,p=1",
    ] {
        let parsed = PasswordHash::parse(&with(parameters));
        assert_eq!(parsed, Err(HashProblem::TooCostly), "{parameters}");
    }
    let many = PBKDF2.replace("$101$", "$2000001$");
    assert_eq!(PasswordHash::parse(&many), Err(HashProblem::TooCostly));
}

#[test]
fn what_is_not_quite_a_hash_is_refused() {
    for text in [
        "",
        "secret",
        "$5$AAECAwQFBgcICQoL$aaaa",
        "$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
        "$argon2d$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
    ] {
        assert_eq!(
            PasswordHash::parse(text),
            Err(HashProblem::Unknown),
            "{text}"
        );
    }
    let damaged = [
        REFERENCE.replace("v=19", "v=16"),
        REFERENCE.replace("v=19$", ""),
        REFERENCE.replace("m=256,t=2,p=1", "t=2,m=256,p=1"),
        REFERENCE.replace("m=256,t=2,p=1", "m=256,t=2"),
        REFERENCE.replace("m=256,t=2,p=1", "m=256,t=2,p=1,keyid=AA"),
        REFERENCE.replace("m=256", "m=0256"),
        REFERENCE.replace("m=256", "m=+256"),
        REFERENCE.replace("m=256", "m=99999999999"),
        REFERENCE.replace("c29tZXNhbHQ", "c29tZQ"),
        REFERENCE.replace("c29tZXNhbHQ", "c29tZXNhbHQ="),
        REFERENCE.replace("$nf65", "$$nf65"),
        format!("{REFERENCE}$"),
        format!("{REFERENCE}{}", "A".repeat(1000)),
        REFERENCE[..REFERENCE.len() - 30].to_owned(),
        PBKDF2.replace("$101$", "$$"),
        PBKDF2.replace("$101$", "$0$"),
        PBKDF2.replace("$101$", "$-1$"),
        PBKDF2.replace("$101$", "$"),
        PBKDF2.replace("AAECAwQFBgcICQoL", ""),
        PBKDF2.replace("RQ==", "RQ"),
        SHA512.replace("dQ==", ""),
        "$6$".to_owned(),
        "$7$".to_owned(),
        "$argon2id$".to_owned(),
    ];
    for text in damaged {
        assert_eq!(
            PasswordHash::parse(&text),
            Err(HashProblem::Damaged),
            "{text}"
        );
    }
}

#[test]
fn a_password_file_is_read_line_by_line() {
    let text = format!("# comment\n\nanna:{PBKDF2}\na:b:{SHA512}\r\nnew:{REFERENCE}\n");
    let users = parse_file(&text).expect("a good file");
    let names: Vec<_> = users
        .iter()
        .map(|(name, hash)| (*name, hash.kind()))
        .collect();
    let expected = [
        ("anna", "pbkdf2-sha512"),
        ("a:b", "sha512"),
        ("new", "argon2id"),
    ];
    assert_eq!(names, expected);
    let text = format!("anna:secret\nno colon\nb:{PBKDF2}\nb:{PBKDF2}\nc:$7$101$x\n");
    let problems = parse_file(&text).expect_err("a bad file");
    let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 4, 5]);
    let said = format!("{problems:?}");
    assert!(!said.contains("secret"), "no password is repeated: {said}");
}

#[test]
fn hashes_are_not_shown() {
    assert_eq!(format!("{:?}", parse(REFERENCE)), "PasswordHash(argon2id)");
}

proptest! {
    /// Whatever the text is, reading it ends at once, and what is read is written the same way.
    #[test]
    fn hostile_texts_never_panic(
        prefix in prop::sample::select(vec!["$argon2id$v=19$", "$argon2id$", "$7$", "$6$", ""]), rest in "[a-zA-Z0-9=,$+/-]{0,80}",
    ) {
        let text = format!("{prefix}{rest}");
        if let Ok(hash) = PasswordHash::parse(&text) {
            prop_assert_eq!(hash.text(), text);
        }
    }

    #[test]
    fn damaged_hashes_never_panic_and_never_verify(
        which in prop::sample::select(vec![REFERENCE, PBKDF2, SHA512]), at in any::<prop::sample::Index>(), with in "[ -~]",
    ) {
        let at = at.index(which.len());
        let text = format!("{}{with}{}", &which[..at], &which[at + 1..]);
        if let Ok(hash) = PasswordHash::parse(&text) && text != which && hash.text() == text {
            // The cost may have been changed to something large that is still allowed.
            if !which.starts_with("$7$") || text.starts_with("$7$101$") {
                prop_assert!(!hash.verify(b"pencil"));
            }
        }
    }
}
