//! Events as JSON: [`cloud_event`] and [`grid_event`], without white space, members in a fixed order.
//!
//! Invariant: an event has the same id on every replica and in every attempt. It is made of the cluster's identity and
//! the event's number.
//! Invariant: what [`cloud_event`] writes is state. Apply puts it into queues (`events.mqtt`), so replicas whose
//! programs write it otherwise are not equal any more: a change of any byte of it is a change of `machine::VERSION`.

use uuid::Uuid;

use super::answer::{DeathReason, Outcome};
use super::kind::{HubOperation, Kind, event_type};
use super::options::Schema;
use super::reason::DisconnectionReason;
use super::time;
use crate::base::proto::state;
use crate::base::time::Millis;

/// The id of the event with a number.
pub fn id(settings: &state::EventSettings, number: u64) -> Uuid {
    let cluster = Uuid::from_slice(&settings.cluster_id).unwrap_or_default();
    Uuid::new_v5(&cluster, format!("event:{number}").as_bytes())
}

/// What an event is about.
pub fn subject(event: &state::Event) -> String {
    let state::Event { name, session, .. } = event;
    match Kind::of(event) {
        Some(Kind::Hub) if session.is_empty() => format!("devices/{name}"),
        Some(Kind::Hub) => format!("devices/{name}/modules/{session}"),
        Some(Kind::Connected | Kind::Disconnected) => format!("clients/{name}/sessions/{session}"),
        _ => format!("clients/{name}"),
    }
}

/// A CloudEvent 1.0 in its JSON format.
pub fn cloud_event(settings: &state::EventSettings, number: u64, event: &state::Event) -> String {
    let mut object = cloud_attributes(settings, number, event);
    object.json("data", &data(settings, event));
    object.finish()
}

fn cloud_attributes(settings: &state::EventSettings, number: u64, event: &state::Event) -> Object {
    let mut object = Object::new();
    object.text("specversion", "1.0");
    object.text("id", &id(settings, number).to_string());
    object.text("time", &event_time(event));
    object.text("type", event_type(event).unwrap_or_default());
    object.text("source", &settings.source);
    object.text("subject", &subject(event));
    for (name, value) in hub_attributes(event) {
        object.text(name.trim_start_matches("ce-"), &value);
    }
    object
}

/// An event in the Event Grid schema.
pub fn grid_event(settings: &state::EventSettings, number: u64, event: &state::Event) -> String {
    let mut object = grid_attributes(settings, number, event);
    object.json("data", &data(settings, event));
    object.finish()
}

fn grid_attributes(settings: &state::EventSettings, number: u64, event: &state::Event) -> Object {
    let mut object = Object::new();
    object.text("id", &id(settings, number).to_string());
    object.text("eventTime", &event_time(event));
    object.text("eventType", event_type(event).unwrap_or_default());
    object.text("topic", &settings.source);
    object.text("subject", &subject(event));
    object.text("dataVersion", "1");
    object.text("metadataVersion", "1");
    object
}

/// A dead letter: its event in a schema, and what became of it.
pub fn dead_letter(
    settings: &state::EventSettings,
    schema: Schema,
    number: u64,
    letter: &state::DeadLetter,
) -> String {
    let unknown = state::Event::default();
    let event = letter.event.as_ref().unwrap_or(&unknown);
    let reason = DeathReason::from_number(letter.reason).map_or("", DeathReason::as_str);
    // Where nothing was ever sent there is no outcome.
    let outcome = Outcome::from_number(letter.outcome).map(Outcome::as_str);
    let attempts = letter.attempts.to_string();
    let mut object = match schema {
        Schema::CloudEvents => {
            let mut object = cloud_attributes(settings, number, event);
            object.text("deadletterreason", reason);
            object.json("deliveryattempts", &attempts);
            if let Some(outcome) = outcome {
                object.text("lastdeliveryoutcome", outcome);
            }
            object.text("publishtime", &event_time(event));
            object
        }
        Schema::EventGrid => {
            let mut object = grid_attributes(settings, number, event);
            object.text("deadLetterReason", reason);
            object.json("deliveryAttempts", &attempts);
            if let Some(outcome) = outcome {
                object.text("lastDeliveryOutcome", outcome);
            }
            object.text("publishTime", &event_time(event));
            if letter.attempted_ms != 0 {
                let attempted = time::text(Millis(letter.attempted_ms));
                object.text("lastDeliveryAttemptTime", &attempted);
            }
            object
        }
    };
    object.json("data", &data(settings, event));
    object.finish()
}

/// The type of [`trial`].
const TRIAL: &str = "Quorumq.EventSubscriptionTest";

/// An event that says that it is a test. It has a type of its own, so that nobody takes it for an event of a client.
pub fn trial(settings: &state::EventSettings, schema: Schema, id: Uuid, now: Millis) -> String {
    let (id, time) = (id.to_string(), time::text(now));
    let mut object = Object::new();
    let members: &[(&str, &str)] = match schema {
        Schema::CloudEvents => &[
            ("specversion", "1.0"),
            ("id", &id),
            ("time", &time),
            ("type", TRIAL),
            ("source", &settings.source),
            ("subject", "test"),
        ],
        Schema::EventGrid => &[
            ("id", &id),
            ("eventTime", &time),
            ("eventType", TRIAL),
            ("topic", &settings.source),
            ("subject", "test"),
            ("dataVersion", "1"),
            ("metadataVersion", "1"),
        ],
    };
    for (name, value) in members {
        object.text(name, value);
    }
    object.json("data", &trial_data(settings));
    object.finish()
}

/// The headers of a test in binary mode.
pub fn trial_attributes(
    settings: &state::EventSettings,
    id: Uuid,
    now: Millis,
) -> [(&'static str, String); 6] {
    [
        ("ce-specversion", "1.0".to_owned()),
        ("ce-id", id.to_string()),
        ("ce-time", time::text(now)),
        ("ce-type", TRIAL.to_owned()),
        ("ce-source", settings.source.clone()),
        ("ce-subject", "test".to_owned()),
    ]
}

/// What a test says.
pub fn trial_data(settings: &state::EventSettings) -> String {
    let mut data = Object::new();
    data.text("namespaceName", &settings.namespace);
    data.finish()
}

/// The question whether an endpoint wants events, in the Event Grid schema.
pub fn validation(settings: &state::EventSettings, code: Uuid, now: Millis) -> String {
    let code = code.to_string();
    let mut data = Object::new();
    data.text("validationCode", &code);
    let mut object = Object::new();
    object.text("id", &code);
    object.text("topic", &settings.source);
    object.text("subject", "");
    object.json("data", &data.finish());
    object.text(
        "eventType",
        "Microsoft.EventGrid.SubscriptionValidationEvent",
    );
    object.text("eventTime", &time::text(now));
    object.text("metadataVersion", "1");
    object.text("dataVersion", "1");
    object.finish()
}

/// When the cluster found it, as text.
pub fn event_time(event: &state::Event) -> String {
    time::text(Millis(event.time_ms))
}

/// The attributes that an event of the hub has beside those of every event, named as headers are.
pub fn hub_attributes(event: &state::Event) -> Vec<(&'static str, String)> {
    if Kind::of(event) != Some(Kind::Hub) {
        return Vec::new();
    }
    let Some(operation) = HubOperation::of(event) else {
        return Vec::new();
    };
    let mut attributes = vec![
        ("ce-hubname", event.hub.clone()),
        ("ce-deviceid", event.name.clone()),
    ];
    if !event.session.is_empty() {
        attributes.push(("ce-moduleid", event.session.clone()));
    }
    attributes.extend([
        ("ce-optype", operation.as_str().to_owned()),
        ("ce-operationtimestamp", event_time(event)),
        ("ce-messageschema", operation.message_schema().to_owned()),
    ]);
    attributes
}

/// What an event says of its subject, JSON.
pub fn data(settings: &state::EventSettings, event: &state::Event) -> String {
    let mut data = Object::new();
    match Kind::of(event) {
        Some(Kind::Hub) => return String::from_utf8_lossy(&event.data).into_owned(),
        Some(Kind::ClientUpdated) => {
            data.text("createdOn", &time::text(Millis(event.created_ms)));
            data.text("updatedOn", &time::text(Millis(event.updated_ms)));
            client(&mut data, settings, event);
            let state = match event.disabled {
                true => "Disabled",
                false => "Enabled",
            };
            data.text("state", state);
            data.json("attributes", "{}");
        }
        Some(Kind::ClientDeleted) => client(&mut data, settings, event),
        Some(Kind::Connected) => session(&mut data, settings, event),
        Some(Kind::Disconnected) => {
            session(&mut data, settings, event);
            let reason = DisconnectionReason::of_number(event.reason);
            data.text("disconnectionReason", reason.as_str());
        }
        None => {}
    }
    data.finish()
}

fn client(data: &mut Object, settings: &state::EventSettings, event: &state::Event) {
    data.text("namespaceName", &settings.namespace);
    data.text("clientName", &event.name);
    data.text("clientAuthenticationName", &event.name);
}

fn session(data: &mut Object, settings: &state::EventSettings, event: &state::Event) {
    data.text("namespaceName", &settings.namespace);
    data.text("clientAuthenticationName", &event.name);
    data.text("clientSessionName", &event.session);
    data.json("sequenceNumber", &event.sequence.to_string());
}

/// A JSON object that is being written.
struct Object(String);

impl Object {
    fn new() -> Object {
        Object("{".to_owned())
    }

    fn name(&mut self, name: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.quoted(name);
        self.0.push(':');
    }

    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    /// A member whose value is JSON already.
    fn json(&mut self, name: &str, value: &str) {
        self.name(name);
        self.0.push_str(value);
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                '\n' => self.0.push_str("\\n"),
                '\r' => self.0.push_str("\\r"),
                '\t' => self.0.push_str("\\t"),
                control if control < ' ' => {
                    let number = u32::from(control);
                    self.0.push_str(&format!("\\u{number:04x}"));
                }
                other => self.0.push(other),
            }
        }
        self.0.push('"');
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
