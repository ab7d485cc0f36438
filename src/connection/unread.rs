//! How long a client may be left unread.
//!
//! Invariant: nothing waits for ever for what follows in the client's stream. Where nothing goes on the connection
//! ends, and so it does some time after the client has gone.

use std::time::Duration;

use tokio::time::Instant;

use super::publish_rate::LEAVING_TIMEOUT;

/// How often the socket of a client that is not read is looked at.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a client is not read although it has to acknowledge something, and nothing goes on.
const STUCK_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// How long a client that has closed its stream is not read. What waits for its rate has come to nothing by then.
const GONE_TIMEOUT: Duration = LEAVING_TIMEOUT.saturating_mul(2);

/// What a client that is not read waited too long for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooLong {
    /// Something that goes on when it acknowledges something, which can't be read.
    Stuck,
    /// It has gone.
    Gone,
}

#[derive(Debug)]
struct Since {
    /// Until when, if the client has gone.
    gone_by: Option<Instant>,
    /// Bytes that were kept for the client when something went on the last time, and when that was.
    kept: (usize, Instant),
}

/// What is known of a client that is not read.
#[derive(Debug, Default)]
pub(super) struct Unread(Option<Box<Since>>);

impl Unread {
    /// The client is read.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// The client is not read, and so many bytes are kept for it. `awaits_client`: something waits for what it has to
    /// acknowledge, and for nothing else. Returns whether it has waited too long.
    pub(super) fn go_on(
        &mut self,
        kept: usize,
        awaits_client: bool,
        is_gone: bool,
        now: Instant,
    ) -> Option<TooLong> {
        let since = self.0.get_or_insert_with(|| {
            Box::new(Since {
                gone_by: None,
                kept: (kept, now),
            })
        });
        if !awaits_client || since.kept.0 != kept {
            since.kept = (kept, now);
        } else if now >= since.kept.1 + STUCK_TIMEOUT {
            return Some(TooLong::Stuck);
        }
        if is_gone && now >= *since.gone_by.get_or_insert(now + GONE_TIMEOUT) {
            return Some(TooLong::Gone);
        }
        None
    }

    /// When it is to be looked at again.
    pub(super) fn look_at(&self) -> Option<Instant> {
        let since = self.0.as_ref();
        since.map(|_| Instant::now() + LOOK_AGAIN_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_stuck_when_nothing_goes_on_that_it_has_to_acknowledge() {
        let (mut unread, begin) = (Unread::default(), Instant::now());
        let at = |part: u32| begin + STUCK_TIMEOUT * part / 4;
        assert_eq!(unread.go_on(7, true, false, at(0)), None);
        assert_eq!(unread.go_on(7, true, false, at(3)), None);
        assert_eq!(unread.go_on(8, true, false, at(4)), None, "it goes on");
        assert_eq!(unread.go_on(8, false, false, at(8)), None, "it need not");
        assert_eq!(unread.go_on(8, true, false, at(11)), None);
        unread.end();
        assert_eq!(unread.go_on(8, true, false, at(12)), None, "it was read");
        assert_eq!(unread.go_on(8, true, false, at(16)), Some(TooLong::Stuck));
    }

    #[test]
    fn a_client_that_has_gone_is_waited_for_no_longer_than_one_that_is_read() {
        let (mut unread, begin) = (Unread::default(), Instant::now());
        let long = begin + 10 * GONE_TIMEOUT;
        assert_eq!(unread.go_on(7, false, false, begin), None);
        assert_eq!(unread.go_on(7, false, true, long), None, "it has just gone");
        let early = long + LEAVING_TIMEOUT;
        assert_eq!(unread.go_on(7, false, true, early), None);
        let late = long + GONE_TIMEOUT;
        assert_eq!(unread.go_on(7, false, true, late), Some(TooLong::Gone));
    }
}
