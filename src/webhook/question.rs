//! The question whether an endpoint wants events, and its answer.

use hyper::header::HeaderMap;
use uuid::Uuid;

use super::endpoint::Reply;
use crate::base::proto::state::{EventSettings, EventSubscriptionOptions};
use crate::base::time::Millis;
use crate::events::answer::End;
use crate::events::modes::{Consent, Form, Request, consent, handshake};
use crate::events::options::{Handshake, Schema};

/// A question to one endpoint.
pub(super) struct Question<'a> {
    form: Form<'a>,
    rate_per_min: u32,
    code: Uuid,
}

impl<'a> Question<'a> {
    /// A question with a code that nobody can guess.
    pub(super) fn new(name: &'a str, options: &'a EventSubscriptionOptions) -> Question<'a> {
        Question {
            form: Form::of(name, options),
            rate_per_min: options.rate_per_min,
            code: Uuid::new_v4(),
        }
    }

    /// A question whose answer, whatever it is, tells that the endpoint is there: the same, which it has answered
    /// before, or `OPTIONS` where it was never asked. That asks for nothing (RFC 9110 §9.3.7).
    pub(super) fn that_probes(
        name: &'a str,
        options: &'a EventSubscriptionOptions,
    ) -> Question<'a> {
        let mut question = Question::new(name, options);
        if Handshake::of(options.handshake) == Handshake::Off {
            question.form.schema = Schema::CloudEvents;
        }
        question
    }

    /// The request.
    pub(super) fn request(&self, settings: &EventSettings, now: Millis) -> Request {
        handshake(&self.form, settings, self.rate_per_min, self.code, now)
    }

    /// The id of the request.
    pub(super) fn id(&self) -> String {
        self.code.to_string()
    }

    /// What the endpoint says: at most so many requests per minute, or as many as it was asked for. `None`: it does not
    /// consent.
    pub(super) fn judge(&self, reply: &Reply) -> Option<Option<u32>> {
        let End::Status(status, _) = reply.end else {
            return None;
        };
        let header = |name: &str| text(&reply.headers, name);
        match consent(&self.form, self.code, status, header, &reply.body) {
            Consent::Given(rate) => Some(rate),
            Consent::Refused => None,
        }
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}
