//! Figures about event subscriptions that every node reads from its rows.

use std::sync::Arc;
use std::time::Duration;

use crate::base::time::Millis;
use crate::events::filter::Filter;
use crate::events::standing::Standing;
use crate::machine::read_events;
use crate::machine::tables::Backing;
use crate::replica::clock::Clock;
use crate::telemetry::cells::Label as _;
use crate::telemetry::metrics::Metrics;

/// How often they are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Events that are looked at for the first that an event subscription wants. The deliverer says in the log soon how far
/// it has passed over others.
const LOOKED_AT: usize = 256;

/// Bytes of them.
const LOOKED_AT_BYTES: usize = 256 << 10;

#[derive(Default)]
struct Figures {
    /// When the oldest event was recorded that one still waits for.
    oldest: Option<u64>,
    standings: [u64; Standing::ALL.len()],
}

fn read(backing: &dyn Backing, now: Millis) -> Figures {
    let mut figures = Figures::default();
    for (_, row) in read_events::subscriptions(backing) {
        let Some(options) = &row.options else {
            continue;
        };
        figures.standings[Standing::of(&row, options, now).index()] += 1;
        let filter = Filter::of(options);
        let events = read_events::events(backing, row.through, LOOKED_AT, LOOKED_AT_BYTES);
        let first = events.iter().find(|(_, event)| filter.matches(event));
        let waits_since = first.map(|(_, event)| event.time_ms);
        figures.oldest = figures.oldest.into_iter().chain(waits_since).min();
    }
    figures
}

/// Runs until the node stops.
pub(crate) async fn keep_gauges(
    backing: Arc<dyn Backing>,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
) {
    loop {
        let (backing, now) = (backing.clone(), clock.now());
        let figures = tokio::task::spawn_blocking(move || read(&*backing, now)).await;
        let figures = figures.unwrap_or_default();
        for standing in Standing::ALL {
            let count = figures.standings[standing.index()];
            metrics.event_subscriptions.of(standing).set(count);
        }
        let oldest = figures.oldest.map_or(now, Millis);
        metrics.event_lag_seconds.set(now.since(oldest) / 1_000);
        tokio::time::sleep(INTERVAL).await;
    }
}
