//! A page of the outbox, and what an event subscription wants of it.
//!
//! Invariant: an event that is wanted may be any number of pages behind the one before it, so a page without one says
//! nothing of what comes later. Whoever reads goes on until a page holds one, or has the newest event.

use crate::base::proto::state::Event;

/// Events as they were read from the outbox, in order, without those that are not wanted.
#[derive(Clone, Debug, Default)]
pub struct Page {
    wanted: Vec<(u64, Event)>,
    last: u64,
    has_more: bool,
}

/// What was looked at, and holds nothing that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The last event of it.
    pub through: u64,
    /// There are none behind it.
    pub is_end: bool,
}

impl Page {
    /// The events that were read after a number, while the newest one was this.
    pub fn new(
        events: Vec<(u64, Event)>,
        after: u64,
        newest: u64,
        wants: impl Fn(&Event) -> bool,
    ) -> Page {
        // Where nothing is left after the number, what was there has gone.
        let last = events
            .last()
            .map_or(after.max(newest), |(number, _)| *number);
        Page {
            wanted: events
                .into_iter()
                .filter(|(_, event)| wants(event))
                .collect(),
            last,
            has_more: last < newest,
        }
    }

    /// What is wanted, in order.
    pub fn wanted(&self) -> impl Iterator<Item = (u64, &Event)> {
        self.wanted.iter().map(|(number, event)| (*number, event))
    }

    /// Up to this one nothing is wanted.
    pub fn skipped(&self) -> u64 {
        self.wanted
            .first()
            .map_or(self.last, |(first, _)| first - 1)
    }

    /// What was looked at; `None` where something is wanted.
    pub fn looked(&self) -> Option<Looked> {
        self.wanted.is_empty().then_some(Looked {
            through: self.last,
            is_end: !self.has_more,
        })
    }

    /// The event that shows best whether an endpoint answers anything but this one: the first one of another client,
    /// because whatever is wrong with an event mostly comes from the names in it, and one client makes as many of them
    /// as it likes; otherwise the first one.
    pub fn other_than(mut self, suspect: Option<&Event>) -> Option<(u64, Event)> {
        let is_other = |event: &Event| suspect.is_none_or(|suspect| suspect.name != event.name);
        let other = self.wanted.iter().position(|(_, event)| is_other(event));
        let place = other.unwrap_or_default();
        (place < self.wanted.len()).then(|| self.wanted.swap_remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> Event {
        Event {
            name: name.to_owned(),
            ..Event::default()
        }
    }

    fn page(names: &[&str], newest: u64) -> Page {
        let events = (11..).zip(names.iter().map(|name| event(name))).collect();
        Page::new(events, 10, newest, |event| event.name != "unwanted")
    }

    #[test]
    fn a_page_says_how_far_it_goes() {
        let looked = |through, is_end| Some(Looked { through, is_end });
        let unwanted = ["unwanted", "unwanted"];
        assert_eq!(page(&unwanted, 13).looked(), looked(12, false));
        assert_eq!(page(&unwanted, 12).looked(), looked(12, true));
        assert_eq!(
            page(&[], 20).looked(),
            looked(20, true),
            "what was there has gone"
        );
        let wanted = page(&["unwanted", "a", "b"], 40);
        assert_eq!((wanted.looked(), wanted.skipped()), (None, 11));
        assert_eq!(page(&unwanted, 40).skipped(), 12);
    }

    #[test]
    fn the_first_event_of_another_client_is_preferred() {
        let numbers = |names: &[&str]| {
            let found = page(names, 40).other_than(Some(&event("a")));
            found.map(|(number, _)| number)
        };
        assert_eq!(numbers(&["a", "unwanted", "b", "c"]), Some(13));
        assert_eq!(numbers(&["unwanted", "a", "a"]), Some(12));
        assert_eq!(numbers(&["unwanted"]), None);
    }
}
