//! Identities: devices and modules.

use std::time::Duration;

use axum::http::header::{HeaderMap, HeaderValue, IF_MATCH};

use super::answer::{Answer, Answered};
use super::error::{Code, Refusal};
use super::hub::Hub;
use super::query_threads::{Pace, Work};
use super::route::{Named, id};
use super::version;
use crate::base::proto::command::{self, command::Kind};
use crate::machine::effect::Reply;
use crate::machine::hub::{self, HubReply, read};
use crate::machine::tables::Backing;
use crate::registry::document::{self, IdentityDocument, Refused};
use crate::registry::{IdentityId, IfMatch, etag};

/// Bytes of a key that a node makes.
const NEW_KEY_BYTES: usize = 32;

/// Most devices of one list.
const MOST_LISTED: usize = 1_000;

/// As many are read without a view of the state; a device has no more modules either.
const FEW_LISTED: usize = 64;

/// How often a command is proposed again for which a log entry has had no room.
const MOST_PROPOSALS: usize = 100;

/// How long it waits before, so that it is not in every entry that has none either.
const PROPOSAL_PAUSE: Duration = Duration::from_millis(20);

/// Who is not there: a device, or a module of a device that is there.
pub(super) fn absent(id: &IdentityId, is_module: bool) -> Refusal {
    match is_module {
        true => Refusal::new(Code::ModuleNotFound, format!("there is no module {id}")),
        false => {
            let text = format!("there is no device {}", id.device_id());
            Refusal::new(Code::DeviceNotFound, text)
        }
    }
}

/// Why the log has refused a command.
fn refused(id: &IdentityId, refusal: hub::Refusal) -> Refusal {
    let new = |code, text: &str| Refusal::new(code, format!("{id}: {text}"));
    match refusal {
        hub::Refusal::Exists if id.is_module() => new(Code::ModuleAlreadyExists, "it is there"),
        hub::Refusal::Exists => new(Code::DeviceAlreadyExists, "it is there"),
        hub::Refusal::NoDevice => absent(id, false),
        hub::Refusal::NoModule => absent(id, true),
        hub::Refusal::Precondition => new(Code::PreconditionFailed, "it has another etag"),
        hub::Refusal::TooManyDevices => new(Code::TooManyDevices, "there are as many as may be"),
        hub::Refusal::TooManyModules => new(Code::TooManyModules, "its device has enough modules"),
        hub::Refusal::TooLarge(error) => Refusal::invalid(error),
        hub::Refusal::Invalid => new(Code::Internal, "the log does not know the command"),
        hub::Refusal::Busy => new(Code::Throttled, "too many connections end with it at once"),
    }
}

impl Hub {
    /// Has the log carry out a command of the hub. One for which a log entry has no room goes into the next.
    pub(super) async fn change(&self, id: &IdentityId, kind: Kind) -> Result<HubReply, Refusal> {
        for _ in 0..MOST_PROPOSALS {
            if matches!(kind, Kind::UpdateTwin(_)) {
                // It has no turn for which the end of the node would wait.
                self.changes.may_begin()?;
            }
            match self.propose(kind.clone()).await? {
                Reply::Hub(HubReply::Refused(hub::Refusal::Busy)) => {
                    tokio::time::sleep(PROPOSAL_PAUSE).await;
                }
                Reply::Hub(HubReply::Refused(refusal)) => return Err(refused(id, refusal)),
                Reply::Hub(reply) => return Ok(reply),
                reply => return Err(unexpected(&reply)),
            }
        }
        Err(refused(id, hub::Refusal::Busy))
    }

    /// `GET /devices`
    pub(super) async fn devices(&self, query: Option<&str>) -> Answered {
        let most = match version::value(query, "top") {
            None => MOST_LISTED,
            Some(text) => {
                let number = text.parse().ok();
                let number = number.filter(|number| (1..=MOST_LISTED).contains(number));
                number.ok_or_else(|| Refusal::invalid("top is a number from 1 to 1000"))?
            }
        };
        if most <= FEW_LISTED {
            let few = move |backing: &dyn Backing| read::devices(backing, most, || true);
            let devices = self.read_some(few).await?.unwrap_or_default();
            return Ok(Answer::json(self.memory.try_hold(list(devices))?));
        }
        let memory = self.memory.clone();
        let listed = self.read_much(Work::List, move |view, wanted| {
            let goes_on = || wanted.pace(Some(view)) != Pace::GiveUp;
            let devices = read::devices(view, most, goes_on)?;
            Some(memory.try_hold(list(devices)))
        });
        Ok(Answer::json(listed.await??))
    }

    /// `GET /devices/{id}/modules`
    pub(super) async fn modules(&self, device: &str) -> Answered {
        let id = IdentityId::device(device).map_err(Refusal::invalid)?;
        let device = id.clone();
        let modules = self.read_some(move |backing| read::modules(backing, &device));
        let modules = modules.await?.ok_or_else(|| absent(&id, false))?;
        Ok(Answer::json(self.memory.try_hold(list(modules))?))
    }

    /// `GET` of an identity.
    pub(super) async fn identity(&self, named: Named<'_>) -> Answered {
        let id = id(named)?;
        let asked = id.clone();
        let found = self.read(move |backing| {
            let document = read::document(backing, &asked);
            let has_device =
                document.is_some() || read::identity(backing, &asked.of_device()).is_some();
            document.ok_or(asked.is_module() && has_device)
        });
        let document = found.await?.map_err(|is_module| absent(&id, is_module))?;
        self.answer_identity(&document).await
    }

    /// `PUT` of an identity.
    pub(super) async fn put_identity(
        &self,
        id: IdentityId,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Answered {
        let mut fields = document::parse(&id, body).map_err(|error| match error {
            Refused::NotJson(error) => Refusal::new(Code::FormatError, error),
            Refused::Invalid(error) => Refusal::invalid(error),
        })?;
        if document::needs_keys(&fields) {
            fields.primary_key = new_key()?;
            fields.secondary_key = new_key()?;
        }
        let (device, module) = id.parts();
        let command = command::PutIdentity {
            device: device.to_owned(),
            module: module.to_owned(),
            if_match: Some(if_match(headers, etag::parse)?.into_command()),
            fields: Some(fields),
            max_devices: self.max_devices,
        };
        match self.change(&id, Kind::PutIdentity(command)).await? {
            HubReply::Identity(document) => self.answer_identity(&document).await,
            reply => Err(unexpected(&Reply::Hub(reply))),
        }
    }

    /// `DELETE` of an identity. Whoever deletes says what, at least that any will do.
    pub(super) async fn delete_identity(&self, id: IdentityId, headers: &HeaderMap) -> Answered {
        let if_match = if_match(headers, etag::parse)?;
        if if_match == IfMatch::Absent {
            let text = "If-Match is missing: the etag, or * for any";
            return Err(Refusal::new(Code::PreconditionFailed, text));
        }
        let (device, module) = id.parts();
        let command = command::DeleteIdentity {
            device: device.to_owned(),
            module: module.to_owned(),
            if_match: Some(if_match.into_command()),
        };
        match self.change(&id, Kind::DeleteIdentity(command)).await? {
            HubReply::Deleted => Ok(Answer::nothing()),
            reply => Err(unexpected(&Reply::Hub(reply))),
        }
    }

    async fn answer_identity(&self, document: &IdentityDocument) -> Answered {
        let json = self.memory.hold(document.render()).await?;
        Ok(Answer::json(json).with_etag(&document.etag()))
    }
}

/// What a request asks of the etag of what it changes. Several lines of the header are one list (RFC 9110 §5.2).
pub(super) fn if_match(
    headers: &HeaderMap,
    counter: fn(&str) -> Option<u64>,
) -> Result<IfMatch, Refusal> {
    let lines = headers.get_all(IF_MATCH).iter();
    let lines: Result<Vec<&str>, _> = lines.map(HeaderValue::to_str).collect();
    let lines = lines.map_err(|_| Refusal::invalid("if-match is no text"))?;
    let list = (!lines.is_empty()).then(|| lines.join(","));
    Ok(IfMatch::parse(list.as_deref(), counter))
}

/// A reply of another kind of command.
pub(super) fn unexpected(reply: &Reply) -> Refusal {
    Refusal::new(Code::Internal, format!("the log answered {reply:?}"))
}

fn new_key() -> Result<bytes::Bytes, Refusal> {
    let mut key = vec![0; NEW_KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| Refusal::new(Code::Internal, error))?;
    Ok(key.into())
}

fn list(documents: Vec<IdentityDocument>) -> String {
    let mut json = String::from("[");
    for (at, document) in documents.iter().enumerate() {
        if at > 0 {
            json.push(',');
        }
        document.write(&mut json);
    }
    json.push(']');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_if_match_are_one_list() {
        let parse = |lines: &[&'static str]| {
            let lines = lines.iter().map(|line| HeaderValue::from_static(line));
            let headers = lines.map(|line| (IF_MATCH, line)).collect();
            if_match(&headers, |etag| etag.parse().ok()).map_err(|refusal| refusal.code)
        };
        assert_eq!(parse(&[]), Ok(IfMatch::Absent));
        assert_eq!(parse(&["*"]), Ok(IfMatch::Any));
        let three = IfMatch::OneOf(vec![7, 8, 9]);
        assert_eq!(parse(&["\"7\", W/\"8\"", "9"]), Ok(three));
        // Neither a list nor any.
        assert_eq!(parse(&["7", "*"]), Ok(IfMatch::OneOf(vec![7])));
        let mut headers = HeaderMap::new();
        let latin = HeaderValue::from_bytes(b"\xff").expect("a value");
        headers.append(IF_MATCH, HeaderValue::from_static("7"));
        headers.append(IF_MATCH, latin);
        assert!(if_match(&headers, |_| None).is_err(), "no line is left out");
    }
}
