//! Rates that are kept by waiting: nothing is refused or dropped.

use std::time::{Duration, Instant};

/// A bucket that fills with `rate` tokens per second and holds those of one second. It may be overdrawn; whoever has
/// overdrawn it waits until it is full enough again.
///
/// Invariant: over any time the tokens spent are at most the rate times that time, plus one second's worth, plus what
/// the last one took at once.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    /// When the bucket was last looked at, and tokens that were missing then.
    missing: Option<(Instant, f64)>,
}

impl TokenBucket {
    /// Takes tokens and returns how long to wait before the next ones. A rate of 0 is no bound.
    pub(super) fn take(&mut self, tokens: u64, rate: u64, now: Instant) -> Duration {
        if rate == 0 {
            return Duration::ZERO;
        }
        let rate = rate as f64;
        let missing = match self.missing {
            None => 0.0,
            Some((since, missing)) => {
                let filled = now.saturating_duration_since(since).as_secs_f64() * rate;
                (missing - filled).max(0.0)
            }
        };
        let missing = missing + tokens as f64;
        self.missing = Some((now, missing));
        Duration::try_from_secs_f64((missing / rate - 1.0).max(0.0)).unwrap_or(Duration::MAX)
    }
}

/// The lower of two rates, of which 0 is no bound.
pub(super) fn lower<T: Ord + Default>(one: T, other: T) -> T {
    let none = T::default();
    match one == none || (other != none && other < one) {
        true => other,
        false => one,
    }
}

/// The rates of one client, in one direction.
#[derive(Debug)]
pub(super) struct ClientRate {
    messages_per_s: u64,
    bytes_per_s: u64,
    messages: TokenBucket,
    bytes: TokenBucket,
    /// Messages that had passed when it was last looked at.
    seen: u64,
    /// Nothing passes before.
    until: Option<Instant>,
}

impl ClientRate {
    /// `None` when nothing is bounded.
    pub(super) fn new((messages_per_s, bytes_per_s): (u32, u64)) -> Option<ClientRate> {
        let rate = ClientRate {
            messages_per_s: messages_per_s.into(),
            bytes_per_s,
            messages: TokenBucket::default(),
            bytes: TokenBucket::default(),
            seen: 0,
            until: None,
        };
        (messages_per_s > 0 || bytes_per_s > 0).then_some(rate)
    }

    /// `messages` have passed since the beginning, and `bytes` more.
    pub(super) fn passed(&mut self, messages: u64, bytes: u64, now: Instant) {
        let new = messages - std::mem::replace(&mut self.seen, messages);
        self.take(new, bytes, now);
    }

    fn take(&mut self, new: u64, bytes: u64, now: Instant) {
        let messages = self.messages.take(new, self.messages_per_s, now);
        let bytes = self.bytes.take(bytes, self.bytes_per_s, now);
        let wait = messages.max(bytes);
        self.until = (wait > SHORTEST_PAUSE).then(|| now + wait.min(LONGEST_PAUSE));
    }

    /// When more may pass; `None` when it may now.
    pub(super) fn paused_until(&mut self, now: Instant) -> Option<Instant> {
        if self.until? <= now {
            // It may have been overdrawn for longer than the longest pause.
            self.take(0, 0, now);
        }
        self.until
    }
}

/// The rates of one client.
#[derive(Debug)]
pub(super) struct ClientRates {
    /// Of the bytes that it sends; the rate of its messages is kept by [`super::input`].
    pub(super) received: Option<ClientRate>,
    /// Of what it is sent.
    pub(super) sent: Option<ClientRate>,
    /// The client leaves; until when it is read at its rate.
    leaves_by: Option<Instant>,
    /// It was read beyond its rate, and has not made up for it.
    owes: bool,
    /// What it is to be sent was not looked at the last time.
    pub(super) was_held_back: bool,
}

impl ClientRates {
    /// `None` when nothing is bounded. The rate of what is sent is of messages and bytes per second.
    pub(super) fn new(received_bytes: u64, sent: (u32, u64)) -> Option<Box<ClientRates>> {
        let rates = ClientRates {
            received: ClientRate::new((0, received_bytes)),
            sent: ClientRate::new(sent),
            leaves_by: None,
            owes: false,
            was_held_back: false,
        };
        (rates.received.is_some() || rates.sent.is_some()).then(|| Box::new(rates))
    }

    /// Whether what the client has sent may be read at once, whatever its rate: not again before it has made up for
    /// the last time.
    pub(super) fn may_be_read_at_once(&mut self, now: Instant) -> bool {
        self.paused_until(now);
        !self.owes
    }

    /// What the client had sent was read at once.
    pub(super) fn was_read_at_once(&mut self, now: Instant) {
        self.owes = true;
        self.paused_until(now);
    }

    /// Until when the client is not read.
    pub(super) fn paused_until(&mut self, now: Instant) -> Option<Instant> {
        let received = self.received.as_mut();
        let until = received.and_then(|rate| rate.paused_until(now));
        self.owes &= until.is_some();
        until
    }

    /// The client has closed its half of the stream: after `within`, what it has sent is read at any rate.
    pub(super) fn leave(&mut self, within: Duration, now: Instant) {
        if now >= *self.leaves_by.get_or_insert(now + within) {
            self.received = None;
        }
    }
}

/// What waits for less goes on at once, and all of it waits a little later: timers are not as exact.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// After this a pause is looked at again, which may last longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_may_come_at_once_and_then_the_rate_is_kept() {
        let start = Instant::now();
        let mut bucket = TokenBucket::default();
        assert_eq!(bucket.take(10, 10, start), Duration::ZERO);
        let wait = bucket.take(5, 10, start);
        assert_eq!(wait, Duration::from_millis(500));
        assert_eq!(bucket.take(0, 10, start + wait), Duration::ZERO);
        let mut sent = 15;
        let mut now = start + wait;
        while now < start + Duration::from_secs(20) {
            sent += 1;
            now += bucket.take(1, 10, now).max(Duration::from_millis(1));
        }
        assert!((205..=215).contains(&sent), "{sent} in 20 s");
        assert_eq!(bucket.take(u64::MAX, 0, now), Duration::ZERO, "no bound");
    }

    #[test]
    fn whoever_leaves_is_read_at_its_rate_for_a_while() {
        let mut rates = ClientRates::new(1_000, (0, 0)).expect("bounded");
        let (start, within) = (Instant::now(), Duration::from_secs(30));
        rates.leave(within, start);
        rates.leave(within, start + within / 2);
        assert!(rates.received.is_some());
        rates.leave(within, start + within);
        assert!(rates.received.is_none());
    }

    #[test]
    fn who_was_read_at_once_is_not_again_before_it_has_made_up_for_it() {
        let mut rates = ClientRates::new(1_000, (0, 0)).expect("bounded");
        let start = Instant::now();
        assert!(rates.may_be_read_at_once(start));
        let received = rates.received.as_mut().expect("bounded");
        received.passed(0, 11_000, start);
        rates.was_read_at_once(start);
        let made_up = start + Duration::from_secs(10);
        assert!(!rates.may_be_read_at_once(made_up - Duration::from_millis(10)));
        assert!(rates.may_be_read_at_once(made_up));
    }

    /// What was read at once, or sent, may be worth more than the longest pause.
    #[test]
    fn a_low_rate_is_kept() {
        let mut rates = ClientRates::new(100, (0, 0)).expect("bounded");
        let start = Instant::now();
        rates
            .received
            .as_mut()
            .expect("bounded")
            .passed(0, 100_000, start);
        rates.was_read_at_once(start);
        let mut now = start;
        while let Some(until) = rates.paused_until(now) {
            assert!(until > now && !rates.may_be_read_at_once(now));
            now = until;
        }
        let passed = now - start;
        assert!(
            passed.abs_diff(Duration::from_secs(999)) < Duration::from_secs(1),
            "{passed:?}"
        );
        assert!(rates.may_be_read_at_once(now));
    }

    #[test]
    fn a_client_is_paused_by_the_rate_that_it_exceeds_most() {
        assert!(ClientRate::new((0, 0)).is_none());
        let start = Instant::now();
        let mut rate = ClientRate::new((10, 1_000)).expect("bounded");
        rate.passed(5, 500, start);
        assert_eq!(rate.paused_until(start), None);
        rate.passed(6, 2_500, start);
        let until = start + Duration::from_secs(2);
        assert_eq!(rate.paused_until(start), Some(until));
        assert_eq!(rate.paused_until(until), None);
    }
}
