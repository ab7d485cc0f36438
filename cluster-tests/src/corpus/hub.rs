//! What a back end asks the hub in the midst of a conversation, and what it is answered.

use crate::http;
use serde_json::Value;
use std::net::SocketAddr;

/// The name of the hub in conversations.
pub const HUB_HOST: &str = "hub.test";

/// The policies of the hub: one with every permission, and one without that to connect devices.
pub const HUB_POLICIES: &str = "\
all:RegistryRead,RegistryWrite,ServiceConnect,DeviceConnect:dGhlIGtleSBvZiB0aGUgaHViJ3MgY29ycHVzIGZpbGU=
back:RegistryRead,ServiceConnect:dGhlIGtleSBvZiB0aGUgaHViJ3MgY29ycHVzIGZpbGU=
";

/// A token of the first policy for all of the hub, which holds until the year 2100.
pub const HUB_TOKEN: &str = "SharedAccessSignature sr=hub.test&sig=pavwWsOSA%2Fuk8gnF5xDpyG01WAUUo3pTXL8dButwFuw%3D\
    &se=4102444800&skn=all";

/// A request of a back end, and its answer.
#[derive(Debug, PartialEq)]
pub struct Ask {
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: String,
    status: u16,
    /// The name of an error.
    error: Option<String>,
    /// What the answer has among others.
    part: Option<Value>,
}

/// Reads `PUT /devices/@ if-match=* {"deviceId":"@"} -> 409 DeviceAlreadyExists`.
pub fn parse(line: &str, word: &str) -> Result<Ask, String> {
    let line = line.replace('@', word);
    let (asked, answer) = line.split_once(" -> ").ok_or("no answer behind ->")?;
    let (head, body) = match asked.split_once(" {") {
        Some((head, body)) => (head, format!("{{{body}")),
        None => (asked, String::new()),
    };
    let mut words = head.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err("a request has a method and a path".into());
    };
    let fields = words.map(|field| {
        let (name, value) = field.split_once('=').ok_or("no name=value")?;
        Ok((name.to_owned(), value.to_owned()))
    });
    let (answer, part) = match answer.find(['{', '[']) {
        None => (answer, None),
        Some(at) => {
            let part = serde_json::from_str(&answer[at..]).map_err(|error| error.to_string())?;
            (&answer[..at], Some(part))
        }
    };
    let mut answer = answer.split_whitespace();
    let status = answer.next().and_then(|status| status.parse().ok());
    Ok(Ask {
        method: method.to_owned(),
        target: match path.contains('?') {
            true => path.to_owned(),
            false => format!("{path}?api-version=2021-04-12"),
        },
        fields: fields.collect::<Result<_, String>>()?,
        body,
        status: status.ok_or("an answer has a status")?,
        error: answer.next().map(str::to_owned),
        part,
    })
}

impl Ask {
    /// Asks; what came, if that is something else.
    pub fn carry_out(&self, hub: SocketAddr) -> Result<(), String> {
        let mut fields: Vec<(&str, &str)> = self
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        if !fields.iter().any(|(name, _)| *name == "authorization") {
            fields.push(("authorization", HUB_TOKEN));
        }
        let answer = http::ask(hub, &self.method, &self.target, &fields, &self.body);
        let answer = answer.ok_or("no answer")?;
        let came = || format!("{} {}", answer.status, answer.body);
        let body = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        let error = body["Message"].as_str();
        let is_error = |name: &String| {
            error.is_some_and(|text| text.starts_with(&format!("ErrorCode:{name};")))
        };
        let holds = answer.status == self.status
            && self.error.as_ref().is_none_or(is_error)
            && self.part.as_ref().is_none_or(|part| has(&body, part));
        holds.then_some(()).ok_or_else(came)
    }
}

/// Whether a document has a part: of objects those members, of everything else all.
fn has(document: &Value, part: &Value) -> bool {
    match (document, part) {
        (Value::Object(document), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| document.get(name).is_some_and(|value| has(value, part))),
        (Value::Array(document), Value::Array(part)) => {
            document.len() == part.len()
                && document
                    .iter()
                    .zip(part)
                    .all(|(value, part)| has(value, part))
        }
        _ => document == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_a_request_and_its_answer() {
        let line = r#"PUT /devices/@ if-match=* {"deviceId":"@"} -> 409 DeviceAlreadyExists"#;
        let ask = parse(line, "w").expect("it is well formed");
        assert_eq!(ask.target, "/devices/w?api-version=2021-04-12");
        assert_eq!(ask.fields, [("if-match".to_owned(), "*".to_owned())]);
        assert_eq!(ask.body, r#"{"deviceId":"w"}"#);
        assert_eq!(ask.error.as_deref(), Some("DeviceAlreadyExists"));
        let ask = parse(r#"GET /twins/@?x=1 -> 200 {"version":2}"#, "w");
        let ask = ask.expect("it is well formed");
        assert_eq!((&*ask.target, &*ask.body), ("/twins/w?x=1", ""));
        assert_eq!(ask.part, Some(json!({"version": 2})));
        for wrong in ["GET /twins", "GET -> 200", "GET / x -> 200", "GET / -> x"] {
            assert!(parse(wrong, "w").is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_document_has_its_parts() {
        let document = json!({"a": {"b": 1, "c": [1, {"d": 2, "e": 3}]}});
        assert!(has(&document, &json!({"a": {"c": [1, {"d": 2}]}})));
        for other in [json!({"a": {"c": [1]}}), json!({"a": 1}), json!({"x": 1})] {
            assert!(!has(&document, &other), "{other}");
        }
    }
}
