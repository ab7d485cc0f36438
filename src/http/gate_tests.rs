//! Who is let in by what, and by what not.

use super::*;
use crate::http::tokens::TokenRecord;

const NOW: Millis = Millis(1_000_000);

fn gate(change: impl FnOnce(&mut HttpConfig)) -> Gate {
    let mut config = HttpConfig::default();
    change(&mut config);
    Gate::new(&config, Arc::default(), Arc::default()).expect("no file is read")
}

fn make(gate: &Gate, name: &str, scope: Scope) -> String {
    let (text, record) = TokenRecord::make(name, scope, NOW, None).expect("random numbers");
    gate.tokens().set(name, Some(&record.encode()));
    format!("Bearer {}", *text)
}

fn shown(fields: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for field in fields {
        headers.append(header::AUTHORIZATION, field.parse().expect("a value"));
    }
    headers
}

fn asked(
    gate: &Gate,
    scope: Scope,
    (method, path): (Method, &str),
    fields: &[&str],
) -> Result<Identity, Refusal> {
    let question = Question {
        scope,
        method: &method,
        path,
    };
    let judged = gate.judge(question, &shown(fields), &Caller::default(), NOW);
    judged.map_err(|(refusal, _)| refusal)
}

fn judged(gate: &Gate, scope: Scope, fields: &[&str]) -> Result<Identity, Refusal> {
    asked(gate, scope, (Method::GET, "/v1/sessions"), fields)
}

fn file_token(directory: &tempfile::TempDir, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.path().join("token");
    std::fs::write(&path, format!("{text}\n")).expect("it is written");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("its mode is set");
    path
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
    let directory = tempfile::tempdir().expect("a directory");
    let text = "0123456789abcdef0123456789abcdef";
    let path = file_token(&directory, text);
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
fn rules_narrow_what_a_scope_allows_and_widen_nothing() {
    let gate = gate(|_| ());
    let ops = make(&gate, "ops", Scope::Admin);
    let look = make(&gate, "look", Scope::Read);
    let text = r#"{"rules": [
        {"http_resources": [{"paths": ["/v1/users"]}]},
        {"effect": "deny", "principals": {"names": ["ops"]},
         "http_resources": [{"methods": ["DELETE"], "paths": ["/v1/token*"]}]}]}"#;
    let rules = crate::acl::Rules::parse(text.as_bytes(), 5).expect("rules");
    gate.rules().set(rules);
    let ask = |token: &str, method, path| {
        let judged = asked(&gate, Scope::Admin, (method, path), &[token]);
        judged.map(|identity| identity.name.to_string())
    };
    let denied = Err(Refusal::Rule {
        rule: 1,
        version: 5,
    });
    assert_eq!(ask(&ops, Method::DELETE, "/v1/token"), denied);
    assert_eq!(ask(&ops, Method::POST, "/v1/tokens"), Ok("ops".into()));
    assert_eq!(ask(&ops, Method::GET, "/v1/users"), Ok("ops".into()));
    let narrow = Err(Refusal::Scope {
        needed: Scope::Admin,
        has: Scope::Read,
    });
    assert_eq!(ask(&look, Method::GET, "/v1/users"), narrow);
    gate.rules().set(crate::acl::Rules::open());
    assert_eq!(ask(&ops, Method::DELETE, "/v1/token"), Ok("ops".into()));
}

#[test]
fn no_rule_binds_the_token_of_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "0123456789abcdef0123456789abcdef";
    let path = file_token(&directory, text);
    let gate = gate(|config| config.token_file = Some(path));
    let (file, ops) = (format!("Bearer {text}"), make(&gate, "ops", Scope::Admin));
    let nobody = r#"{"rules": [{"effect": "deny", "http_resources": [{}]}]}"#;
    let nobody = crate::acl::Rules::parse(nobody.as_bytes(), 5).expect("rules");
    for (rules, refusal) in [
        (
            nobody,
            Refusal::Rule {
                rule: 0,
                version: 5,
            },
        ),
        (crate::acl::Rules::closed(6), Refusal::UnreadableRules),
    ] {
        gate.rules().set(rules);
        assert!(judged(&gate, Scope::Admin, &[&file]).is_ok());
        assert_eq!(judged(&gate, Scope::Read, &[&ops]), Err(refusal));
    }
}

#[test]
fn what_the_cluster_keeps_matters_to_all_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = "0123456789abcdef0123456789abcdef";
    let path = file_token(&directory, text);
    let file = format!("Bearer {text}");
    let with_file = gate(|config| config.token_file = Some(path));
    let rests = |gate: &Gate, fields: &[&str]| {
        gate.rests_on_the_cluster(&shown(fields), &Caller::default())
    };
    assert!(!rests(&with_file, &[&file]));
    assert!(rests(&with_file, &["Bearer x"]));
    assert!(!rests(&with_file, &[]), "nobody is let in without");
    assert!(rests(&gate(|_| ()), &[]), "there may be a token, and rules");
    let off = gate(|config| config.authentication = HttpAuthentication::Off);
    assert!(rests(&off, &[]), "there may be rules");
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
        (
            Refusal::Rule {
                rule: 0,
                version: 1,
            },
            403,
            false,
        ),
        (Refusal::UnreadableRules, 403, false),
    ] {
        let response = refusal.into_response();
        assert_eq!(response.status().as_u16(), code);
        let fields = response.headers();
        assert_eq!(fields.contains_key(header::WWW_AUTHENTICATE), challenged);
    }
}
