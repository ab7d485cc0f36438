//! The administration of event subscriptions.

use prost::Message as _;
use tokio::sync::Semaphore;

use super::event_pace::{CONSENTS, CONSENTS_PER_MINUTE, EVENTS};
use super::status::NodeStatus;
use crate::base::proto::command::command::Kind;
use crate::base::proto::command::{
    DeleteEventSubscription, EventProgress, PutEventSubscription, ReplayDeadLetters,
};
use crate::base::proto::state::{
    EventHeader, EventSettings, EventSubscription, EventSubscriptionOptions,
};
use crate::base::time::{Millis, elapsed_now};
use crate::events::DisconnectionReason;
use crate::events::kind::CLIENT_TYPES;
use crate::events::options::{Handshake, Mode, Schema, State, check, defaults};
use crate::events::render;
use crate::events::standing::{Standing, consent_row, has_consent, rate};
use crate::http::{
    AdminError, AdminFuture, DeadLetterFate, DeadLetterPage, DeadLetterRange, DeadLetters,
    EventSubscriptionStatus, EventSubscriptions, NewEventSubscription, TestAnswer, TestRequest,
};
use crate::http_client::Url;
use crate::machine::effect::{EventsReply, Reply};
use crate::machine::read_events;
use crate::machine::tables::Backing;
use crate::replica::share::Share;
use crate::webhook::{Files, TrialKind, try_out};

/// Endpoints that a node tries at once. Each trial has a turn of those of all administrative changes, and takes as long
/// as the endpoint likes.
static TRIALS: Semaphore = Semaphore::const_new(4);

/// Bytes of a page of dead letters, as JSON; the last letter may exceed them. Clients choose how large letters are.
const LARGEST_PAGE_BYTES: usize = 2 << 20;

fn invalid(error: impl std::fmt::Display) -> AdminError {
    AdminError::Invalid(error.to_string())
}

/// A word, or the default when it is absent.
fn word(
    given: Option<&str>,
    parse: impl Fn(&str) -> Option<u32>,
    default: u32,
    what: &str,
) -> Result<u32, AdminError> {
    match given {
        None => Ok(default),
        Some(text) => parse(text).ok_or_else(|| invalid(format!("there is no {what} {text:?}"))),
    }
}

fn reasons(names: &[String]) -> Result<Vec<u32>, AdminError> {
    let found = names.iter().map(|name| {
        let all = DisconnectionReason::ALL.into_iter();
        let mut all = all.filter(|reason| reason.as_str() == name);
        let reason = all.next().map(|reason| reason as u32);
        reason.ok_or_else(|| invalid(format!("there is no reason {name:?}")))
    });
    found.collect()
}

/// What is asked for, with defaults for what is absent.
fn options(
    new: NewEventSubscription,
    origin: String,
) -> Result<EventSubscriptionOptions, AdminError> {
    let default = defaults();
    let schema = |text: &str| Schema::parse(text).map(Schema::number);
    let mode = |text: &str| Mode::parse(text).map(Mode::number);
    let handshake = |text: &str| Handshake::parse(text).map(Handshake::number);
    let headers = new.headers.into_iter().map(|header| EventHeader {
        name: header.name,
        value: header.value,
    });
    Ok(EventSubscriptionOptions {
        schema: word(new.schema.as_deref(), schema, default.schema, "schema")?,
        mode: word(new.mode.as_deref(), mode, default.mode, "mode")?,
        handshake: word(
            new.handshake.as_deref(),
            handshake,
            default.handshake,
            "handshake",
        )?,
        url: new.url,
        types: new.types,
        subject_begins_with: new.subject_begins_with,
        subject_ends_with: new.subject_ends_with,
        case_sensitive: new.case_sensitive,
        reasons: reasons(&new.reasons)?,
        ttl_min: new.ttl_min.unwrap_or(default.ttl_min),
        max_attempts: new.max_attempts.unwrap_or(default.max_attempts),
        max_events: new.max_events.unwrap_or(default.max_events),
        max_bytes: new.max_bytes.unwrap_or(default.max_bytes),
        rate_per_min: new.rate_per_min.unwrap_or(default.rate_per_min),
        timeout_s: new.timeout_s.unwrap_or(default.timeout_s),
        token: new.token,
        signing_keys: new.signing_keys,
        headers: headers.collect(),
        ca_file: new.ca_file,
        plain_http: new.plain_http,
        origin,
    })
}

fn status(
    name: String,
    row: EventSubscription,
    options: EventSubscriptionOptions,
    backing: &dyn Backing,
    now: Millis,
) -> EventSubscriptionStatus {
    let newest = read_events::numbers(backing).last;
    let first = read_events::events(backing, row.through, 1, 0);
    let since = first.first().map(|(_, event)| event.time_ms);
    let url = Url::of_endpoint(&options.url, options.plain_http);
    let types = match options.types.is_empty() {
        true => CLIENT_TYPES.map(str::to_owned).to_vec(),
        false => options.types.clone(),
    };
    let reasons = options.reasons.iter();
    let reasons = reasons.map(|number| DisconnectionReason::of_number(*number).as_str().to_owned());
    let error = row.last_error.clone();
    let has_error = !error.is_empty();
    EventSubscriptionStatus {
        name,
        state: Standing::of(&row, &options, now).as_str().to_owned(),
        url: url.map_or_else(|_| "unusable".to_owned(), |url| url.to_string()),
        schema: Schema::of(options.schema).as_str().to_owned(),
        mode: Mode::of(options.mode).as_str().to_owned(),
        types,
        reasons: reasons.collect(),
        subject_begins_with: options.subject_begins_with,
        subject_ends_with: options.subject_ends_with,
        case_sensitive: options.case_sensitive,
        ttl_min: options.ttl_min,
        max_attempts: options.max_attempts,
        max_events: options.max_events,
        max_bytes: options.max_bytes,
        rate_per_min: options.rate_per_min,
        timeout_s: options.timeout_s,
        token: options.token,
        signing_keys: options.signing_keys,
        headers: options.headers.into_iter().map(|one| one.name).collect(),
        ca_file: options.ca_file,
        handshake: Handshake::of(options.handshake).as_str().to_owned(),
        plain_http: options.plain_http,
        revision: row.revision,
        cursor: row.through,
        waiting: newest.saturating_sub(row.through),
        waiting_since_ms: since,
        parked: row.parked,
        dead: row.dead,
        delivered: row.delivered,
        last_error: has_error.then_some(error),
        last_error_ms: has_error.then_some(row.last_error_ms),
    }
}

/// A page of dead letters: not too many, and no more bytes than [`LARGEST_PAGE_BYTES`] but for the last one.
fn page_of_letters(
    backing: &dyn Backing,
    name: &str,
    options: &EventSubscriptionOptions,
    page: DeadLetterPage,
) -> DeadLetters {
    let settings = read_events::settings(backing).unwrap_or_default();
    let schema = Schema::of(options.schema);
    let mut found = DeadLetters::default();
    let mut bytes = 0;
    read_events::dead_letters(backing, name, page.after, |number, letter| {
        if found.letters.len() >= page.size() || bytes >= LARGEST_PAGE_BYTES {
            found.next = found.letters.last().map(|(last, _)| *last);
            return false;
        }
        let text = render::dead_letter(&settings, schema, number, &letter);
        bytes += text.len();
        found.letters.push((number, text));
        true
    });
    found
}

/// What became of a change; tells whether there is such an event subscription.
fn was_there(reply: EventsReply) -> Result<bool, AdminError> {
    match reply {
        EventsReply::Done(_) => Ok(true),
        EventsReply::NotFound => Ok(false),
        EventsReply::Conflict { revision: 0 } => Err(AdminError::Conflict(
            "there is no such event subscription".to_owned(),
        )),
        EventsReply::Conflict { revision } => {
            let text = format!("the event subscription has the revision {revision}");
            Err(AdminError::Conflict(text))
        }
        EventsReply::Full => Err(AdminError::Conflict(
            "there are as many event subscriptions as there may be".to_owned(),
        )),
        EventsReply::Invalid => Err(invalid("the event subscription can't be like this")),
        EventsReply::Busy => Err(AdminError::Conflict(
            "what was asked for before is still under way; try again".to_owned(),
        )),
    }
}

impl NodeStatus {
    async fn change_events(&self, kind: Kind) -> Result<EventsReply, AdminError> {
        let proposer = &self.broker.services.proposer;
        match proposer.propose(Share::Administration, kind).await? {
            Reply::Events(reply) => Ok(reply),
            _ => Err(AdminError::Internal("the command was refused".to_owned())),
        }
    }

    /// An event subscription that has not ended, and what events are rendered with.
    async fn event_subscription(
        &self,
        name: &str,
    ) -> Result<Option<(EventSubscription, EventSubscriptionOptions, EventSettings)>, AdminError>
    {
        let name = name.to_owned();
        self.read(move |backing| {
            let row = read_events::subscription(backing, &name)?;
            let options = row.options.clone()?;
            let settings = read_events::settings(backing).unwrap_or_default();
            Some((row, options, settings))
        })
        .await
    }

    async fn put_events(
        &self,
        name: String,
        new: NewEventSubscription,
    ) -> Result<EventSubscriptionStatus, AdminError> {
        let (from, revision) = (new.from.clone(), new.revision);
        let from_oldest = match from.as_deref() {
            None | Some("now") => false,
            Some("oldest") => true,
            Some(_) => return Err(invalid("from is now or oldest")),
        };
        let options = options(new, self.config.event_origin())?;
        check(&name, &options).map_err(invalid)?;
        Url::of_endpoint(&options.url, options.plain_http)
            .map_err(|error| invalid(format!("url: {error}")))?;
        let files = Files::new(&self.config);
        files.authorities(&options).map_err(invalid)?;
        let command = PutEventSubscription {
            name: name.clone(),
            expected_revision: revision,
            options: options.encode_to_vec().into(),
            from_oldest,
        };
        was_there(
            self.change_events(Kind::PutEventSubscription(command))
                .await?,
        )?;
        let found = self.show_events(name).await?;
        found.ok_or_else(|| AdminError::Conflict("it was removed meanwhile".to_owned()))
    }

    async fn show_events(
        &self,
        name: String,
    ) -> Result<Option<EventSubscriptionStatus>, AdminError> {
        let now = self.broker.services.clock.now();
        self.read(move |backing| {
            let row = read_events::subscription(backing, &name)?;
            let options = row.options.clone()?;
            Some(status(name, row, options, backing, now))
        })
        .await
    }

    /// Tells the log something about an event subscription as it is now.
    async fn tell_events(
        &self,
        name: &str,
        tell: impl Fn(&EventSubscription, &EventSubscriptionOptions, &mut EventProgress),
    ) -> Result<bool, AdminError> {
        loop {
            let Some((row, options, _)) = self.event_subscription(name).await? else {
                return Ok(false);
            };
            let mut progress = EventProgress {
                name: name.to_owned(),
                revision: row.revision,
                ..EventProgress::default()
            };
            tell(&row, &options, &mut progress);
            match self.change_events(Kind::EventProgress(progress)).await? {
                // Somebody has changed what it asks for meanwhile.
                EventsReply::Conflict { .. } => {}
                reply => return was_there(reply),
            }
        }
    }

    async fn test_events(
        &self,
        name: String,
        request: TestRequest,
    ) -> Result<Option<TestAnswer>, AdminError> {
        let _place = TRIALS.try_acquire().map_err(|_| {
            AdminError::Conflict("this node tries several endpoints now; try again".to_owned())
        })?;
        let Some((row, options, settings)) = self.event_subscription(&name).await? else {
            return Ok(None);
        };
        let now = self.broker.services.clock.now();
        let is_asked = Handshake::of(options.handshake) == Handshake::Required;
        let kind = match request.event || !is_asked {
            true if !has_consent(&row, &options, now) => {
                let text =
                    "the endpoint has not said that it wants events: test without event first";
                return Err(AdminError::Conflict(text.to_owned()));
            }
            true => TrialKind::Event,
            false => TrialKind::Validation,
        };
        match kind {
            TrialKind::Event => EVENTS.take(&name, rate(&row, &options, now), elapsed_now())?,
            TrialKind::Validation => CONSENTS.take(&name, CONSENTS_PER_MINUTE, elapsed_now())?,
        }
        let files = Files::new(&self.config);
        let wall = self.broker.services.clock.wall();
        let tried = try_out(&name, &options, &settings, &files, kind, wall).await;
        // Consent is withdrawn by an answer, not for want of one.
        if kind == TrialKind::Validation && (tried.is_accepted || tried.is_refused) {
            let consent = match tried.is_accepted {
                true => consent_row(&options, tried.rate_per_min, now),
                false => bytes::Bytes::new(),
            };
            let asked_for = row.revision;
            self.tell_events(&name, |row, _, progress| {
                if row.revision == asked_for {
                    progress.consent = Some(consent.clone());
                }
            })
            .await?;
        }
        let sent = match kind {
            TrialKind::Validation => "validation",
            TrialKind::Event => "event",
        };
        Ok(Some(TestAnswer {
            accepted: tried.is_accepted,
            sent: sent.to_owned(),
            answer: tried.answer,
        }))
    }
}

impl EventSubscriptions for NodeStatus {
    fn list(&self) -> AdminFuture<'_, Vec<EventSubscriptionStatus>> {
        let now = self.broker.services.clock.now();
        Box::pin(self.read(move |backing| {
            let rows = read_events::subscriptions(backing).into_iter();
            let shown = rows.filter_map(|(name, row)| {
                let options = row.options.clone()?;
                Some(status(name, row, options, backing, now))
            });
            shown.collect()
        }))
    }

    fn show(&self, name: String) -> AdminFuture<'_, Option<EventSubscriptionStatus>> {
        Box::pin(self.show_events(name))
    }

    fn put(
        &self,
        name: String,
        new: NewEventSubscription,
    ) -> AdminFuture<'_, EventSubscriptionStatus> {
        Box::pin(self.put_events(name, new))
    }

    fn delete(&self, name: String) -> AdminFuture<'_, bool> {
        let command = DeleteEventSubscription { name };
        Box::pin(async move {
            let kind = Kind::DeleteEventSubscription(command);
            was_there(self.change_events(kind).await?)
        })
    }

    fn set_paused(&self, name: String, is_paused: bool) -> AdminFuture<'_, bool> {
        Box::pin(async move {
            self.tell_events(&name, |_, _, progress| match is_paused {
                true => progress.state = State::Paused.number(),
                false => {
                    progress.state = State::Active.number();
                    progress.last_error = Some(String::new());
                }
            })
            .await
        })
    }

    fn test(&self, name: String, request: TestRequest) -> AdminFuture<'_, Option<TestAnswer>> {
        Box::pin(self.test_events(name, request))
    }

    fn dead_letters(
        &self,
        name: String,
        page: DeadLetterPage,
    ) -> AdminFuture<'_, Option<DeadLetters>> {
        Box::pin(self.read(move |backing| {
            let options = read_events::subscription(backing, &name)?.options?;
            Some(page_of_letters(backing, &name, &options, page))
        }))
    }

    fn settle_dead_letters(
        &self,
        name: String,
        range: DeadLetterRange,
        fate: DeadLetterFate,
    ) -> AdminFuture<'_, bool> {
        let command = ReplayDeadLetters {
            name,
            from: range.from.unwrap_or(0),
            through: range.through.unwrap_or(u64::MAX),
            purge: fate == DeadLetterFate::Purged,
        };
        Box::pin(async move {
            let kind = Kind::ReplayDeadLetters(command);
            was_there(self.change_events(kind).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::proto::state::{DeadLetter, Event};

    /// Rows of dead letters, as a client makes them that connects under the longest client id.
    fn with_letters(letters: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut stored = BTreeMap::new();
        let row = EventSubscription {
            options: Some(defaults()),
            first_dead: 1,
            ..EventSubscription::default()
        };
        // As `machine::schema` has them.
        stored.insert(b"\x52s".to_vec(), row.encode_to_vec());
        let longest = "\u{1}".repeat(65_535);
        let letter = DeadLetter {
            event: Some(Event {
                kind: 1,
                name: longest.clone(),
                session: longest,
                ..Event::default()
            }),
            ..DeadLetter::default()
        };
        for number in 1..=letters {
            let key = [&b"\x54s\0"[..], &u64::to_be_bytes(number)].concat();
            stored.insert(key, letter.encode_to_vec());
        }
        stored
    }

    #[test]
    fn a_page_of_dead_letters_has_a_bound_of_bytes_and_the_pages_are_all_of_them() {
        let stored = with_letters(40);
        let (mut seen, mut pages, mut after) = (Vec::new(), 0, 0);
        loop {
            let page = DeadLetterPage { after, limit: 0 };
            let found = page_of_letters(&stored, "s", &defaults(), page);
            let bytes: usize = found.letters.iter().map(|(_, text)| text.len()).sum();
            assert!(bytes < 8 << 20, "{bytes}");
            seen.extend(found.letters.iter().map(|(number, _)| *number));
            pages += 1;
            match found.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(seen, (1..=40).collect::<Vec<u64>>());
        assert!(pages > 5, "{pages}");
        let one = DeadLetterPage { after: 3, limit: 1 };
        let found = page_of_letters(&stored, "s", &defaults(), one);
        assert_eq!((found.letters[0].0, found.next), (4, Some(4)));
    }
}
