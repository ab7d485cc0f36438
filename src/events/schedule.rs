//! When a failed request is made again: two schedules, one for an endpoint that is down, one for a parked event.
//!
//! Randomness comes in as a number of 32 random bits, so that the schedules themselves are arithmetic.

/// Seconds between requests to an endpoint that is down; the last step is repeated.
const ENDPOINT_S: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// Seconds between attempts to deliver a parked event; the last step is repeated.
const PARKED_S: [u64; 10] = [10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200];

/// The longest wait that an endpoint can ask for with `Retry-After`, milliseconds.
pub const LONGEST_RETRY_AFTER_MS: u64 = 3_600_000;

/// The part of `span` that `random` stands for: 0 gives nothing, the largest number nearly all of it.
pub(super) fn share(span: u64, random: u32) -> u64 {
    let product = (u128::from(span) * u128::from(random)) >> 32;
    // It is smaller than `span`.
    u64::try_from(product).unwrap_or(span)
}

/// Milliseconds until the next request to an endpoint that has failed `failures` times in a row: a step of the schedule
/// and up to a fifth less or more.
pub fn endpoint_ms(failures: u32, random: u32) -> u64 {
    let step = usize::try_from(failures.saturating_sub(1)).unwrap_or(usize::MAX);
    let step_ms = ENDPOINT_S[step.min(ENDPOINT_S.len() - 1)] * 1_000;
    let fifth = step_ms / 5;
    step_ms - fifth + share(2 * fifth + 1, random)
}

/// Milliseconds until the next attempt to deliver an event that `attempts` attempts have not delivered: a step of the
/// schedule and up to a tenth more.
pub fn parked_ms(attempts: u32, random: u32) -> u64 {
    let step = usize::try_from(attempts.saturating_sub(1)).unwrap_or(usize::MAX);
    let step_ms = PARKED_S[step.min(PARKED_S.len() - 1)] * 1_000;
    step_ms + share(step_ms / 10 + 1, random)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_endpoint_that_is_down_is_asked_ever_less_often_but_once_a_minute() {
        let middle = |failures| endpoint_ms(failures, u32::MAX / 2);
        let steps: Vec<u64> = (1..=8).map(middle).collect();
        assert_eq!(
            steps,
            [1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 60_000, 60_000]
        );
        assert_eq!(
            (endpoint_ms(6, 0), endpoint_ms(6, u32::MAX)),
            (48_000, 72_000)
        );
        assert_eq!(middle(0), 1_000, "no failure is no reason to divide by it");
        assert_eq!(middle(u32::MAX), 60_000);
    }

    #[test]
    fn a_parked_event_is_tried_ten_times_in_a_day_and_then_twice_a_day() {
        let steps: Vec<u64> = (1..=12)
            .map(|attempts| parked_ms(attempts, 0) / 1_000)
            .collect();
        assert_eq!(
            steps,
            [
                10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 43_200, 43_200
            ]
        );
        assert_eq!(parked_ms(1, u32::MAX), 11_000);
    }

    proptest! {
        #[test]
        fn no_wait_leaves_its_bounds(failures in any::<u32>(), random in any::<u32>()) {
            prop_assert!((800..=72_000).contains(&endpoint_ms(failures, random)));
            prop_assert!((10_000..=47_520_000).contains(&parked_ms(failures, random)));
        }
    }
}
