//! Latencies of a run: an HDR histogram of nanoseconds.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency that is told apart; a longer one counts as this.
const LONGEST_NS: u64 = 3_600_000_000_000;
/// Significant digits: every quantile is within 0.1 % of the truth.
const DIGITS: u8 = 3;

/// Counts latencies by their size.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        let histogram = Histogram::new_with_max(LONGEST_NS, DIGITS);
        Latencies(histogram.expect("an hour with three digits is within the histogram's bounds"))
    }
}

impl Latencies {
    /// Counts one latency.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record(ns);
    }

    /// Forgets all latencies and keeps the memory.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Number of latencies.
    pub fn total(&self) -> u64 {
        self.0.len()
    }

    /// The latency that a share of all (0 to 1) does not exceed, in microseconds; zero when there is none.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }

    /// The longest latency, in microseconds.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_thousandth() {
        let mut latencies = Latencies::default();
        for us in 1..=10_000u64 {
            latencies.record(Duration::from_micros(us));
        }
        assert_eq!(latencies.total(), 10_000);
        for (share, expected) in [
            (0.5, 5_000.0),
            (0.99, 9_900.0),
            (0.999, 9_990.0),
            (1.0, 10_000.0),
        ] {
            let found = latencies.quantile_us(share);
            assert!(
                (found / expected - 1.0).abs() < 0.001,
                "{share}: {found} for {expected}"
            );
        }
        assert!((latencies.max_us() / 10_000.0 - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_latency_beyond_the_range_counts_as_the_longest() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_us(0.5), 0.0);
        latencies.record(Duration::MAX);
        assert_eq!(latencies.total(), 1);
        assert!(latencies.max_us() >= LONGEST_NS as f64 / 1e3);
        latencies.clear();
        assert_eq!(latencies.total(), 0);
    }
}
