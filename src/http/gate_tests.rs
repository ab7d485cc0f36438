//! Who is let in by what, and by what not.

use super::*;
use crate::http::tokens::TokenRecord;

const NOW: Millis = Millis(1_000_000);

fn gate(change: impl FnOnce(&mut HttpConfig)) -> Gate {
    let mut config = HttpConfig::default();
    change(&mut config);
    Gate::new(&config, Arc::default()).expect("no file is read")
}

fn make(gate: &Gate, name: &str, scope: Scope) -> String {
    let (text, record) = TokenRecord::make(name, scope, NOW, None).expect("random numbers");
    gate.tokens().set(name, Some(&record.encode()));
    format!("Bearer {}", *text)
}

fn judged(gate: &Gate, scope: Scope, fields: &[&str]) -> Result<Identity, Refusal> {
    let mut headers = HeaderMap::new();
    for field in fields {
        headers.append(header::AUTHORIZATION, field.parse().expect("a value"));
    }
    let judged = gate.judge(scope, &headers, &Caller::default(), NOW);
    judged.map_err(|(refusal, _)| refusal)
}

#[test]
fn loopback_is_open_until_there_is_a_token() {
    let gate = gate(|_| ());
    let anybody = judged(&gate, Scope::Admin, &[]).expect("nothing is configured");
    assert_eq!(anybody.method, "anonymous");
    let token = make(&gate, "look", Scope::Read);
    assert_eq!(judged(&gate, Scope::Read, &[]), Err(Refusal::Nothing));
    let known = judged(&gate, Scope::Read, &[&token]).expect("it holds the token");
    assert_eq!((&*known.name, known.method), ("look", "token"));
    gate.tokens().set("look", None);
    assert_eq!(judged(&gate, Scope::Read, &[&token]), Err(Refusal::Token));
    assert!(judged(&gate, Scope::Admin, &[]).is_ok());
}

#[test]
fn a_public_address_always_asks() {
    for address in [
        "0.0.0.0:8080",
        "10.0.0.1:8080",
        "[::]:8080",
        "node.example:8080",
    ] {
        let gate = gate(|config| config.listen = address.parse().ok());
        assert_eq!(
            judged(&gate, Scope::Read, &[]),
            Err(Refusal::Nothing),
            "{address}"
        );
    }
    let split = gate(|config| config.admin_listen = "192.0.2.1:1".parse().ok());
    assert_eq!(judged(&split, Scope::Read, &[]), Err(Refusal::Nothing));
    let inside = gate(|config| {
        config.listen = "0.0.0.0:8080".parse().ok();
        config.admin_listen = "127.0.0.1:8081".parse().ok();
    });
    assert!(judged(&inside, Scope::Admin, &[]).is_ok());
    let off = gate(|config| {
        config.listen = "0.0.0.0:8080".parse().ok();
        config.authentication = HttpAuthentication::Off;
    });
    assert!(judged(&off, Scope::Admin, &[]).is_ok());
    let required = gate(|config| config.authentication = HttpAuthentication::Required);
    assert_eq!(judged(&required, Scope::Read, &[]), Err(Refusal::Nothing));
}

#[test]
fn a_scope_includes_the_lower_ones_and_no_higher() {
    let gate = gate(|_| ());
    let scopes = [Scope::Read, Scope::Operate, Scope::Admin];
    for has in scopes {
        let token = make(&gate, has.as_str(), has);
        for needed in scopes {
            let expected = match needed <= has {
                true => Ok(has),
                false => Err(Refusal::Scope { needed, has }),
            };
            let judged = judged(&gate, needed, &[&token]);
            assert_eq!(judged.map(|identity| identity.scope), expected);
        }
    }
}

#[test]
fn what_is_shown_must_be_right_even_where_nothing_is_asked() {
    let open = gate(|config| config.authentication = HttpAuthentication::Off);
    let token = make(&open, "ops", Scope::Admin);
    assert_eq!(
        judged(&open, Scope::Read, &["Bearer x"]),
        Err(Refusal::Token)
    );
    let basic = "Basic b3BzOnB3";
    assert_eq!(judged(&open, Scope::Read, &[basic]), Err(Refusal::NoBearer));
    assert_eq!(
        judged(&open, Scope::Read, &["Bearer "]),
        Err(Refusal::NoBearer)
    );
    assert_eq!(
        judged(&open, Scope::Read, &[&token, &token]),
        Err(Refusal::NoBearer)
    );
    let spelled = token.replace("Bearer", "bearer");
    assert!(judged(&open, Scope::Read, &[&spelled]).is_ok());
}

#[test]
fn the_token_of_a_file_administers() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("token");
    let text = "0123456789abcdef0123456789abcdef";
    std::fs::write(&path, format!("{text}\n")).expect("it is written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("its mode is set");
    let gate = gate(|config| config.token_file = Some(path));
    assert!(gate.has_own_admin());
    assert_eq!(judged(&gate, Scope::Read, &[]), Err(Refusal::Nothing));
    let known = judged(&gate, Scope::Admin, &[&format!("Bearer {text}")]);
    let name = known.map(|identity| identity.name.to_string());
    assert_eq!(name.as_deref(), Ok(FILE_TOKEN_NAME));
    let wrong = format!("Bearer {}", text.to_uppercase());
    assert_eq!(judged(&gate, Scope::Read, &[&wrong]), Err(Refusal::Token));
}

#[test]
fn refusals_have_their_codes_and_a_challenge() {
    let scope = Refusal::Scope {
        needed: Scope::Admin,
        has: Scope::Read,
    };
    for (refusal, code, challenged) in [
        (Refusal::Nothing, 401, true),
        (Refusal::Token, 401, true),
        (Refusal::NoBearer, 401, true),
        (scope, 403, false),
    ] {
        let response = refusal.into_response();
        assert_eq!(response.status().as_u16(), code);
        let fields = response.headers();
        assert_eq!(fields.contains_key(header::WWW_AUTHENTICATE), challenged);
    }
}
