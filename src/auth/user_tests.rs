//! What is kept of a user: read again, imported, made anew.

use super::*;

const COSTS: Costs = Costs {
    password: Cost {
        memory_kib: 8,
        passes: 1,
        lanes: 1,
    },
    scram_iterations: scram::LEAST_ITERATIONS,
};

const SALTS: Salts = Salts {
    password: [1; password::SALT_BYTES],
    scram: [[2; scram::SALT_BYTES], [3; scram::SALT_BYTES]],
};

fn user(password: &[u8]) -> User {
    let mut user = User {
        groups: vec!["sensors".into()],
        attributes: [("site".into(), "a".into())].into(),
        note: "for tests".into(),
        created: Millis(1),
        ..User::default()
    };
    let set = user.set_password(password, &SALTS, COSTS, Millis(2));
    set.expect("a password");
    user
}

#[test]
fn a_user_is_read_again() {
    let user = user(b"pencil");
    let again = User::decode(&user.encode()).expect("a user");
    assert!(again == user);
    assert!(again.verify(b"pencil") && !again.verify(b"Pencil"));
    for algorithm in Algorithm::ALL {
        let verifier = again.verifier(algorithm).expect("both are made");
        assert!(verifier.verify(b"pencil") && !verifier.verify(b"x"));
    }
    assert!(User::decode(b"\xff").is_err());
    let shown = format!("{again:?}");
    assert!(!shown.contains("argon2id"), "{shown}");
    let value = String::from_utf8_lossy(&user.encode()).into_owned();
    assert!(!value.contains("pencil"));
}

#[test]
fn a_password_that_is_no_text_has_no_verifiers() {
    let user = user(b"\xff\xfe");
    assert!(user.verifiers.is_empty() && user.verify(b"\xff\xfe"));
    assert!(user.upgraded(b"\xff\xfe", &SALTS, COSTS).is_none());
}

#[test]
fn what_was_imported_is_made_anew_when_the_password_is_known() {
    let mut imported = user(b"x");
    let hash = PasswordHash::parse(SHA_512).expect("a hash");
    assert!(imported.import_password(hash, Millis(7)));
    assert!(imported.verify(b"pencil") && !imported.verify(b"x"));
    assert!(imported.verifier(Algorithm::Sha256).is_none());
    let upgraded = imported.upgraded(b"pencil", &SALTS, COSTS).expect("anew");
    assert!(upgraded.verify(b"pencil"));
    assert_eq!(upgraded.verifiers.len(), 2);
    assert_eq!(upgraded.password_set, Millis(7), "it is the same password");
    assert!(upgraded.upgraded(b"pencil", &SALTS, COSTS).is_none());
    let verifier = upgraded.verifier(Algorithm::Sha512).cloned();
    let mut of_scram = user(b"x");
    let verifiers = verifier.into_iter().collect();
    assert!(of_scram.import_verifiers(verifiers, Millis(8)));
    assert!(of_scram.verify(b"pencil") && !of_scram.verify(b"x"));
    assert!(of_scram.upgraded(b"pencil", &SALTS, COSTS).is_some());
    let nobody = User::default();
    assert!(!nobody.verify(b"") && !nobody.verify(b"pencil"));
}

const SHA_512: &str = "$6$AAECAwQFBgcICQoL$rRzn37trE3g/BjzdN2mmtKsUjbdiQp6JD9blv4UHWyEGk5h7UCh8xJCi6Kfnkhoq2n9xbnqkIfqD5tBAb7eLdQ==";

#[test]
fn the_same_file_changes_nothing_when_it_is_imported_again() {
    let hash = PasswordHash::parse(SHA_512).expect("a hash");
    let mut imported = User::default();
    assert!(imported.import_password(hash.clone(), Millis(1)));
    let mut upgraded = imported.upgraded(b"pencil", &SALTS, COSTS).expect("anew");
    upgraded = User::decode(&upgraded.encode()).expect("a user");
    assert!(!upgraded.import_password(hash.clone(), Millis(2)));
    assert_eq!(upgraded.verifiers.len(), 2, "SCRAM goes on");
    // Another password of the file: what was made of the former one goes.
    let other = SHA_512.replace("$rRzn", "$sRzn");
    let other = PasswordHash::parse(&other).expect("a hash");
    assert!(upgraded.import_password(other, Millis(3)));
    assert!(upgraded.verifiers.is_empty());
    // An operator's password is another one than the file's.
    let set = upgraded.set_password(b"new", &SALTS, COSTS, Millis(4));
    set.expect("a password");
    assert!(upgraded.import_password(hash, Millis(5)));
    assert!(upgraded.verify(b"pencil") && upgraded.verifiers.is_empty());
}

#[test]
fn a_file_of_hashes_and_one_of_verifiers_are_for_one_user() {
    let hash = PasswordHash::parse(SHA_512).expect("a hash");
    let verifiers = user(b"other").verifiers;
    let mut both = User::default();
    assert!(both.import_password(hash.clone(), Millis(1)));
    assert!(both.import_verifiers(verifiers.clone(), Millis(2)));
    assert!(both.password.is_some() && both.verifiers == verifiers);
    let upgraded = both.upgraded(b"pencil", &SALTS, COSTS).expect("anew");
    assert!(upgraded.verify(b"pencil") && upgraded.verifiers == verifiers);
    assert!(upgraded.upgraded(b"pencil", &SALTS, COSTS).is_none());
    let mut again = upgraded;
    assert!(!again.import_password(hash, Millis(3)));
    assert!(!again.import_verifiers(verifiers, Millis(4)));
}

#[test]
fn no_hash_is_replaced_by_a_weaker_one() {
    let strong = Costs {
        password: Cost {
            memory_kib: 64,
            ..COSTS.password
        },
        ..COSTS
    };
    let weak = user(b"pencil");
    let better = weak.upgraded(b"pencil", &SALTS, strong).expect("anew");
    assert!(better.upgraded(b"pencil", &SALTS, strong).is_none());
    assert!(better.upgraded(b"pencil", &SALTS, COSTS).is_none());
    let mut without = better.clone();
    without.verifiers.clear();
    let whole = without.upgraded(b"pencil", &SALTS, COSTS).expect("anew");
    assert!(whole.password == better.password && whole.verifiers.len() == 2);
}

#[test]
fn what_a_user_may_have_is_bounded() {
    let mut user = user(b"pencil");
    assert_eq!(user.check(), Ok(()));
    for password in [vec![], vec![b'x'; 1025]] {
        let set = user.set_password(&password, &SALTS, COSTS, Millis(3));
        assert_eq!(set, Err(UserProblem::Password));
    }
    let cheap = Costs {
        scram_iterations: 1,
        ..COSTS
    };
    let set = user.set_password(b"x", &SALTS, cheap, Millis(3));
    assert_eq!(set, Err(UserProblem::Cost));
    assert!(user.verify(b"pencil"));
    for group in ["", "a\nb", &"x".repeat(257)] {
        user.groups = vec![group.into()];
        assert_eq!(user.check(), Err(UserProblem::Label));
    }
    user.groups = vec!["g".into(); 65];
    assert_eq!(user.check(), Err(UserProblem::Label));
    user.groups.clear();
    user.note = "x".repeat(1025).into();
    assert_eq!(user.check(), Err(UserProblem::Note));
}

#[test]
fn names_are_as_saslprep_has_them() {
    assert!(is_name("anna") && is_name("a:b/ü") && is_name(&"x".repeat(256)));
    for name in ["", "a\u{AD}b", "a\0", "\u{2168}", &"x".repeat(257)] {
        assert!(!is_name(name), "{name:?}");
    }
}
