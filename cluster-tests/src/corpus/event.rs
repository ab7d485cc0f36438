//! Events of the life of clients in conversations: what a PUBLISH below `$events/` has to be, byte for byte, but for the
//! event's id and time.

use crate::wire::{Properties, Publish, Value, id};

/// What the nodes that conversations are held with are called.
const NAMESPACE: &str = "test";

/// An event of a session whose client has proved nothing, so that its client id is its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    client_id: String,
    number: u64,
    /// `None`: Connected.
    reason: Option<String>,
}

impl Event {
    /// Reads `@a connected 1` or `@a disconnected 1 ConnectionLost`, with a word in place of `@`.
    pub fn parse(words: &[&str], word: &str) -> Result<Event, String> {
        let (client_id, number, reason) = match words {
            [client_id, "connected", number] => (client_id, number, None),
            [client_id, "disconnected", number, reason] => {
                (client_id, number, Some((*reason).to_owned()))
            }
            other => return Err(format!("no event: {other:?}")),
        };
        let number = number.parse().map_err(|_| format!("no number: {number}"))?;
        Ok(Event {
            client_id: client_id.replace('@', word),
            number,
            reason,
        })
    }

    /// Whether a PUBLISH is this event.
    pub fn is(&self, publish: &Publish) -> bool {
        let name = &self.client_id;
        let kind = match self.reason {
            Some(_) => "disconnected",
            None => "connected",
        };
        let properties = Properties::new()
            .with(id::PAYLOAD_FORMAT, Value::Byte(1))
            .with(
                id::CONTENT_TYPE,
                Value::Text("application/cloudevents+json; charset=utf-8".into()),
            );
        let payload = std::str::from_utf8(&publish.payload).unwrap_or_default();
        publish.topic == format!("$events/v1/clients/{name}/sessions/{name}/{kind}")
            && !publish.retain
            && publish.properties == properties
            && is_like(&self.payload(), payload)
    }

    /// The payload; `?` stands for a letter or digit of what each event has of its own.
    fn payload(&self) -> String {
        let name = &self.client_id;
        let (kind, reason) = match &self.reason {
            Some(reason) => (
                "Disconnected",
                format!(",\"disconnectionReason\":\"{reason}\""),
            ),
            None => ("Connected", String::new()),
        };
        format!(
            "{{\"specversion\":\"1.0\",\"id\":\"????????-????-5???-????-????????????\",\
             \"time\":\"????-??-??T??:??:??.???0000Z\",\
             \"type\":\"Microsoft.EventGrid.MQTTClientSession{kind}\",\
             \"source\":\"/namespaces/{NAMESPACE}\",\"subject\":\"clients/{name}/sessions/{name}\",\
             \"data\":{{\"namespaceName\":\"{NAMESPACE}\",\"clientAuthenticationName\":\"{name}\",\
             \"clientSessionName\":\"{name}\",\"sequenceNumber\":{}{reason}}}}}",
            self.number
        )
    }
}

fn is_like(wanted: &str, came: &str) -> bool {
    let fits = |(wanted, came): (char, char)| match wanted {
        '?' => came.is_ascii_hexdigit(),
        other => other == came,
    };
    wanted.len() == came.len() && wanted.chars().zip(came.chars()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_that_of_its_session_with_its_number_and_reason() {
        let event = |text: &str| Event::parse(&text.split(' ').collect::<Vec<_>>(), "w");
        let wanted = event("@a disconnected 2 ConnectionLost").expect("it is an event");
        let payload = wanted.payload().replace('?', "4");
        let publish = Publish {
            topic: "$events/v1/clients/wa/sessions/wa/disconnected".to_owned(),
            payload: payload.clone().into_bytes(),
            properties: Properties::new()
                .with(id::PAYLOAD_FORMAT, Value::Byte(1))
                .with(
                    id::CONTENT_TYPE,
                    Value::Text("application/cloudevents+json; charset=utf-8".into()),
                ),
            duplicate: false,
            qos: 1,
            retain: false,
            packet_id: 1,
        };
        assert!(wanted.is(&publish));
        for other in [
            "@b disconnected 2 ConnectionLost",
            "@a disconnected 3 ConnectionLost",
            "@a disconnected 2 ClientError",
            "@a connected 2",
        ] {
            assert!(
                !event(other).expect("it is an event").is(&publish),
                "{other}"
            );
        }
        let other = Publish {
            payload: payload.replace("1.0", "1.1").into_bytes(),
            ..publish
        };
        assert!(!wanted.is(&other));
        for wrong in ["@a", "@a connected", "@a connected x", "@a disconnected 1"] {
            assert!(event(wrong).is_err(), "{wrong}");
        }
    }
}
