//! What a deliverer reads for one step: an event subscription, the events that come next, and its first parked one.

use std::sync::Arc;

use crate::base::proto::state::{
    Event, EventSettings, EventSubscription, EventSubscriptionOptions,
};
use crate::events::filter::Filter;
use crate::events::next::{Course, Parked, View};
use crate::events::page::{Looked, Page};
use crate::machine::read_events;
use crate::machine::tables::Backing;

/// Most events that are looked at in one step: twice as many as go with one request.
const PAGE_EVENTS: usize = 10_000;

/// So many are looked at, however few go with one request.
const LEAST_EVENTS: usize = 128;

/// Bytes of them, as many as the largest request has; one larger event is read, too.
const PAGE_BYTES: usize = 1 << 20;

/// How far a deliverer has looked. It is further than the cursor where events are not wanted.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    revision: u64,
    state: u32,
    through: u64,
}

impl Position {
    /// Notes what is asked for. Whether that has changed; then it looks from the cursor on.
    pub(super) fn follow(&mut self, rows: &Rows) -> bool {
        let has_changed = self.revision != rows.row.revision || self.state != rows.row.state;
        if has_changed {
            *self = Position {
                revision: rows.row.revision,
                state: rows.row.state,
                through: 0,
            };
        }
        has_changed
    }
}

/// What was read.
pub(crate) struct Rows {
    /// The name of the event subscription.
    pub(crate) name: String,
    /// What events are rendered with.
    pub(crate) settings: EventSettings,
    /// The event subscription.
    pub(crate) row: EventSubscription,
    options: EventSubscriptionOptions,
    /// New events that are wanted.
    page: Page,
    /// Another one than the first of them, if one was looked for, and found.
    another: Option<(u64, Event)>,
    /// What was looked at for it in vain.
    looked: Option<Looked>,
    newest: u64,
    parked: Option<Parked>,
}

impl Rows {
    /// Reads on a thread of its own; `None` when there is no such event subscription. `sought`: another event is looked
    /// for behind this one.
    pub(super) async fn read(
        backing: Arc<dyn Backing>,
        name: &str,
        position: Position,
        sought: Option<u64>,
    ) -> Option<Rows> {
        let name = name.to_owned();
        let read = move || Rows::of(&*backing, name, &position, sought);
        let read = tokio::task::spawn_blocking(read);
        // It does not panic.
        read.await.ok().flatten()
    }

    /// The same at once.
    pub(super) fn of(
        backing: &dyn Backing,
        name: String,
        position: &Position,
        sought: Option<u64>,
    ) -> Option<Rows> {
        let row = read_events::subscription(backing, &name)?;
        let options = row.options.clone()?;
        let settings = read_events::settings(backing)?;
        let filter = Filter::of(&options);
        let newest = read_events::numbers(backing).last;
        let page = |after, most| {
            let events = read_events::events(backing, after, most, PAGE_BYTES);
            Page::new(events, after, newest, |event| filter.matches(event))
        };
        // Some more than one request takes, because not all may be wanted.
        let most = usize::try_from(options.max_events).unwrap_or(PAGE_EVENTS);
        let most = most.saturating_mul(2).clamp(LEAST_EVENTS, PAGE_EVENTS);
        let new = page(row.through.max(position.through), most);
        let (mut another, mut looked) = (None, None);
        if let Some(after) = sought {
            let behind = page(after, PAGE_EVENTS);
            looked = behind.looked();
            another = behind.other_than(new.wanted().next().map(|(_, event)| event));
        }
        let first = read_events::parked(backing, &name, 1).into_iter().next();
        let parked = first.map(|(due, number, row)| Parked {
            due_ms: due.0,
            number,
            row,
        });
        Some(Rows {
            name,
            settings,
            row,
            options,
            page: new,
            another,
            looked,
            newest,
            parked,
        })
    }

    /// Whether more is to be read before it can be said what to do: nothing of what was read is wanted, or another
    /// event is looked for.
    pub(super) fn reads_on(&self, position: &mut Position, course: &mut Course) -> bool {
        if let Some(looked) = self.page.looked() {
            // What was read is not read again, however often it is looked whether there is more.
            position.through = looked.through;
            if !looked.is_end {
                return true;
            }
        }
        self.looked.is_some_and(|looked| course.looks_on(looked))
    }

    /// New events that are wanted, in the order of the outbox.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (u64, &Event)> {
        self.page.wanted()
    }

    /// Whether it is the one that comes after the first one.
    pub(super) fn is_next(&self, number: u64) -> bool {
        self.wanted().nth(1).is_some_and(|(next, _)| next == number)
    }

    /// The parked event that is due first.
    pub(super) fn parked(&self) -> Option<&Parked> {
        self.parked.as_ref()
    }

    /// The same for one of the events, whose turn it is, by another row.
    pub(super) fn view_of<'a>(
        &'a self,
        row: &'a EventSubscription,
        number: u64,
        event: &'a Event,
    ) -> View<'a> {
        View {
            row,
            skipped: row.through.max(number - 1),
            first: Some((number, event)),
            ..self.view()
        }
    }

    /// What there is to decide by.
    pub(super) fn view(&self) -> View<'_> {
        View {
            name: &self.name,
            row: &self.row,
            options: &self.options,
            skipped: self.page.skipped().max(self.row.through),
            first: self.wanted().next(),
            another: self
                .another
                .as_ref()
                .map(|(number, event)| (*number, event)),
            newest: self.newest,
            parked: self.parked(),
        }
    }
}
