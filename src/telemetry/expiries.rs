//! A metric of the time that is left to certificates, one series per file.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use parking_lot::Mutex;
use prometheus_client::encoding::MetricEncoder;
use prometheus_client::metrics::MetricType;

use super::cells::{Cell, Labels};

/// Files and when the first certificate of each expires. The files are those of the configuration, so they are few.
#[derive(Debug, Default)]
pub struct Expiries(Mutex<BTreeMap<String, SystemTime>>);

impl Expiries {
    /// Sets when the first certificate of a file expires.
    pub fn set(&self, file: &str, expiry: SystemTime) {
        self.0.lock().insert(file.to_owned(), expiry);
    }
}

fn seconds_left(expiry: SystemTime, now: SystemTime) -> i64 {
    let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match expiry.duration_since(now) {
        Ok(left) => whole(left.as_secs()),
        Err(past) => -whole(past.duration().as_secs()),
    }
}

impl Cell for Expiries {
    const TYPE: MetricType = MetricType::Gauge;

    fn labels() -> Vec<&'static str> {
        vec!["file"]
    }

    fn write(&self, encoder: &mut MetricEncoder<'_>, _: &mut Labels) -> fmt::Result {
        let now = SystemTime::now();
        for (file, expiry) in self.0.lock().iter() {
            let labels = [("file", file.as_str())];
            let mut series = encoder.encode_family(&labels)?;
            series.encode_gauge(&seconds_left(*expiry, now))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn each_file_has_its_series() {
        let metrics = Arc::new(Metrics::default());
        let past = SystemTime::now() - Duration::from_secs(3_600);
        metrics.certificate_expiry_seconds.set("a.pem", past);
        let text = metrics.render();
        assert!(text.contains("quorumq_certificate_expiry_seconds{file=\"a.pem\"} -360"));
        let now = SystemTime::now();
        assert_eq!(seconds_left(now + Duration::from_secs(90), now), 90);
    }
}
