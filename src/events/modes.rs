//! Requests: method, headers and body, in every mode of both schemas. What proves who sends is added by who sends.
//!
//! Invariant: a body that holds more than one event has no more than the subscription's bound of bytes; the size of one
//! event is nobody's choice.

use uuid::Uuid;

use super::kind::event_type;
use super::options::{Mode, Schema};
use super::render;
use crate::base::proto::state::{Event, EventSettings, EventSubscriptionOptions};
use crate::base::time::Millis;

/// Largest headers with attributes of an event, bytes: servers take 8 to 16 KiB of headers, and clients choose how long
/// their names are. An event with longer ones goes in the mode `structured`, which every receiver of CloudEvents knows.
const LARGEST_ATTRIBUTES: usize = 6 << 10;

/// A header of a request.
pub type Header = (&'static str, String);

/// A request, without what proves who sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `POST`; `OPTIONS` to ask for consent.
    pub is_options: bool,
    /// Headers beside those of every request.
    pub headers: Vec<Header>,
    /// The body.
    pub body: Vec<u8>,
}

/// What requests of one event subscription have in common.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The name of the event subscription.
    pub name: &'a str,
    /// Its schema.
    pub schema: Schema,
    /// Its mode.
    pub mode: Mode,
    /// Who says that it sends.
    pub origin: &'a str,
    /// Most events of one request.
    pub most_events: usize,
    /// Most bytes of a request with more than one event.
    pub most_bytes: usize,
}

impl<'a> Form<'a> {
    /// What the options of an event subscription say.
    pub fn of(name: &'a str, options: &'a EventSubscriptionOptions) -> Form<'a> {
        let bound = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Form {
            name,
            schema: Schema::of(options.schema),
            mode: Mode::of(options.mode),
            origin: &options.origin,
            most_events: bound(options.max_events),
            most_bytes: bound(options.max_bytes),
        }
    }

    /// Whether each request has one event.
    pub fn is_single(&self) -> bool {
        !self.is_list() || self.most_events <= 1
    }

    fn is_list(&self) -> bool {
        self.schema == Schema::EventGrid || self.mode == Mode::Batch
    }

    /// A request with events.
    fn post(&self, mut headers: Vec<Header>, body: Vec<u8>, attempts: u32) -> Request {
        let content_type = match (self.schema, self.mode) {
            (Schema::EventGrid, _) => "application/json; charset=utf-8",
            (_, Mode::Batch) => "application/cloudevents-batch+json; charset=utf-8",
            (_, Mode::Structured) => "application/cloudevents+json; charset=utf-8",
            (_, Mode::Binary) => "application/json",
        };
        headers.push(("content-type", content_type.to_owned()));
        match self.schema {
            Schema::CloudEvents => {
                headers.push(("webhook-request-origin", self.origin.to_owned()));
            }
            Schema::EventGrid => headers.extend(grid_headers(self, "Notification", attempts)),
        }
        Request {
            is_options: false,
            headers,
            body,
        }
    }

    /// Most events that go with one request.
    fn most_events(&self) -> usize {
        match (self.schema, self.mode) {
            (Schema::CloudEvents, Mode::Structured | Mode::Binary) => 1,
            _ => self.most_events.max(1),
        }
    }
}

/// Events that go with one request.
pub struct Parcel<'a> {
    form: Form<'a>,
    settings: &'a EventSettings,
    body: Vec<u8>,
    numbers: Vec<u64>,
    headers: Vec<Header>,
}

impl<'a> Parcel<'a> {
    /// An empty one.
    pub fn new(form: Form<'a>, settings: &'a EventSettings) -> Parcel<'a> {
        Parcel {
            form,
            settings,
            body: Vec::new(),
            numbers: Vec::new(),
            headers: Vec::new(),
        }
    }

    /// Adds an event, if there is room for it; there is always room for the first one.
    pub fn push(&mut self, number: u64, event: &Event) -> bool {
        let is_first = self.numbers.is_empty();
        if self.numbers.len() >= self.form.most_events() {
            return false;
        }
        let before = self.body.len();
        if self.form.is_list() {
            self.body.push(if is_first { b'[' } else { b',' });
        }
        let rendered = match (self.form.schema, self.form.mode) {
            (Schema::EventGrid, _) => render::grid_event(self.settings, number, event),
            (Schema::CloudEvents, Mode::Binary) => {
                self.headers = attributes(self.settings, number, event);
                let size = self
                    .headers
                    .iter()
                    .map(|(name, value)| name.len() + value.len());
                match size.sum::<usize>() <= LARGEST_ATTRIBUTES {
                    true => render::data(self.settings, event),
                    false => {
                        self.headers.clear();
                        self.form.mode = Mode::Structured;
                        render::cloud_event(self.settings, number, event)
                    }
                }
            }
            (Schema::CloudEvents, _) => render::cloud_event(self.settings, number, event),
        };
        self.body.extend_from_slice(rendered.as_bytes());
        // One more byte ends the list.
        if !is_first && self.body.len() >= self.form.most_bytes {
            self.body.truncate(before);
            return false;
        }
        self.numbers.push(number);
        true
    }

    /// The numbers of its events.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// The id of the request: the same when the same events are sent again.
    pub fn id(&self) -> String {
        let first = self.numbers.first().copied().unwrap_or_default();
        let first = render::id(self.settings, first);
        format!("{first}-{}", self.numbers.len())
    }

    /// The request, after so many attempts to deliver the same.
    pub fn request(&self, attempts: u32) -> Request {
        let mut body = self.body.clone();
        if self.form.is_list() {
            body.push(b']');
        }
        self.form.post(self.headers.clone(), body, attempts)
    }
}

/// A request with an event that says that it is a test.
pub fn trial(form: &Form<'_>, settings: &EventSettings, id: Uuid, now: Millis) -> Request {
    let event = render::trial(settings, form.schema, id, now);
    let (headers, body) = match (form.is_list(), form.mode) {
        (true, _) => (Vec::new(), format!("[{event}]")),
        (false, Mode::Binary) => {
            let attributes = render::trial_attributes(settings, id, now);
            let headers = attributes.map(|(name, value)| (name, escaped(&value)));
            (headers.to_vec(), render::trial_data(settings))
        }
        (false, _) => (Vec::new(), event),
    };
    form.post(headers, body.into_bytes(), 0)
}

fn grid_headers(form: &Form<'_>, what: &str, attempts: u32) -> [Header; 5] {
    [
        ("aeg-event-type", what.to_owned()),
        ("aeg-subscription-name", form.name.to_owned()),
        ("aeg-delivery-count", attempts.to_string()),
        ("aeg-data-version", "1".to_owned()),
        ("aeg-metadata-version", "1".to_owned()),
    ]
}

/// The attributes of a CloudEvent as headers (CloudEvents HTTP binding §3.1.3).
fn attributes(settings: &EventSettings, number: u64, event: &Event) -> Vec<Header> {
    let mut headers = vec![
        ("ce-specversion", "1.0".to_owned()),
        ("ce-id", render::id(settings, number).to_string()),
        ("ce-time", render::event_time(event)),
        ("ce-type", event_type(event).unwrap_or_default().to_owned()),
        ("ce-source", escaped(&settings.source)),
        ("ce-subject", escaped(&render::subject(event))),
    ];
    let of_hub = render::hub_attributes(event).into_iter();
    headers.extend(of_hub.map(|(name, value)| (name, escaped(&value))));
    headers
}

/// Percent-encodes what is not printable ASCII, and space, quotation mark and percent sign.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => escaped.push_str(&format!("%{byte:02X}")),
            0x21..=0x7e => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// Asks an endpoint whether it wants events. `code` is what it must know to say so, and the id of the question.
pub fn handshake(
    form: &Form<'_>,
    settings: &EventSettings,
    rate_per_min: u32,
    code: Uuid,
    now: Millis,
) -> Request {
    if form.schema == Schema::CloudEvents {
        return Request {
            is_options: true,
            headers: vec![
                ("webhook-request-origin", form.origin.to_owned()),
                ("webhook-request-rate", rate_per_min.to_string()),
            ],
            body: Vec::new(),
        };
    }
    let mut headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
    headers.extend(grid_headers(form, "SubscriptionValidation", 0));
    let question = render::validation(settings, code, now);
    Request {
        is_options: false,
        headers,
        body: format!("[{question}]").into_bytes(),
    }
}

/// What an endpoint has said to the question whether it wants events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// It does, and at most so many requests per minute; `None`: as many as it was asked for.
    Given(Option<u32>),
    /// It does not say so.
    Refused,
}

/// Whether an answer to a handshake is consent. `header` gives the values of an answer's headers.
pub fn consent<'h>(
    form: &Form<'_>,
    code: Uuid,
    status: u16,
    header: impl Fn(&str) -> Option<&'h str>,
    body: &[u8],
) -> Consent {
    match form.schema {
        Schema::CloudEvents => {
            // The status proves nothing.
            let origin = header("webhook-allowed-origin").map(str::trim);
            match origin {
                Some("*") => {}
                Some(origin) if origin.eq_ignore_ascii_case(form.origin) => {}
                _ => return Consent::Refused,
            }
            match header("webhook-allowed-rate").map(str::trim) {
                None | Some("*") => Consent::Given(None),
                // Whoever allows none, or nobody knows what, has not consented.
                Some(rate) => match rate.parse() {
                    Ok(0) | Err(_) => Consent::Refused,
                    Ok(rate) => Consent::Given(Some(rate)),
                },
            }
        }
        Schema::EventGrid => {
            let answer: Option<serde_json::Value> = serde_json::from_slice(body).ok();
            let answer = answer.as_ref();
            let answer = answer.and_then(|answer| answer.get("validationResponse")?.as_str());
            let is_same =
                answer.is_some_and(|answer| answer.eq_ignore_ascii_case(&code.to_string()));
            match status == 200 && is_same {
                true => Consent::Given(None),
                false => Consent::Refused,
            }
        }
    }
}

#[cfg(test)]
#[path = "modes_tests.rs"]
mod tests;
