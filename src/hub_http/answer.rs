//! Answers: status, headers and body.

use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::error::{Code, Refusal};
use crate::base::json::ObjectWriter;
use crate::base::time::wall_now;
use crate::base::utc::Utc;
use crate::http::Held;

/// The name of an error, by which programs go.
const ERROR_CODE: HeaderName = HeaderName::from_static("iothub-errorcode");

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// What a request is answered.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    json: Option<Bytes>,
    headers: HeaderMap,
}

/// What a request is answered by.
pub(super) type Answered = Result<Answer, Refusal>;

impl Answer {
    /// 200 with a JSON text, which has its place in memory.
    pub(super) fn json(json: Held) -> Answer {
        Answer {
            status: StatusCode::OK,
            json: Some(json.into_bytes()),
            headers: HeaderMap::new(),
        }
    }

    /// 204
    pub(super) fn nothing() -> Answer {
        Answer {
            status: StatusCode::NO_CONTENT,
            json: None,
            headers: HeaderMap::new(),
        }
    }

    /// With the etag of what is answered.
    pub(super) fn with_etag(self, etag: &str) -> Answer {
        self.with(header::ETAG, &format!("\"{etag}\""))
    }

    /// With a header. What no header can hold is left out; nothing here makes such a text.
    pub(super) fn with(mut self, name: HeaderName, value: &str) -> Answer {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }

    fn of_refusal(refusal: &Refusal) -> Answer {
        let Refusal { code, text } = refusal;
        let tracking_id = uuid::Uuid::new_v4().simple();
        let mut json = String::new();
        let mut object = ObjectWriter::new(&mut json);
        object.text("Message", &format!("ErrorCode:{};{text}", code.name()));
        let time = Utc(wall_now());
        let tracking = format!("Tracking ID:{tracking_id}-TimeStamp:{time}");
        object.text("ExceptionMessage", &tracking);
        object.end();
        if *code == Code::Internal {
            tracing::error!(%tracking_id, text, "a request of the hub failed");
        }
        // It is small: a sentence.
        let answer = Answer {
            status: code.status(),
            json: Some(json.into()),
            headers: HeaderMap::new(),
        };
        let answer = answer.with(ERROR_CODE, code.name());
        match code {
            Code::Throttled => answer.with(header::RETRY_AFTER, "1"),
            Code::OperationNotAllowed { allowed } => answer.with(header::ALLOW, allowed),
            Code::Unauthorized => answer.with(header::WWW_AUTHENTICATE, "SharedAccessSignature"),
            _ => answer,
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        Answer::of_refusal(&refusal)
    }
}

impl IntoResponse for Answer {
    fn into_response(mut self) -> Response {
        let has_body = self.json.is_some();
        if has_body {
            self.headers.insert(header::CONTENT_TYPE, JSON);
        }
        let body = self.json.map_or_else(Body::empty, Body::from);
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}
