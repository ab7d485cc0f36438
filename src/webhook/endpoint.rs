//! One endpoint: a request to it, with what proves who sends it, and how it has ended.
//!
//! Invariant: a request goes to the address of the URL and nowhere else: not by plain HTTP to other machines unless an
//! operator allows it, not to link-local addresses, not where a redirect points to.

use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::files::{Files, ForeignFile};
use super::secrets::{Proof, SecretsError};
use crate::base::proto::state::EventSubscriptionOptions;
use crate::base::time::{Millis, elapsed_now};
use crate::events::answer::End;
use crate::events::modes::Request;
use crate::events::retry_after::retry_after_ms;
use crate::events::signature::signatures;
use crate::http_client::{
    Answer, Excess, HttpClient, HttpError, Options, TlsError, TlsFiles, Url, UrlError,
};

/// Most bytes of an answer that are read.
const LARGEST_ANSWER_BYTES: usize = 64 << 10;

/// Longest text of how a request has ended, bytes.
pub(super) const LONGEST_TEXT: usize = 512;

/// Why nothing can be sent to an endpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// Its URL.
    #[error("the URL can't be used: {0}")]
    Url(#[from] UrlError),
    /// The files for TLS.
    #[error("ca_file: {0}")]
    Tls(#[from] TlsError),
    /// Those may not be used.
    #[error(transparent)]
    Foreign(#[from] ForeignFile),
    /// What proves who sends.
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    /// A header that can't be sent.
    #[error("the header {0} can't be sent")]
    Header(String),
    /// The node stops.
    #[error("this node stops")]
    Stopped,
}

/// How a request has ended.
pub(crate) struct Reply {
    /// What it comes to.
    pub(crate) end: End,
    /// The same in words that do not change much from one request to the next: at most [`LONGEST_TEXT`] bytes, without
    /// control characters, whatever the endpoint has said.
    pub(crate) text: String,
    /// The headers of the answer, if there is one.
    pub(crate) headers: HeaderMap,
    /// Its body.
    pub(crate) body: Bytes,
}

impl Reply {
    fn none(end: End, text: &str) -> Reply {
        Reply {
            end,
            text: shortened(text),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Nothing could be sent.
    pub(crate) fn unable(error: &EndpointError) -> Reply {
        Reply::none(End::Unable, &error.to_string())
    }

    fn of_answer(answer: Answer, now: Millis) -> Reply {
        let retry = answer.headers.get(header::RETRY_AFTER);
        let retry = retry.and_then(|value| value.to_str().ok());
        let after = retry.and_then(|text| retry_after_ms(text, now));
        Reply {
            end: End::Status(answer.status.as_u16(), after),
            text: format!("the endpoint answers {}", answer.status),
            headers: answer.headers,
            body: answer.body,
        }
    }

    fn of_error(error: &HttpError) -> Reply {
        let end = match error {
            HttpError::TimedOut(_) => End::TimedOut,
            HttpError::Resolve(_) => End::Unresolved,
            HttpError::RefusedAddress | HttpError::Request(_) => End::Unable,
            HttpError::Connect(_) | HttpError::NotConnected(_) | HttpError::Tls(_) => {
                End::Unreached
            }
            HttpError::Http(_) | HttpError::TooLarge(_) => End::Broken,
        };
        Reply::none(end, &error.to_string())
    }
}

/// A text as rows, logs and terminals may have it. What goes wrong with TLS is told with the names in the endpoint's
/// certificate, which may be anything.
fn shortened(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().map(printable).take(LONGEST_TEXT + 1).collect();
    if short.len() > LONGEST_TEXT {
        let end = short.floor_char_boundary(LONGEST_TEXT - '…'.len_utf8());
        short.truncate(end);
        short.push('…');
    }
    short
}

/// An endpoint of an event subscription.
pub(crate) struct Endpoint {
    client: HttpClient,
    further: Vec<(HeaderName, HeaderValue)>,
    proof: Proof,
}

impl Endpoint {
    /// The endpoint that the options name. Reads files.
    ///
    /// # Errors
    /// Nothing can be sent to it.
    pub(crate) fn new(
        options: &EventSubscriptionOptions,
        files: &Files,
    ) -> Result<Endpoint, EndpointError> {
        let url = Url::of_endpoint(&options.url, options.plain_http)?;
        let authorities = files.authorities(options)?;
        let further = options.headers.iter().map(|one| {
            let name = HeaderName::from_bytes(one.name.as_bytes());
            let value = HeaderValue::from_str(&one.value);
            match (name, value) {
                (Ok(name), Ok(mut value)) => {
                    value.set_sensitive(true);
                    Ok((name, value))
                }
                _ => Err(EndpointError::Header(one.name.clone())),
            }
        });
        Ok(Endpoint {
            further: further.collect::<Result<_, _>>()?,
            proof: files.secrets.proof(options)?,
            client: HttpClient::new(Options {
                url,
                tls: TlsFiles {
                    authorities,
                    certificate: None,
                },
                timeout: Duration::from_secs(options.timeout_s.max(1).into()),
                largest_answer: LARGEST_ANSWER_BYTES,
                excess: Excess::Cut,
                refuses_local: true,
                repeats: false,
            })?,
        })
    }

    /// Takes what proves who sends from the file anew.
    ///
    /// # Errors
    /// It is not there any more.
    pub(crate) fn prove_anew(
        &mut self,
        options: &EventSubscriptionOptions,
        files: &Files,
    ) -> Result<(), EndpointError> {
        self.proof = files.secrets.proof(options)?;
        Ok(())
    }

    /// Makes a request, and waits for its end. `id` is its id for those who keep what they have seen.
    pub(crate) async fn send(&self, request: Request, id: &str, now: Millis) -> Reply {
        let headers = match self.headers(&request, id, now) {
            Ok(headers) => headers,
            Err(error) => return Reply::unable(&error),
        };
        let sent_at = elapsed_now();
        let answer = match request.is_options {
            true => self.client.options(&headers).await,
            false => self.client.post(&headers, request.body.into()).await,
        };
        match answer {
            Ok(answer) => {
                let took = elapsed_now().since(sent_at).as_millis();
                let answered = now.plus(u64::try_from(took).unwrap_or(u64::MAX));
                Reply::of_answer(answer, answered)
            }
            Err(error) => Reply::of_error(&error),
        }
    }

    fn headers(
        &self,
        request: &Request,
        id: &str,
        now: Millis,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, EndpointError> {
        let mut headers = self.further.clone();
        let mut add = |name: &'static str, value: &str| {
            let header = HeaderValue::from_str(value);
            let header = header.map_err(|_| EndpointError::Header(name.to_owned()))?;
            headers.push((HeaderName::from_static(name), header));
            Ok::<(), EndpointError>(())
        };
        for (name, value) in &request.headers {
            add(name, value)?;
        }
        if !self.proof.keys.is_empty() && !request.is_options {
            let now_s = now.0 / 1_000;
            let signed = signatures(&self.proof.keys, id, now_s, &request.body);
            add("webhook-id", id)?;
            add("webhook-timestamp", &now_s.to_string())?;
            add("webhook-signature", &signed)?;
        }
        if let Some(token) = &self.proof.token {
            headers.push((header::AUTHORIZATION, token.clone()));
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::answer::Consequence;

    /// Who has got nothing can't have trouble with what was to be sent.
    #[test]
    fn without_a_connection_an_endpoint_is_down() {
        let second = Duration::from_secs(1);
        let closed = || std::io::ErrorKind::ConnectionReset.into();
        for error in [
            HttpError::NotConnected(second),
            HttpError::Connect(closed()),
            HttpError::Tls(closed()),
            HttpError::Resolve(closed()),
            HttpError::RefusedAddress,
        ] {
            let consequence = Reply::of_error(&error).end.consequence();
            assert_eq!(consequence, Consequence::Down(None), "{error:?}");
        }
        let consequence = Reply::of_error(&HttpError::TimedOut(second))
            .end
            .consequence();
        assert_eq!(consequence, Consequence::Unanswered);
    }

    #[test]
    fn texts_are_short_and_printable() {
        assert_eq!(shortened("as it is"), "as it is");
        assert_eq!(shortened("a\u{1b}[2J\r\nb\u{9b}"), "a�[2J��b�");
        for text in ["x".repeat(100_000), "�".repeat(60_000), "é".repeat(257)] {
            let short = shortened(&text);
            assert!((LONGEST_TEXT - 8..=LONGEST_TEXT).contains(&short.len()));
            assert!(short.ends_with('…'));
        }
    }
}
