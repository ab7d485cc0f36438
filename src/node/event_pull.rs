//! Events for readers who pull them: any node answers, from its own rows.
//!
//! Invariant: an answer sees everything that was acknowledged anywhere before it was asked for.

use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::sessions::in_turn;
use super::status::NodeStatus;
use crate::events::filter::Filter;
use crate::events::kind::is_type;
use crate::events::render;
use crate::http::{AdminError, AdminFuture, Events, Pull, Pulled};
use crate::machine::read_events;
use crate::machine::tables::Backing;

/// Events that are looked at for one answer.
const LOOKED_AT: usize = 10_000;

/// Events that are read at once, and bytes of them.
const PAGE_EVENTS: usize = 1_000;
const PAGE_BYTES: usize = 1 << 20;

/// Pages that are looked at for one answer: a filter that matches nothing reads no more than so many times
/// [`PAGE_BYTES`].
const PAGES: usize = 32;

/// Bytes of events in an answer, about.
const ANSWER_BYTES: usize = 4 << 20;

/// Between two looks of a reader that waits, while events are recorded that it does not want.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// How many look at once, beside those who administrate the node: the threads that block are also those of others.
static LOOKS: Semaphore = Semaphore::const_new(4);

/// Readers that may wait at this node at once. Each holds a connection of the port, of which probes need some.
static WAITING: Semaphore = Semaphore::const_new(128);

/// A place in the outbox as readers keep it: the number of the last event that was looked at.
fn token(number: u64) -> String {
    format!("{number:016x}")
}

fn number(token: &str) -> Result<u64, AdminError> {
    let wrong = || AdminError::Invalid("after is not the token of an answer".to_owned());
    let is_form = token.len() == 16 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(token, 16).map_err(|_| wrong())?;
    is_form.then_some(number).ok_or_else(wrong)
}

/// What one look has found.
struct Found {
    pulled: Pulled,
    /// The last event that was looked at.
    through: u64,
    /// A token of a place that is not yet there.
    is_ahead: bool,
    /// There may be more to look at.
    has_more: bool,
}

fn look(backing: &dyn Backing, filter: &Filter, after: Option<u64>, most: usize) -> Found {
    let numbers = read_events::numbers(backing);
    let oldest = numbers.first.max(1) - 1;
    let from = after.unwrap_or(oldest);
    let mut found = Found {
        pulled: Pulled {
            is_lost: from < oldest,
            ..Pulled::default()
        },
        through: from,
        is_ahead: from > numbers.last,
        has_more: false,
    };
    let Some(settings) = read_events::settings(backing).filter(|_| !found.is_ahead) else {
        return found;
    };
    let mut left = ANSWER_BYTES;
    let (mut looked_at, mut pages) = (0, 0);
    while looked_at < LOOKED_AT && pages < PAGES {
        pages += 1;
        let page = read_events::events(backing, found.through, PAGE_EVENTS, PAGE_BYTES);
        // Numbers have no gaps: what is missing before the page has gone since the last one.
        let begins_at = page.first().map(|(number, _)| *number);
        let gone_before = begins_at.unwrap_or_else(|| read_events::numbers(backing).first);
        found.pulled.is_lost |= gone_before > found.through.saturating_add(1);
        if page.is_empty() {
            // What is not there any more is passed over.
            found.through = found.through.max(numbers.last);
            return found;
        }
        looked_at += page.len();
        for (number, event) in &page {
            if filter.matches(event) {
                if found.pulled.events.len() == most || left == 0 {
                    return found;
                }
                let text = render::cloud_event(&settings, *number, event);
                left = left.saturating_sub(text.len());
                found.pulled.events.push(text);
            }
            found.through = *number;
        }
    }
    found.has_more = true;
    found
}

impl NodeStatus {
    async fn pull_events(&self, pull: Pull) -> Result<Pulled, AdminError> {
        if !pull.r#type.is_empty() && !is_type(&pull.r#type) {
            let text = format!("there is no type {:?}", pull.r#type);
            return Err(AdminError::Invalid(text));
        }
        let types = Some(&pull.r#type).filter(|text| !text.is_empty());
        let filter = Filter::of_types(types.cloned().into_iter().collect(), &pull.subject);
        let mut after = match pull.after.as_str() {
            "" => None,
            text => Some(number(text)?),
        };
        let _place = match pull.wait_s {
            0 => None,
            _ => Some(WAITING.try_acquire().map_err(|_| {
                AdminError::Conflict("too many readers wait at this node".to_owned())
            })?),
        };
        let ends = Instant::now() + Duration::from_secs(pull.wait_s);
        let mut changes = self.broker.services.view.event_changes();
        self.catch_up().await?;
        let mut is_lost = false;
        loop {
            changes.borrow_and_update();
            let (backing, filter) = (self.broker.services.backing.clone(), filter.clone());
            let size = pull.size();
            let looked = move || look(&*backing, &filter, after, size);
            let found = in_turn(&LOOKS, looked).await?;
            if found.is_ahead {
                let text = "after is a token of another cluster, or of what was lost with a backup";
                return Err(AdminError::Invalid(text.to_owned()));
            }
            is_lost |= found.pulled.is_lost;
            let is_over = Instant::now() >= ends;
            if !found.pulled.events.is_empty() || is_over {
                return Ok(Pulled {
                    next: token(found.through),
                    is_lost,
                    ..found.pulled
                });
            }
            after = Some(found.through);
            if !found.has_more {
                // The last look comes when the time is over.
                let _ = tokio::time::timeout_at(ends, changes.changed()).await;
            }
            // Whoever wants nothing of much does not have it all read in one go, either.
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }
}

impl Events for NodeStatus {
    fn pull(&self, pull: Pull) -> AdminFuture<'_, Pulled> {
        Box::pin(self.pull_events(pull))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use bytes::Bytes;
    use parking_lot::Mutex;
    use prost::Message as _;

    use super::*;
    use crate::base::proto::state::{Event, Meta};

    // Keys as `machine::schema` has them.
    const META: u8 = 0x01;
    const EVENT: u8 = 0x51;
    const SETTINGS: u8 = 0x56;

    fn event_key(number: u64) -> Vec<u8> {
        [&[EVENT], &number.to_be_bytes()[..]].concat()
    }

    /// Rows of which the first ones go while a reader is between two pages.
    struct Trimmed {
        rows: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
        first: AtomicU64,
    }

    impl Trimmed {
        fn new(events: u64) -> Trimmed {
            let rows = Trimmed {
                rows: Mutex::default(),
                first: AtomicU64::new(0),
            };
            rows.put_meta(1, events);
            rows.rows.lock().insert(vec![SETTINGS], Vec::new());
            for number in 1..=events {
                let event = Event {
                    kind: 1,
                    sequence: number,
                    ..Event::default()
                };
                let key = event_key(number);
                rows.rows.lock().insert(key, event.encode_to_vec());
            }
            rows
        }

        fn put_meta(&self, first_event: u64, last_event: u64) {
            let meta = Meta {
                first_event,
                last_event,
                ..Meta::default()
            };
            self.rows.lock().insert(vec![META], meta.encode_to_vec());
        }
    }

    impl Backing for Trimmed {
        fn get(&self, key: &[u8]) -> Option<Bytes> {
            Backing::get(&*self.rows.lock(), key)
        }

        fn scan(&self, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
            Backing::scan(&*self.rows.lock(), from, to, visit);
            let first = self.first.load(Ordering::Relaxed);
            if first > 0 {
                let key = event_key(first);
                let is_kept = |other: &Vec<u8>| other[0] != EVENT || *other >= key;
                self.rows.lock().retain(|other, _| is_kept(other));
                self.put_meta(first, 3_000);
            }
        }
    }

    #[test]
    fn what_goes_between_two_pages_is_told() {
        let filter = Filter::of_types(Vec::new(), "");
        let whole = Trimmed::new(3_000);
        let found = look(&whole, &filter, None, 10_000);
        assert!(!found.pulled.is_lost && found.pulled.events.len() == 3_000);
        for (first, events) in [(1_500, 2_501), (3_001, 1_000)] {
            let trimmed = Trimmed::new(3_000);
            trimmed.first.store(first, Ordering::Relaxed);
            let found = look(&trimmed, &filter, None, 10_000);
            assert!(found.pulled.is_lost, "{first}");
            assert_eq!((found.pulled.events.len(), found.through), (events, 3_000));
        }
        // What goes behind a reader is not lost.
        let behind = Trimmed::new(3_000);
        behind.first.store(900, Ordering::Relaxed);
        assert!(!look(&behind, &filter, None, 10_000).pulled.is_lost);
    }

    #[test]
    fn a_token_is_what_was_given_out() {
        for place in [0, 7, u64::MAX] {
            assert_eq!(number(&token(place)).ok(), Some(place));
        }
        for wrong in [
            "",
            "7",
            "+000000000000007",
            "zzzzzzzzzzzzzzzz",
            "00000000000000070",
        ] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
