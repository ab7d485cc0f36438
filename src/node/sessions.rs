//! The administration of sessions and retained messages.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::Semaphore;

use super::status::NodeStatus;
use crate::base::ids::NodeId;
use crate::base::proto::{command, state};
use crate::codec::Version;
use crate::http::{
    AdminError, AdminFuture, Listed, Page, RetainedStatus, SessionDetail, SessionStatus, Sessions,
    SubscriptionStatus,
};
use crate::identity::Identity;
use crate::machine::effect::Reply;
use crate::machine::read::{self, ListBudget};
use crate::machine::tables::Backing;
use crate::replica::proposer::ProposeError;
use crate::replica::share::Share;
use crate::topic::Filter;

/// How many read for administrators at once: the threads that block are also those of others.
static LOOKS: Semaphore = Semaphore::const_new(8);

/// How many read lists and entries of them: whoever may only read keeps nobody waiting who changes something.
static LISTS: Semaphore = Semaphore::const_new(4);

/// Names on one page of a list, bytes, beside their number; the last one may exceed it.
const PAGE_BYTES: usize = 1 << 20;

/// What the next page is to go on after has no more bytes: it comes back in a header, in which each may take three.
const LONGEST_NEXT: usize = 8 << 10;

/// Does work that may block, on a thread of its own, when it has its turn.
pub(super) async fn in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AdminError> {
    // Nobody closes them.
    let turn = turns.acquire().await;
    // The turn goes along: whoever gives up does not make room for another thread.
    let work = move || {
        let found = work();
        drop(turn);
        found
    };
    let found = tokio::task::spawn_blocking(work).await;
    found.map_err(|error| AdminError::Internal(error.to_string()))
}

impl NodeStatus {
    /// Waits until this replica has everything that was acknowledged before.
    pub(super) async fn catch_up(&self) -> Result<(), AdminError> {
        match self.raft.read_barrier().await {
            Ok(_) => Ok(()),
            Err(error) => Err(AdminError::NoLeader(error.to_string())),
        }
    }

    /// Reads the state on a thread of its own: however long it takes, no client waits for it.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Backing) -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        self.catch_up().await?;
        let backing = self.broker.services.backing.clone();
        in_turn(&LOOKS, move || read(&*backing)).await
    }

    /// Reads a list, or an entry of one, and makes it JSON there.
    async fn read_list<T: Serialize>(
        &self,
        read: impl FnOnce(&dyn Backing) -> Option<T> + Send + 'static,
    ) -> Result<Option<String>, AdminError> {
        self.catch_up().await?;
        let backing = self.broker.services.backing.clone();
        let as_json = move || {
            let found = read(&*backing)?;
            Some(serde_json::to_string(&found))
        };
        let json = in_turn(&LISTS, as_json).await?.transpose();
        json.map_err(|error| AdminError::Internal(error.to_string()))
    }

    async fn propose(&self, kind: command::command::Kind) -> Result<bool, AdminError> {
        let proposer = &self.broker.services.proposer;
        let reply = proposer.propose(Share::Administration, kind).await?;
        Ok(matches!(reply, Reply::Done))
    }
}

impl From<ProposeError> for AdminError {
    fn from(error: ProposeError) -> AdminError {
        match error {
            ProposeError::Overloaded(_) => AdminError::Overloaded(error.to_string()),
            ProposeError::Lost => AdminError::NoLeader(error.to_string()),
        }
    }
}

/// From where the clients of this node are connected. What is replicated says to which node they are, and no more.
struct Addresses {
    node: NodeId,
    identity: Arc<Identity>,
}

impl Addresses {
    fn of(status: &NodeStatus) -> Addresses {
        Addresses {
            node: status.broker.settings.node,
            identity: status.broker.services.identity.clone(),
        }
    }

    fn address_of(&self, client_id: &str, row: &state::Session) -> Option<IpAddr> {
        let owner = read::owner(row).filter(|owner| owner.node == self.node)?;
        self.identity.address_of(owner.connection, client_id)
    }
}

fn session_status(
    client_id: &str,
    row: &state::Session,
    queue: &state::Queue,
    address: Option<IpAddr>,
) -> SessionStatus {
    let protocol = [Version::V5, Version::V311, Version::V31]
        .into_iter()
        .find(|version| u32::from(version.level()) == row.protocol_level)
        .map_or("", Version::name);
    SessionStatus {
        client_id: client_id.to_owned(),
        node: (row.owner_node != 0).then_some(row.owner_node),
        address,
        protocol: protocol.to_owned(),
        expiry_interval_s: row.expiry_interval_s,
        expires_at_ms: (row.expires_at_ms != 0).then_some(row.expires_at_ms),
        durable: row.durable,
        queued_messages: queue.messages,
        queued_bytes: queue.bytes,
        in_flight: queue.in_flight,
        dropped_messages: queue.dropped,
        has_will: row.has_will,
        owner: Some(row.principal.clone()).filter(|owner| !owner.is_empty()),
    }
}

fn retained_status(topic: &str, row: &state::Retained, whole: bool) -> RetainedStatus {
    let text = std::str::from_utf8(&row.payload).ok();
    let hex = || {
        row.payload
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    RetainedStatus {
        topic: topic.to_owned(),
        qos: row.qos,
        payload_bytes: row.payload.len(),
        expires_at_ms: row.expires_at_ms,
        payload: text.filter(|_| whole).map(str::to_owned),
        payload_hex: (whole && text.is_none()).then(hex),
    }
}

impl Sessions for NodeStatus {
    fn list(&self, page: Page) -> AdminFuture<'_, String> {
        Box::pin(async move {
            let addresses = Addresses::of(self);
            let address_of = move |client_id: &str, row: &_| addresses.address_of(client_id, row);
            let list = move |backing: &dyn Backing| Some(list_sessions(backing, &page, address_of));
            Ok(self.read_list(list).await?.unwrap_or_default())
        })
    }

    fn show(&self, client_id: String) -> AdminFuture<'_, Option<String>> {
        let addresses = Addresses::of(self);
        Box::pin(self.read_list(move |backing| {
            let row = read::session(backing, &client_id)?;
            let mut subscriptions = Vec::new();
            read::subscriptions(backing, row.session_id, |filter, row| {
                subscriptions.push(SubscriptionStatus {
                    filter: filter.to_owned(),
                    qos: row.qos,
                    no_local: row.no_local,
                    retain_as_published: row.retain_as_published,
                    retain_handling: row.retain_handling,
                    identifier: (row.identifier != 0).then_some(row.identifier),
                });
            });
            let queue = read::queue(backing, row.session_id);
            let address = addresses.address_of(&client_id, &row);
            Some(SessionDetail {
                session: session_status(&client_id, &row, &queue, address),
                subscriptions,
            })
        }))
    }

    fn delete(&self, client_id: String) -> AdminFuture<'_, bool> {
        let command = command::DeleteSession { client_id };
        Box::pin(self.propose(command::command::Kind::DeleteSession(command)))
    }

    fn kick(&self, client_id: String) -> AdminFuture<'_, bool> {
        let command = command::Disconnect { client_id };
        Box::pin(self.propose(command::command::Kind::Disconnect(command)))
    }

    fn retained(&self, page: Page) -> AdminFuture<'_, String> {
        Box::pin(async move {
            match Filter::parse(filter_of(&page)) {
                Ok(Filter { share: None, .. }) => {}
                Ok(_) => return Err(AdminError::Invalid("the filter is shared".to_owned())),
                Err(error) => return Err(AdminError::Invalid(error.to_string())),
            }
            let list = move |backing: &dyn Backing| Some(list_retained(backing, &page));
            Ok(self.read_list(list).await?.unwrap_or_default())
        })
    }

    fn retained_message(&self, topic: String) -> AdminFuture<'_, Option<String>> {
        Box::pin(self.read_list(move |backing| {
            let row = read::retained_message(backing, &topic);
            row.map(|row| retained_status(&topic, &row, true))
        }))
    }
}

fn filter_of(page: &Page) -> &str {
    match page.filter.as_str() {
        "" => "#",
        filter => filter,
    }
}

/// What the page after `last` is to go on after: `last`, or if that is too long U+0000 and what it is to begin with,
/// which sorts behind everything that begins like `last`. No name has U+0000. Whatever is passed over so begins with
/// [`LONGEST_NEXT`] bytes of `last`.
fn going_on_after(last: String) -> Option<String> {
    if last.len() <= LONGEST_NEXT {
        return Some(last);
    }
    let mut end = LONGEST_NEXT;
    while !last.is_char_boundary(end) {
        end -= 1;
    }
    let mut characters = last[..end].chars();
    while let Some(character) = characters.next_back() {
        let mut behind = u32::from(character) + 1..=u32::from(char::MAX);
        if let Some(next) = behind.find_map(char::from_u32) {
            return Some(format!("\0{}{next}", characters.as_str()));
        }
    }
    None
}

/// A page of the sessions, whose clients are connected from where `address_of` says.
fn list_sessions(
    backing: &dyn Backing,
    page: &Page,
    address_of: impl Fn(&str, &state::Session) -> Option<IpAddr>,
) -> Listed<SessionStatus> {
    let budget = ListBudget::default();
    let (rows, mut next) =
        read::sessions(backing, &page.after, page.size(), page.connected, budget);
    let mut entries: Vec<SessionStatus> = Vec::new();
    let mut left = PAGE_BYTES;
    for (client_id, row) in &rows {
        if left == 0 {
            next = entries.last().map(|last| last.client_id.clone());
            break;
        }
        left = left.saturating_sub(client_id.len() + row.principal.len());
        let queue = read::queue(backing, row.session_id);
        let address = address_of(client_id, row);
        entries.push(session_status(client_id, row, &queue, address));
    }
    let next = next.and_then(going_on_after);
    Listed { entries, next }
}

/// A page of the retained messages that match a valid, unshared filter.
fn list_retained(backing: &dyn Backing, page: &Page) -> Listed<RetainedStatus> {
    let from = match page.after.strip_prefix('\0') {
        Some(first) => first.as_bytes().to_vec(),
        None if page.after.is_empty() => Vec::new(),
        None => [page.after.as_bytes(), &[0]].concat(),
    };
    let mut entries: Vec<RetainedStatus> = Vec::new();
    let mut next = None;
    let mut left = PAGE_BYTES;
    let budget = ListBudget::default();
    let used_up = read::retained_page(backing, filter_of(page), &from, budget, |topic, row| {
        if entries.len() == page.size() || left == 0 {
            next = entries.last().map(|last| last.topic.clone());
            return false;
        }
        left = left.saturating_sub(topic.len());
        entries.push(retained_status(topic, &row, false));
        true
    });
    let next = next.or(used_up).and_then(going_on_after);
    Listed { entries, next }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use super::*;

    /// A topic may have 65,535 bytes, which may be six times as many in JSON.
    #[test]
    fn a_page_of_long_topics_ends_early_and_the_next_one_goes_on() {
        let long = |number: usize| format!("{number:02}{}", "\u{1}".repeat(60_000));
        let rows = (0..40).map(|number| read::retained_row(&long(number)));
        let rows: BTreeMap<_, _> = rows.collect();
        let (mut page, mut found) = (Page::default(), Vec::new());
        loop {
            let Listed { entries, next } = list_retained(&rows, &page);
            assert!(
                (1..=18).contains(&entries.len()),
                "{} entries",
                entries.len()
            );
            found.extend(entries.into_iter().map(|entry| entry.topic));
            match next {
                Some(next) => page.after = next,
                None => break,
            }
        }
        assert_eq!(found, (0..40).map(long).collect::<Vec<_>>());
    }

    /// They would not fit into the header of the next request.
    #[test]
    fn long_topics_that_begin_alike_do_not_end_a_list() {
        let long = |number: usize| format!("{}{number:02}", "\u{1}".repeat(60_000));
        // What a list is to go on with when the topics before it are passed over.
        let behind = "\u{1}".repeat(LONGEST_NEXT - 1) + "\u{2}";
        let topics = (0..60).map(long).chain([behind.clone(), "z".into()]);
        let rows = topics.map(|topic| read::retained_row(&topic));
        let rows: BTreeMap<_, _> = rows.collect();
        let (mut page, mut found) = (Page::default(), Vec::new());
        loop {
            let Listed { entries, next } = list_retained(&rows, &page);
            found.extend(entries.into_iter().map(|entry| entry.topic));
            let Some(next) = next else { break };
            assert!(next.len() <= LONGEST_NEXT + 1 && next != page.after);
            page.after = next;
        }
        assert_eq!(found[0], long(0));
        assert_eq!(found[found.len() - 2..], [behind.as_str(), "z"]);
    }

    #[test]
    fn what_a_page_goes_on_after_sorts_behind_what_it_has_shown() {
        let long = |character: &str| character.repeat(60_000);
        let short = |length: usize| "\u{1}".repeat(length);
        for (last, expected) in [
            ("a".to_owned(), Some("a".to_owned())),
            (
                short(LONGEST_NEXT + 1),
                Some(format!("\0{}\u{2}", short(LONGEST_NEXT - 1))),
            ),
            // Behind the last one before the surrogates, and where there is none behind.
            (
                short(LONGEST_NEXT - 3) + &long("\u{d7ff}"),
                Some(format!("\0{}\u{e000}", short(LONGEST_NEXT - 3))),
            ),
            (
                short(10) + &long("\u{10ffff}"),
                Some(format!("\0{}\u{2}", short(9))),
            ),
            (long("\u{10ffff}"), None),
        ] {
            let next = going_on_after(last.clone());
            let first = next.as_deref().map(|next| next.trim_start_matches('\0'));
            assert!(first.is_none_or(|first| *first >= *last));
            assert!(next == expected, "{:?}", next.map(|next| next.len()));
        }
    }

    /// A client identifier may be long, too.
    #[test]
    fn a_page_of_long_client_identifiers_ends_early() {
        let long = |number: usize| format!("{number:03}{}", "\u{1}".repeat(6_000));
        let rows = (0..500).map(|number| read::session_row(&long(number)));
        let rows: BTreeMap<_, _> = rows.collect();
        let (mut page, mut found) = (Page::default(), Vec::new());
        loop {
            let Listed { entries, next } = list_sessions(&rows, &page, |_, _| None);
            assert!(entries.len() <= 176, "{} entries", entries.len());
            found.extend(entries.into_iter().map(|entry| entry.client_id));
            match next {
                Some(next) => page.after = next,
                None => break,
            }
        }
        assert_eq!(found, (0..500).map(long).collect::<Vec<_>>());
    }

    static TURNS: Semaphore = Semaphore::const_new(2);

    #[tokio::test]
    async fn who_gives_up_makes_no_room_for_another_thread() {
        let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
        let (held, go_on) = mpsc::channel::<()>();
        let go_on = std::sync::Arc::new(std::sync::Mutex::new(go_on));
        let look = || {
            let (begun, go_on) = (begun.clone(), go_on.clone());
            tokio::spawn(in_turn(&TURNS, move || {
                begun.send(()).expect("the test waits");
                // It ends when nobody holds it any more.
                let _ = go_on.lock().map(|held| held.recv());
            }))
        };
        let given_up = [look(), look()];
        for _ in &given_up {
            begins.recv().await.expect("it begins");
        }
        for one in given_up {
            one.abort();
            assert!(one.await.is_err_and(|error| error.is_cancelled()));
        }
        assert_eq!(TURNS.available_permits(), 0, "both threads are at work");
        let next = look();
        drop(held);
        next.await.expect("it has its turn").expect("it is done");
    }
}
