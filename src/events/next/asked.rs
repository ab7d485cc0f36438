//! What follows from a question to an endpoint: whether it wants events, or whether it is there.

use bytes::Bytes;

use super::Course;
use crate::base::proto::command::EventProgress;
use crate::events::answer::{Consequence, End};
use crate::events::standing::consent_row;
use crate::events::view::{Now, View, set_error};

impl Course {
    /// The endpoint was asked whether it wants events. `given`: it does, at this rate; `None`: it does not, or there is
    /// no answer. `end` is how the request has ended.
    pub fn asked(
        &mut self,
        view: &View<'_>,
        given: Option<Option<u32>>,
        (end, error): (End, &str),
        now: Now,
        random: u32,
    ) -> EventProgress {
        let mut progress = view.no_progress();
        match given {
            Some(rate) => {
                self.up();
                progress.consent = Some(consent_row(view.options, rate, now.log));
                set_error(&mut progress, view, "");
            }
            None => {
                self.not_answered(end, now, random);
                if !view.row.consent.is_empty() {
                    progress.consent = Some(Bytes::new());
                }
                set_error(&mut progress, view, error);
            }
        }
        progress
    }

    /// There is no other new event, so the endpoint was asked something else. If it has answered, the first event is
    /// parked, as it is at fault itself; only what other events are answered shows more than that, so nothing else
    /// follows from it.
    pub fn probed(
        &mut self,
        view: &View<'_>,
        (end, error): (End, &str),
        now: Now,
        random: u32,
    ) -> EventProgress {
        let mut progress = view.no_progress();
        self.doubt.asked();
        let tried = view
            .first
            .and_then(|(first, _)| Some((first, self.tried.last(first)?)));
        let is_at_fault = end.is_from_endpoint() && !view.is_parking_full();
        match tried.filter(|_| is_at_fault) {
            Some((first, last)) => {
                self.up();
                self.doubt.park(&mut progress, first, last, now, random);
                set_error(&mut progress, view, "");
            }
            None => {
                self.not_answered(end, now, random);
                self.prefers_new = false;
                self.tried.excuse(self.doubt.enough());
                set_error(&mut progress, view, error);
            }
        }
        progress
    }

    fn not_answered(&mut self, end: End, now: Now, random: u32) {
        let after = match end.consequence() {
            Consequence::Down(after) => after,
            _ => None,
        };
        self.down(after, now, random);
    }
}
