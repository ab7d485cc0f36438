//! What becomes of a will when its connection ends (MQTT 5, 3.1.2.5 and 3.1.3.2.2).
//!
//! Every end of a connection goes through [`at_close`] exactly once, in the log; a delayed will is a timer of the
//! session's, which resuming the session cancels. So a will is published once or not at all, whichever node dies.

use crate::time::Millis;

/// A session expiry interval that means "never" (MQTT 5, 3.1.2.11.2).
pub const NEVER_EXPIRES: u32 = u32::MAX;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// DISCONNECT 0x00 `[MQTT-3.14.4-3]`; the only way that discards the will.
    Normal,
    /// Any other way: DISCONNECT 0x04 or an error code, a lost connection, a keep-alive that ran out, a dead node.
    Other,
    /// Another connection took the session over.
    TakenOver {
        /// The new connection starts clean, or the session ends with the old one: it isn't resumed.
        ends_session: bool,
    },
}

/// What becomes of the will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is dropped unpublished.
    Discard,
    /// It is published now.
    Publish,
    /// It is published at this time, unless the session is resumed before; sooner if the session ends before.
    PublishAt(Millis),
}

/// Judges the will of a connection that ends at `now`. `delay_s` is the will delay interval, `expiry_interval_s` the
/// session expiry interval as it is now.
pub fn at_close(close: Close, delay_s: u32, expiry_interval_s: u32, now: Millis) -> Fate {
    match close {
        Close::Normal => Fate::Discard,
        // The session ends: its delayed will is due with it.
        Close::TakenOver { ends_session: true } => Fate::Publish,
        // A delayed will is cancelled by a new connection to the session, one without delay is not.
        Close::TakenOver {
            ends_session: false,
        } if delay_s > 0 => Fate::Discard,
        Close::TakenOver { .. } => Fate::Publish,
        Close::Other => {
            let wait_s = if expiry_interval_s == NEVER_EXPIRES {
                delay_s
            } else {
                delay_s.min(expiry_interval_s)
            };
            if wait_s == 0 {
                Fate::Publish
            } else {
                Fate::PublishAt(now.plus(u64::from(wait_s) * 1000))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(5_000);

    #[test]
    fn mqtt_3_14_4_3_a_normal_disconnect_drops_the_will() {
        assert_eq!(at_close(Close::Normal, 0, 0, NOW), Fate::Discard);
        assert_eq!(at_close(Close::Normal, 9, 9, NOW), Fate::Discard);
    }

    #[test]
    fn a_will_without_delay_is_published_at_once() {
        assert_eq!(at_close(Close::Other, 0, 60, NOW), Fate::Publish);
    }

    #[test]
    fn a_delayed_will_waits_for_its_delay_or_the_end_of_the_session() {
        let at = |ms| Fate::PublishAt(Millis(ms));
        assert_eq!(at_close(Close::Other, 10, 60, NOW), at(15_000));
        assert_eq!(at_close(Close::Other, 60, 10, NOW), at(15_000));
        assert_eq!(at_close(Close::Other, 60, NEVER_EXPIRES, NOW), at(65_000));
        assert_eq!(
            at_close(Close::Other, NEVER_EXPIRES, NEVER_EXPIRES, NOW),
            at(5_000 + u64::from(u32::MAX) * 1000)
        );
        assert_eq!(
            at_close(Close::Other, 60, 0, NOW),
            Fate::Publish,
            "the session ends with its connection"
        );
    }

    #[test]
    fn a_take_over_cancels_a_delayed_will_only_when_it_resumes_the_session() {
        let taken =
            |ends_session, delay_s| at_close(Close::TakenOver { ends_session }, delay_s, 60, NOW);
        assert_eq!(taken(false, 10), Fate::Discard);
        assert_eq!(taken(false, 0), Fate::Publish);
        assert_eq!(taken(true, 10), Fate::Publish);
        assert_eq!(taken(true, 0), Fate::Publish);
    }
}
