//! Twins.

use axum::http::HeaderMap;

use super::answer::{Answer, Answered};
use super::error::{Code, Refusal};
use super::hub::Hub;
use super::identities::{absent, if_match, unexpected};
use super::route::{Named, id};
use crate::base::proto::command::{self, command::Kind};
use crate::http::Held;
use crate::machine::effect::Reply;
use crate::machine::hub::{HubReply, read};
use crate::registry::IdentityId;
use crate::twin::encoding::encode_patch;
use crate::twin::request::{Refused, twin_update};
use crate::twin::{Twin, etag};

/// Twins whose sections have no more bytes together are rendered at once.
const SMALL_BYTES: usize = 32 << 10;

/// Bytes of a twin's JSON without sections, about.
const HEAD_BYTES: usize = 4 << 10;

/// Most bytes of JSON for each byte of a section: an empty object is stored in seven, and shown with its metadata.
const JSON_PER_BYTE: usize = 32;

/// What a twin is answered after.
#[derive(Clone, Copy)]
enum After {
    /// A read may be refused when the node is busy.
    Read,
    /// A write that was carried out may not: its answer waits.
    Write,
}

impl Hub {
    /// `GET` of a twin. One that is missing is said to be its device's, also where only the module is missing.
    pub(super) async fn twin(&self, named: Named<'_>) -> Answered {
        let id = id(named)?;
        let asked = id.clone();
        let found = self
            .read(move |backing| read::twin(backing, &asked))
            .await?;
        let twin = found.ok_or_else(|| absent(&id, false))?;
        self.answer_twin(twin, After::Read).await
    }

    /// `PATCH` of a twin, or `PUT`, which replaces.
    pub(super) async fn update_twin(
        &self,
        named: Named<'_>,
        headers: &HeaderMap,
        body: &[u8],
        replace: bool,
    ) -> Answered {
        let id = id(named)?;
        // The parsed body, which takes many times its bytes, is gone before the answer is waited for.
        let command = update_command(&id, headers, body, replace)?;
        match self.change(&id, Kind::UpdateTwin(command)).await? {
            HubReply::Twin(twin) => self.answer_twin(*twin, After::Write).await,
            reply => Err(unexpected(&Reply::Hub(reply))),
        }
    }

    /// Answers with a twin.
    async fn answer_twin(&self, twin: Twin, after: After) -> Answered {
        let etag = twin.etag();
        let sections = [&twin.tags, &twin.desired, &twin.reported];
        let bytes: usize = sections.iter().map(|section| section.0.len()).sum();
        let json = match bytes <= SMALL_BYTES {
            true => self.rendered_at_once(&twin, bytes, after).await?,
            false => {
                let turn = match after {
                    After::Read => self.renders.take().await?,
                    After::Write => self.renders.wait().await?,
                };
                // The turn goes along: whoever gives up does not make room for another thread.
                let work = move || (rendered(&twin), turn);
                let done = tokio::task::spawn_blocking(work).await;
                let (json, turn) = done.map_err(|error| Refusal::new(Code::Internal, error))?;
                let json = self.held(json?, after).await?;
                drop(turn);
                json
            }
        };
        Ok(Answer::json(json).with_etag(&etag))
    }

    /// What a back end waits for has no text yet.
    async fn rendered_at_once(
        &self,
        twin: &Twin,
        bytes: usize,
        after: After,
    ) -> Result<Held, Refusal> {
        match after {
            After::Read => Ok(self.memory.try_hold(rendered(twin)?)?),
            After::Write => {
                let most = HEAD_BYTES + bytes * JSON_PER_BYTE;
                let reserved = self.memory.reserve(most).await?;
                Ok(reserved.hold(rendered(twin)?))
            }
        }
    }

    async fn held(&self, json: String, after: After) -> Result<Held, Refusal> {
        match after {
            After::Read => Ok(self.memory.try_hold(json)?),
            After::Write => Ok(self.memory.hold(json).await?),
        }
    }
}

fn update_command(
    id: &IdentityId,
    headers: &HeaderMap,
    body: &[u8],
    replace: bool,
) -> Result<command::UpdateTwin, Refusal> {
    let update = twin_update(body, replace).map_err(|error| match error {
        Refused::NotJson(error) => Refusal::new(Code::FormatError, error),
        Refused::Invalid(error) => Refusal::invalid(error),
    })?;
    let (device, module) = id.parts();
    Ok(command::UpdateTwin {
        device: device.to_owned(),
        module: module.to_owned(),
        if_match: Some(if_match(headers, etag::parse)?.into_command()),
        replace,
        tags: update.tags.as_ref().map(encode_patch),
        desired: update.desired.as_ref().map(encode_patch),
    })
}

fn rendered(twin: &Twin) -> Result<String, Refusal> {
    let json = twin.render();
    json.map_err(|error| Refusal::new(Code::Internal, error))
}
