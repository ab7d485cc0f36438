//! What the rules say of a request to the state store, before it is carried out.

use std::sync::Arc;

use super::request::StoreRequest;
use crate::acl::{KeyAccess, Publication, Share};
use crate::codec::QoS;
use crate::connection::context::Context;
use crate::store::{self, WriteAction, topics};
use crate::telemetry::labels::{Action, Verb};

/// What the client lacks to have an answer published there, if it lacks something. The answer is the client's own doing
/// and goes to whoever subscribes: it is not written where the client may not write, nor where it may not read.
pub(super) fn refuses_answer(context: &mut Context, response_topic: &str) -> Option<Action> {
    let (qos, retain) = (QoS::AtLeastOnce, false);
    let answer = Publication { qos, retain };
    let rights = context.rights.now();
    if !rights.may_receive(response_topic, Share::None) {
        return Some(Action::Subscribe);
    }
    let is_own = topics::is_response_topic_of(&context.options.client_id, response_topic);
    let may = is_own || rights.publish(response_topic).allow(answer);
    (!may).then_some(Action::Publish)
}

/// The verb of a request that the client may not make. Everybody may stop watching a key.
pub(super) fn not_authorized(context: &mut Context, request: &store::Request<'_>) -> Option<Verb> {
    let metrics = &context.broker.metrics;
    let (verb, access, key) = match request {
        store::Request::Write(write) => (verb_of(&write.action), KeyAccess::Write, write.key),
        store::Request::Get { key } => (Verb::Get, KeyAccess::Read, *key),
        store::Request::KeyNotify { stop: true, .. } => return None,
        store::Request::KeyNotify { key, .. } => (Verb::Keynotify, KeyAccess::Read, *key),
        store::Request::Scan { .. } => {
            let may = context.rights.now().may_read_some();
            if !may {
                context.rights.deny(Action::Read, None, metrics);
            }
            return (!may).then_some(Verb::Scan);
        }
    };
    (!context.rights.may_access(access, key, metrics)).then_some(verb)
}

/// Whether a GET may still be answered: the client's rights may have changed since it was judged.
pub(super) fn may_still_read(context: &mut Context, request: &StoreRequest) -> bool {
    if request.verb != Verb::Get || has_same_rights(context, request) {
        return true;
    }
    let metrics = &context.broker.metrics;
    (context.rights).may_access(KeyAccess::Read, &request.key, metrics)
}

/// Whether the client may still have the answer where it has asked for it.
pub(super) fn may_still_be_answered(context: &mut Context, request: &StoreRequest) -> bool {
    let topic = &request.response_topic;
    has_same_rights(context, request) || context.rights.now().may_receive(topic, Share::None)
}

/// Whether the client's rights are what its request was judged by.
fn has_same_rights(context: &mut Context, request: &StoreRequest) -> bool {
    let judged = request.judged.as_ref();
    judged.is_none_or(|judged| Arc::ptr_eq(context.rights.now(), judged))
}

/// What a write is counted as.
pub(super) fn verb_of(action: &WriteAction<'_>) -> Verb {
    match action {
        WriteAction::Set { .. } => Verb::Set,
        WriteAction::Del => Verb::Del,
        WriteAction::VDel { .. } => Verb::Vdel,
    }
}
