//! SCAN: one of a connection at a time, and the answer to a client that may not read every key.
//!
//! Invariant: an answer, its token included, follows from the pattern, the request's token, what the client takes, and
//! the keys that it may read, and from nothing else: not from how many other keys lie between, nor from what it takes
//! to look at them.
//! So pages are read until the answer is full of keys that may be read and there is one more, or until the last row.
//! Whatever token a client makes up leads to keys that it may read. How long the answer takes does depend on the other
//! keys; readers give each connection a turn after the other.
//!
//! Invariant: an answer costs the rows that it lists, one more, and those that it may not list: what is read for it is
//! what it lacks ([`PageBudget::missing`]). Keys are judged by the thread that reads them ([`ScanQuery::rights`]); here
//! they are judged again only if the rules have changed since, no more of them than one answer and one key.
//!
//! Invariant: one SCAN of a connection is read at a time; its others wait in their order, until the answer has left. So
//! what a client has others read for it does not grow with its receive maximum.
//!
//! [`PageBudget::missing`]: crate::store::scan::PageBudget::missing

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::request::StoreRequest;
use crate::acl::{KeyAccess, Rights};
use crate::connection::context::Context;
use crate::connection::requests::Request;
use crate::mailbox::RequestId;
use crate::replica::reader::{Query, ScanQuery};
use crate::store::scan::{PageBudget, token_after};
use crate::store::{Reply, StoreError};

/// The SCANs of a connection.
#[derive(Default)]
pub(super) struct Scans {
    /// Those that wait for the one that is read, while there is one. Boxed, because most clients have none.
    waiting: Option<Box<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<RequestId>,
    /// The one that was read is answered, and the answer has not left.
    is_answered: bool,
}

impl Scans {
    /// Has a request read when its turn comes.
    pub(super) fn begin(&mut self, context: &mut Context, request: StoreRequest) {
        let request_id = context.requests.insert(Request::Store(Box::new(request)));
        match &mut self.waiting {
            Some(waiting) => waiting.requests.push_back(request_id),
            None => {
                self.waiting = Some(Box::default());
                begin(context, request_id);
            }
        }
    }

    /// The request that was read is answered.
    pub(super) fn end(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.is_answered = true;
        }
    }

    /// Everything that the client was to be sent has left: the next request is read.
    pub(super) fn handle_sent(&mut self, context: &mut Context) {
        let Some(waiting) = self.waiting.as_mut().filter(|it| it.is_answered) else {
            return;
        };
        waiting.is_answered = false;
        match waiting.requests.pop_front() {
            Some(request_id) => begin(context, request_id),
            None => self.waiting = None,
        }
    }

    /// Memory that they take.
    pub(super) fn memory(&self) -> usize {
        let waiting = self.waiting.as_ref();
        waiting.map_or(0, |it| it.requests.capacity() * size_of::<RequestId>())
    }
}

/// A page of an answer that is no larger than the client's packets may be, as long as it has several keys.
fn fitting(page: PageBudget, max_packet_size: u32, request: &StoreRequest) -> PageBudget {
    let most = (max_packet_size as usize).saturating_sub(request.beside());
    PageBudget {
        max_answer_bytes: page.max_answer_bytes.min(most),
        ..page
    }
}

fn begin(context: &mut Context, request_id: RequestId) {
    let rights = context.rights.now().clone();
    read(context, request_id, rights);
}

/// Has the next page of a request read, whose keys are judged by `rights`.
fn read(context: &mut Context, request_id: RequestId, rights: Arc<Rights>) {
    let settings = context.broker.settings.scan_page;
    let max_packet_size = context.mailbox.max_packet_size;
    let Some(Request::Store(request)) = context.requests.get_mut(request_id) else {
        return;
    };
    let page = fitting(settings, max_packet_size, request);
    let Some(scan) = request.scan.as_mut() else {
        return;
    };
    let query = ScanQuery {
        pattern: scan.pattern.clone(),
        token: scan.token.clone(),
        rights: rights.clone(),
        // A page that is the answer as it is needs no key more.
        budget: match rights.are_open() && scan.found.is_empty() {
            true => page,
            false => page.missing(&scan.found),
        },
    };
    scan.rights = Some(rights);
    let reader = &context.broker.services.reader;
    reader.submit(Query::Scan(query), &context.mailbox, request_id);
}

/// What a page adds to the answer; `None` when the next one is read for the request, which is answered later then.
pub(super) fn page(
    context: &mut Context,
    mut request: StoreRequest,
    keys: &[Bytes],
    token: Option<&Bytes>,
) -> Option<(StoreRequest, Reply)> {
    let now = context.rights.now().clone();
    let settings = context.broker.settings.scan_page;
    let budget = fitting(settings, context.mailbox.max_packet_size, &request);
    let Some(scan) = request.scan.as_mut() else {
        // Not reached: every SCAN has what it needs to go on.
        return Some((request, Reply::Error(StoreError::Syntax)));
    };
    let (found, judged) = (&mut scan.found, scan.rights.take());
    let was_open = judged.as_ref().is_some_and(|rights| rights.are_open());
    found.extend_from_slice(keys);
    // With a token it may be longer than the client takes. There may be no other key that it leads to.
    let is_answer = token.is_none_or(|token| budget.takes(keys, token));
    if was_open && now.are_open() && found.len() == keys.len() && is_answer {
        let (keys, token) = (std::mem::take(found), token.cloned());
        return Some((request, Reply::Page { keys, token }));
    }
    if judged.is_none_or(|judged| !Arc::ptr_eq(&judged, &now)) {
        // The rules may be others since the page was read.
        context.work += found.len();
        found.retain(|key| now.may_access(KeyAccess::Read, key));
    }
    let listed = budget.page_of(found);
    let is_full = listed < found.len();
    if let Some(token) = token.filter(|_| !is_full) {
        scan.token = Some(token.clone());
        let request_id = context.requests.insert(Request::Store(Box::new(request)));
        // Those that are found are judged by these.
        read(context, request_id, now);
        return None;
    }
    let mut keys = std::mem::take(found);
    keys.truncate(listed);
    let token = keys
        .last()
        .filter(|_| is_full)
        .map(|last| token_after(last));
    Some((request, Reply::Page { keys, token }))
}
