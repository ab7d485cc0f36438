//! Events are read page by page, as a deliverer does.

use super::*;
use crate::events::page::Page;

impl Rows {
    fn page(&self, after: u64, most: usize) -> Page {
        let newest = self.outbox.keys().next_back().copied();
        let rows = self.outbox.range(after + 1..).take(most);
        let events = rows.map(|(number, event)| (*number, event.clone()));
        let wants = |event: &Event| !self.unwanted.contains(&event.sequence);
        Page::new(events.collect(), after, newest.unwrap_or_default(), wants)
    }

    /// Reads as a deliverer does: the new events of a page that are wanted, and another one if that is sought.
    pub(super) fn read(&mut self, course: &mut Course) -> (Vec<u64>, Option<u64>) {
        for _ in 0..10_000 {
            let sought = course.seeks();
            let new = self.page(self.row.through.max(self.passed), self.pages.0);
            let behind = sought.map(|after| self.page(after, self.pages.1));
            course.follow(&self.row);
            if let Some(looked) = new.looked().filter(|looked| !looked.is_end) {
                self.passed = looked.through;
                continue;
            }
            let looked = behind.as_ref().and_then(Page::looked);
            if looked.is_some_and(|looked| course.looks_on(looked)) {
                continue;
            }
            let first = new.wanted().next().map(|(_, event)| event);
            let another = behind.and_then(|behind| behind.other_than(first));
            let wanted = new.wanted().map(|(number, _)| number).collect();
            return (wanted, another.map(|(number, _)| number));
        }
        panic!("it reads on for ever");
    }
}
