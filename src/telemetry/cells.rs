//! Counters, gauges and histograms that cost one relaxed atomic addition to update.
//!
//! Labels are enums, so a labelled counter is an array and needs no look-up. A connection that handles many messages
//! per wake-up adds them up first and calls `add` once.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Something that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn increment(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Adds `amount`; nothing is written when it is zero.
    pub fn add(&self, amount: u64) {
        if amount > 0 {
            self.0.fetch_add(amount, Relaxed);
        }
    }

    /// The present count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Something that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Replaces the value; what does not fit is shown as the largest number.
    pub fn set(&self, value: u64) {
        self.0
            .store(i64::try_from(value).unwrap_or(i64::MAX), Relaxed);
    }

    /// Adds `amount`, which may be negative.
    pub fn add(&self, amount: i64) {
        self.0.fetch_add(amount, Relaxed);
    }

    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Takes one away.
    pub fn decrement(&self) {
        self.add(-1);
    }

    /// The present value.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// Upper bounds of the buckets of every latency histogram, in microseconds: fine where a good disk commits,
/// coarse where something is wrong.
const BOUNDS_US: [u64; 20] = [
    50, 100, 200, 300, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 20_000, 50_000,
    100_000, 250_000, 500_000, 1_000_000, 5_000_000,
];

/// How long something took, in fixed buckets.
#[derive(Debug, Default)]
pub struct Latency {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Latency {
    /// Records one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Records `times` events that took `duration` each: a batch, for instance.
    pub fn observe_many(&self, duration: Duration, times: u64) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(times, Relaxed);
        self.sum_us.fetch_add(us.saturating_mul(times), Relaxed);
    }

    /// Number of durations recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }
}

/// An enum whose variants are the values of one label.
pub trait Label: Copy + fmt::Debug + 'static {
    /// Name of the label.
    const NAME: &'static str;
    /// Every variant, in the order of [`Label::index`].
    const ALL: &'static [Self];

    /// Position of this variant in [`Label::ALL`].
    fn index(self) -> usize;

    /// Value of the label.
    fn as_str(self) -> &'static str;
}

/// A metric of type `M` for each value of the label `L`.
#[derive(Debug)]
pub struct By<L: Label, M> {
    cells: Box<[M]>,
    label: PhantomData<L>,
}

impl<L: Label, M: Default> Default for By<L, M> {
    fn default() -> Self {
        By {
            cells: L::ALL.iter().map(|_| M::default()).collect(),
            label: PhantomData,
        }
    }
}

impl<L: Label, M> By<L, M> {
    /// The metric for one value of the label.
    pub fn of(&self, label: L) -> &M {
        &self.cells[label.index()]
    }
}

/// A metric of one Raft group; there is one group so far.
#[derive(Debug, Default)]
pub struct Grouped<M>(M);

impl<M> Deref for Grouped<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.0
    }
}

/// Labels of the series that is being written.
pub type Labels = Vec<(&'static str, &'static str)>;

/// What the exposition needs to know of a metric.
pub trait Cell {
    /// `counter`, `gauge` or `histogram`.
    const TYPE: MetricType;

    /// Names of its labels.
    fn labels() -> Vec<&'static str> {
        Vec::new()
    }

    /// Writes every series of this metric; `labels` are those of the metrics around it.
    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result;
}

/// Writes one series with its labels, or without when there are none.
fn series(
    encoder: &mut MetricEncoder<'_>,
    labels: &Labels,
    write: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    if labels.is_empty() {
        write(encoder)
    } else {
        write(&mut encoder.encode_family(labels)?)
    }
}

impl Cell for Counter {
    const TYPE: MetricType = MetricType::Counter;

    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result {
        series(encoder, labels, |encoder| {
            encoder.encode_counter::<NoLabelSet, _, f64>(&self.get(), None)
        })
    }
}

impl Cell for Gauge {
    const TYPE: MetricType = MetricType::Gauge;

    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result {
        series(encoder, labels, |encoder| encoder.encode_gauge(&self.get()))
    }
}

fn histogram(
    encoder: &mut MetricEncoder<'_>,
    counts: &[AtomicU64],
    bounds: impl Iterator<Item = f64>,
    sum: f64,
) -> fmt::Result {
    let buckets: Vec<_> = bounds
        .chain([f64::INFINITY])
        .zip(counts.iter().map(|count| count.load(Relaxed)))
        .collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
}

impl Cell for Latency {
    const TYPE: MetricType = MetricType::Histogram;

    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result {
        let seconds = |us: u64| us as f64 / 1e6;
        let sum = seconds(self.sum_us.load(Relaxed));
        series(encoder, labels, |encoder| {
            let bounds = BOUNDS_US.iter().map(|us| seconds(*us));
            histogram(encoder, &self.buckets, bounds, sum)
        })
    }
}

impl<L: Label, M: Cell> Cell for By<L, M> {
    const TYPE: MetricType = M::TYPE;

    fn labels() -> Vec<&'static str> {
        let mut labels = vec![L::NAME];
        labels.extend(M::labels());
        labels
    }

    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result {
        for label in L::ALL {
            labels.push((L::NAME, label.as_str()));
            self.of(*label).write(encoder, labels)?;
            labels.pop();
        }
        Ok(())
    }
}

impl<M: Cell> Cell for Grouped<M> {
    const TYPE: MetricType = M::TYPE;

    fn labels() -> Vec<&'static str> {
        let mut labels = vec!["group"];
        labels.extend(M::labels());
        labels
    }

    fn write(&self, encoder: &mut MetricEncoder<'_>, labels: &mut Labels) -> fmt::Result {
        labels.push(("group", "0"));
        self.0.write(encoder, labels)?;
        labels.pop();
        Ok(())
    }
}
