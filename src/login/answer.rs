//! What is told to the service that judges clients, and what it answers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::auth::certificate::{Certificates, NameOf};
use crate::auth::{Client, Method, Principal, is_plain, strict};
use crate::base::time::Millis;
use crate::base::wiped;

/// Most groups, and most attributes.
const MOST_ENTRIES: usize = 256;

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The client is this principal.
    Allow(Principal),
    /// It is refused.
    Deny,
    /// Somebody else is to decide.
    Ignore,
}

/// The answer is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a JSON object with a result, or {0} in it is not what it should be")]
pub(super) struct NoAnswer(&'static str);

/// What the service is told, in the order in which it is written.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_name: Option<String>,
    client_id: &'a str,
    listener: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_name: Option<&'a str>,
}

/// The body of the request about a client. Everything that the password was written into is wiped after use.
pub(super) fn question(client: &Client<'_>, names: NameOf) -> Zeroizing<Vec<u8>> {
    let password = client.password.map(std::str::from_utf8);
    let encoded = client.password.filter(|_| matches!(password, Some(Err(_))));
    let encoded = encoded.map(|bytes| Zeroizing::new(STANDARD.encode(bytes)));
    let told = Told {
        address: client.address.map(|address| address.to_string()),
        certificate_name: certificate_name(client, names),
        client_id: client.client_id,
        listener: client.listener,
        password: password.and_then(Result::ok),
        password_base64: encoded.as_ref().map(|text| text.as_str()),
        user_name: client.user_name,
    };
    let mut body = Zeroizing::new(Vec::new());
    let written = serde_json::to_writer(wiped::Writer(&mut body), &told);
    written.expect("what is told is text, and memory takes it");
    body
}

/// The name in the client's certificate, if it has shown one with a name.
pub(super) fn certificate_name(client: &Client<'_>, names: NameOf) -> Option<String> {
    let certificates = Certificates {
        name: names,
        ..Certificates::default()
    };
    let own = client.certificates.first()?;
    let principal = certificates.principal(own, client.now).ok()?;
    Some(principal.name.to_string())
}

/// Reads the answer about a client with this user name.
pub(super) fn judgement(
    body: &[u8],
    user_name: Option<&str>,
    now: Millis,
) -> Result<Judgement, NoAnswer> {
    let answer = strict::object(body).ok_or(NoAnswer("everything"))?;
    match answer.get("result").and_then(Value::as_str) {
        Some("allow") => {}
        Some("deny") => return Ok(Judgement::Deny),
        Some("ignore") => return Ok(Judgement::Ignore),
        _ => return Err(NoAnswer("result")),
    }
    let name = match answer.get("name") {
        None | Some(Value::Null) => user_name,
        Some(name) => name.as_str(),
    };
    let name = name.filter(|name| is_plain(name)).ok_or(NoAnswer("name"))?;
    let expires_at = match answer.get("expires_at") {
        None | Some(Value::Null) => None,
        Some(value) => Some(strict::time(value).ok_or(NoAnswer("expires_at"))?),
    };
    if expires_at.is_some_and(|end| end <= now) {
        return Ok(Judgement::Deny);
    }
    Ok(Judgement::Allow(Principal {
        groups: groups(&answer)?,
        attributes: attributes(&answer)?,
        expires_at,
        ..Principal::new(name, Method::Http)
    }))
}

fn plain(value: &Value) -> Option<Box<str>> {
    let text = value.as_str().filter(|text| is_plain(text));
    text.map(Into::into)
}

fn groups(answer: &Map<String, Value>) -> Result<Vec<Box<str>>, NoAnswer> {
    let groups = match answer.get("groups") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MOST_ENTRIES => list.iter().map(plain).collect(),
        Some(_) => None,
    };
    groups.ok_or(NoAnswer("groups"))
}

fn attributes(answer: &Map<String, Value>) -> Result<BTreeMap<Box<str>, Box<str>>, NoAnswer> {
    let attributes = match answer.get("attributes") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(object)) if object.len() <= MOST_ENTRIES => {
            let pairs = object.iter().map(|(name, value)| {
                let name = is_plain(name).then(|| name.as_str().into())?;
                Some((name, plain(value)?))
            });
            pairs.collect()
        }
        Some(_) => None,
    };
    attributes.ok_or(NoAnswer("attributes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(1_790_000_000_000);

    fn judge(body: &str) -> Result<Judgement, NoAnswer> {
        judgement(body.as_bytes(), Some("anna"), NOW)
    }

    #[test]
    fn answers_are_read_strictly() {
        assert_eq!(judge(r#"{"result":"deny"}"#), Ok(Judgement::Deny));
        assert_eq!(
            judge(r#"{"result":"ignore","name":7}"#),
            Ok(Judgement::Ignore)
        );
        let Ok(Judgement::Allow(principal)) = judge(r#"{"result":"allow"}"#) else {
            panic!("it is allowed");
        };
        assert_eq!(&*principal.name, "anna");
        let text = r#"{"result":"allow","name":"b","groups":["g"],"attributes":{"a":"1"},"expires_at":1790000001.5,"more":[]}"#;
        let Ok(Judgement::Allow(principal)) = judge(text) else {
            panic!("it is allowed");
        };
        assert_eq!((&*principal.name, principal.groups.len()), ("b", 1));
        assert_eq!(principal.attributes.len(), 1);
        assert_eq!(principal.expires_at, Some(Millis(1_790_000_001_500)));
        let past = r#"{"result":"allow","expires_at":1}"#;
        assert_eq!(judge(past), Ok(Judgement::Deny));
        for text in [
            "",
            "allow",
            "[]",
            "{}",
            r#"{"result":"Allow"}"#,
            r#"{"result":true}"#,
            r#"{"result":"deny","result":"allow"}"#,
            r#"{"result":"allow","name":""}"#,
            r#"{"result":"allow","name":7}"#,
            r#"{"result":"allow","groups":"g"}"#,
            r#"{"result":"allow","groups":[1]}"#,
            r#"{"result":"allow","attributes":{"a":1}}"#,
            r#"{"result":"allow","expires_at":"soon"}"#,
            r#"{"result":"allow","expires_at":-1}"#,
        ] {
            assert!(judge(text).is_err(), "{text}");
        }
        let nameless = judgement(br#"{"result":"allow"}"#, None, NOW);
        assert_eq!(nameless, Err(NoAnswer("name")));
    }

    #[test]
    fn a_question_has_what_the_client_has_brought() {
        let client = Client {
            client_id: "c\"1",
            user_name: Some("anna"),
            password: Some(b"p\xff"),
            listener: "l",
            ..Client::default()
        };
        let text = question(&client, NameOf::CommonName);
        let text = std::str::from_utf8(&text).expect("JSON is text");
        let expected =
            r#"{"client_id":"c\"1","listener":"l","password_base64":"cP8=","user_name":"anna"}"#;
        assert_eq!(text, expected);
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(body: Vec<u8>) {
            let _ = judgement(&body, Some("anna"), NOW);
        }
    }
}
