//! A compact histogram of durations: 64 steps per power of two, so that every quantile is within 1.6 % of the truth.

use std::time::Duration;

/// Steps per power of two, as a power of two.
const PRECISION: u32 = 6;
const STEPS: usize = 1 << PRECISION;
/// Powers of two above the exact range: up to 2^42 ns, more than an hour.
const POWERS: usize = 36;

/// Counts durations by their size.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    total: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; STEPS * (POWERS + 1)].into_boxed_slice(),
            total: 0,
            max_ns: 0,
        }
    }
}

fn index(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - PRECISION;
    let step = (ns >> power) as usize - STEPS;
    (STEPS * (power as usize + 1) + step).min(STEPS * (POWERS + 1) - 1)
}

/// The largest duration that falls into a bucket.
fn upper_ns(index: usize) -> u64 {
    let (power, step) = (index / STEPS, index % STEPS);
    match power {
        0 => step as u64,
        _ => (((STEPS + step + 1) as u64) << (power - 1)) - 1,
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[index(ns)] += 1;
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
        self.max_ns = 0;
    }

    /// Number of durations counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest duration, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// The duration that a share of all (0 to 1) does not exceed, in microseconds; zero when nothing was counted.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_ns(index).min(self.max_ns) as f64 / 1e3;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_two_percent() {
        let mut histogram = Histogram::default();
        for us in 1..=10_000u64 {
            histogram.record(Duration::from_micros(us));
        }
        for (share, expected) in [
            (0.5, 5_000.0),
            (0.99, 9_900.0),
            (0.999, 9_990.0),
            (1.0, 10_000.0),
        ] {
            let found = histogram.quantile_us(share);
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{share}: {found} for {expected}"
            );
        }
        assert_eq!(histogram.max_us(), 10_000.0);
    }

    proptest::proptest! {
        #[test]
        fn every_duration_lies_in_its_bucket(ns in 0..1u64 << 41) {
            let index = index(ns);
            proptest::prop_assert!(ns <= upper_ns(index));
            proptest::prop_assert!(index == 0 || ns > upper_ns(index - 1));
        }
    }

    #[test]
    fn durations_beyond_the_range_are_counted_in_the_last_bucket() {
        let mut histogram = Histogram::default();
        histogram.record(Duration::MAX);
        assert_eq!(histogram.total(), 1);
        assert_eq!(Histogram::default().quantile_us(0.5), 0.0);
    }
}
