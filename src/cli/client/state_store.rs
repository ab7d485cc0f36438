//! State store commands over MQTT 5: a request is a PUBLISH with a response topic and correlation data, and its answer
//! repeats the correlation data (docs/spec/state-store.md, Requests).
//!
//! Invariant: a request whose connection is lost is sent again with the same correlation data, so that the store
//! recognises it and does not execute it twice.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::error::ClientError;
use super::message::{Message, Outgoing};
use super::options::Options;
use super::session::Client;
use crate::base::time::wall_now;
use crate::codec::{QoS, SubscriptionOptions};
use crate::store::topics::{INVOKE, NOTIFY_PREFIX};

/// Pause between two rounds over all servers.
const RETRY: Duration = Duration::from_millis(100);

/// What the store answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `+OK`
    Ok,
    /// `:n`
    Number(i64),
    /// `$-1`
    Absent,
    /// `$n`
    Value(Vec<u8>),
    /// `-ERR text`
    Error(String),
    /// `*1` or `*2`: keys, and the token of the next page when there is one.
    Page(Vec<Vec<u8>>, Option<Vec<u8>>),
}

/// A change of a watched key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The new value; `None` when the key was deleted or expired.
    pub value: Option<Vec<u8>>,
    /// Version of the change.
    pub version: Option<String>,
}

/// A client of the state store.
pub struct StateStore {
    options: Options,
    client: Option<Client>,
    next_server: usize,
    response_topic: String,
    notify_prefix: String,
    timeout: Duration,
    counter: u32,
    /// Notifications that arrived while an answer was waited for.
    notified: VecDeque<Message>,
}

impl StateStore {
    /// A client that connects when it is first used. `timeout` bounds every command.
    pub fn new(options: Options, timeout: Duration) -> StateStore {
        let id = &options.client_id;
        let hex: String = id.bytes().map(|byte| format!("{byte:02X}")).collect();
        StateStore {
            // In the form that the public clients use.
            response_topic: format!("clients/{id}/services/{INVOKE}/response"),
            notify_prefix: format!("{NOTIFY_PREFIX}/{hex}/command/notify/"),
            options,
            client: None,
            next_server: 0,
            timeout,
            counter: 0,
            notified: VecDeque::new(),
        }
    }

    /// Executes one command and returns its answer with the version (`__ts`) it carried.
    ///
    /// # Errors
    /// No server, no leader or no answer before the time-out; an answer that cannot be parsed.
    pub async fn call(
        &mut self,
        arguments: &[&[u8]],
        fencing_token: Option<&str>,
    ) -> Result<(Answer, Option<String>), ClientError> {
        let payload = request(arguments);
        let correlation = Uuid::new_v4();
        let mut last = None;
        let limit = Instant::now() + self.timeout;
        let seconds = self.timeout.as_secs();
        let attempts = async {
            loop {
                match self
                    .attempt(&payload, correlation.as_bytes(), fencing_token)
                    .await
                {
                    Ok(message) => return Ok(message),
                    Err(error) if error.is_transient() => {
                        self.client = None;
                        self.next_server += 1;
                        last = Some(error);
                        tokio::time::sleep(RETRY).await;
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        let message = match tokio::time::timeout_at(limit, attempts).await {
            Ok(message) => message?,
            Err(_) => return Err(last.unwrap_or(ClientError::TimedOut(seconds))),
        };
        if message.user_property("__stat") != Some("200") {
            return Err(ClientError::Answer("without __stat 200".into()));
        }
        let version = message.user_property("__ts").map(str::to_owned);
        parse(&message.payload)
            .map(|answer| (answer, version))
            .ok_or_else(|| {
                ClientError::Answer(format!("{:?}", message.payload.escape_ascii().to_string()))
            })
    }

    /// Connects to the next server and subscribes to the answers.
    async fn connect(&self) -> Result<Client, ClientError> {
        let mut client = Client::connect(&self.options, self.next_server).await?;
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            ..SubscriptionOptions::default()
        };
        client.subscribe(&[&self.response_topic], options).await?;
        Ok(client)
    }

    async fn attempt(
        &mut self,
        payload: &[u8],
        correlation: &[u8; 16],
        fencing_token: Option<&str>,
    ) -> Result<Message, ClientError> {
        self.counter = self.counter.wrapping_add(1) % 100_000;
        let timestamp = format!(
            "{:015}:{:05}:{}",
            wall_now().0,
            self.counter,
            self.options.client_id.replace(':', "_")
        );
        let mut user_properties = vec![
            ("__ts", timestamp),
            ("__protVer", "1.0".to_owned()),
            ("__srcId", self.options.client_id.clone()),
        ];
        if let Some(token) = fencing_token {
            user_properties.push(("__ft", token.to_owned()));
        }
        let expiry = u32::try_from(self.timeout.as_secs())
            .unwrap_or(u32::MAX)
            .max(1);
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        let client = self.client.insert(client);
        let outgoing = Outgoing {
            topic: INVOKE,
            qos: QoS::AtLeastOnce,
            retain: false,
            payload,
            response_topic: Some(&self.response_topic),
            correlation_data: Some(correlation),
            message_expiry_s: Some(expiry),
            content_type: Some("application/octet-stream"),
            user_properties,
        };
        // The answer may overtake PUBACK, but a refusal comes only in PUBACK: wait for that first.
        client.publish(&outgoing).await?;
        loop {
            let message = client.next().await?;
            if message.correlation_data.as_deref() == Some(correlation.as_slice()) {
                return Ok(message);
            }
            if message.topic.starts_with(&self.notify_prefix) {
                self.notified.push_back(message);
            }
        }
    }

    /// The next notification of a watched key.
    ///
    /// # Errors
    /// A lost connection. It ends every registration: the caller has to watch again.
    pub async fn next_notification(&mut self) -> Result<Notification, ClientError> {
        loop {
            let message = match self.notified.pop_front() {
                Some(message) => message,
                None => match &mut self.client {
                    Some(client) => match client.next().await {
                        Ok(message) => message,
                        Err(error) => {
                            self.client = None;
                            self.next_server += 1;
                            return Err(error);
                        }
                    },
                    None => return Err(ClientError::Closed("not connected".into())),
                },
            };
            if message.topic.starts_with(&self.notify_prefix) {
                let version = message.user_property("__ts").map(str::to_owned);
                return notification(&message.payload)
                    .map(|value| Notification { value, version })
                    .ok_or_else(|| ClientError::Answer("a malformed notification".into()));
            }
        }
    }

    /// Sends DISCONNECT when connected.
    pub async fn close(&mut self) {
        if let Some(client) = self.client.take() {
            // The command is done: an error now changes nothing.
            let _ = client.disconnect().await;
        }
    }
}

/// A RESP3 array of blob strings (docs/spec/state-store.md, Payloads).
pub fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut payload = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        payload.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        payload.extend_from_slice(argument);
        payload.extend_from_slice(b"\r\n");
    }
    payload
}

/// Reads RESP3 from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A marker byte and the text up to CRLF.
    fn line(&mut self) -> Option<(u8, &'a str)> {
        let end = self.0.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, rest) = self.0.split_at(end);
        self.0 = &rest[2..];
        let (marker, text) = line.split_first()?;
        Some((*marker, std::str::from_utf8(text).ok()?))
    }

    fn count(&mut self, marker: u8) -> Option<usize> {
        let (found, text) = self.line()?;
        (found == marker).then(|| text.parse().ok())?
    }

    fn blob(&mut self) -> Option<&'a [u8]> {
        let length = self.count(b'$')?;
        self.body(length)
    }

    fn body(&mut self, length: usize) -> Option<&'a [u8]> {
        let body = self.0.get(..length)?;
        self.0 = self.0.get(length..)?.strip_prefix(b"\r\n")?;
        Some(body)
    }
}

fn parse(payload: &[u8]) -> Option<Answer> {
    let mut reader = Reader(payload);
    let answer = match reader.line()? {
        (b'+', "OK") => Answer::Ok,
        (b':', text) => Answer::Number(text.parse().ok()?),
        (b'-', text) => Answer::Error(text.strip_prefix("ERR ").unwrap_or(text).to_owned()),
        (b'$', "-1") => Answer::Absent,
        (b'$', length) => Answer::Value(reader.body(length.parse().ok()?)?.to_vec()),
        (b'*', parts) => {
            let keys = reader.count(b'*')?;
            let keys = (0..keys)
                .map(|_| reader.blob().map(<[u8]>::to_vec))
                .collect::<Option<_>>()?;
            let token = match parts {
                "1" => None,
                "2" => Some(reader.blob()?.to_vec()),
                _ => return None,
            };
            Answer::Page(keys, token)
        }
        _ => return None,
    };
    reader.0.is_empty().then_some(answer)
}

/// The new value of a SET or `Some(None)` for a DELETE; `None` when the payload is not a notification
/// (docs/spec/state-store.md, Notifications).
fn notification(payload: &[u8]) -> Option<Option<Vec<u8>>> {
    let mut reader = Reader(payload);
    let parts = reader.count(b'*')?;
    if reader.blob()? != b"NOTIFY" {
        return None;
    }
    match (parts, reader.blob()?) {
        (2, b"DELETE") => Some(None),
        (4, b"SET") if reader.blob()? == b"VALUE" => Some(Some(reader.blob()?.to_vec())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_arrays_of_blob_strings() {
        assert_eq!(
            request(&[b"SET", b"k", b""]),
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n"
        );
    }

    #[test]
    fn every_form_of_answer_is_read() {
        let cases: &[(&[u8], Answer)] = &[
            (b"+OK\r\n", Answer::Ok),
            (b":-1\r\n", Answer::Number(-1)),
            (b"$-1\r\n", Answer::Absent),
            (b"$4\r\na\r\nb\r\n", Answer::Value(b"a\r\nb".to_vec())),
            (
                b"-ERR syntax error\r\n",
                Answer::Error("syntax error".into()),
            ),
            (
                b"*1\r\n*1\r\n$1\r\nk\r\n",
                Answer::Page(vec![b"k".to_vec()], None),
            ),
            (
                b"*2\r\n*0\r\n$2\r\nto\r\n",
                Answer::Page(vec![], Some(b"to".to_vec())),
            ),
        ];
        for (bytes, answer) in cases {
            assert_eq!(parse(bytes).as_ref(), Some(answer));
            for end in 0..bytes.len() {
                assert_eq!(
                    parse(&bytes[..end]),
                    None,
                    "a part of {:?}",
                    bytes.escape_ascii().to_string()
                );
            }
        }
    }

    #[test]
    fn notifications_tell_a_new_value_from_a_deletion() {
        let set = b"*4\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n$5\r\nVALUE\r\n$1\r\nx\r\n";
        assert_eq!(notification(set), Some(Some(b"x".to_vec())));
        assert_eq!(
            notification(b"*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"),
            Some(None)
        );
        assert_eq!(notification(b"*2\r\n$6\r\nNOTIFY\r\n$3\r\nDEL\r\n"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
            let _ = notification(&bytes);
        }
    }
}
