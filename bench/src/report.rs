//! The figures of a run, as a row of a table or as JSON.

use std::time::Duration;

use quorumq::cli::exit::Outcome;
use quorumq::cli::output::{self, Format};
use serde_json::{Map, Value, json};

use crate::latency::Latencies;

/// One measured run.
pub struct Report {
    /// Name of the mode.
    pub mode: String,
    /// Connections that did it.
    pub clients: usize,
    /// Measured time, without the warm-up.
    pub elapsed: Duration,
    /// Operations that were completed.
    pub operations: u64,
    /// Their latencies.
    pub latency: Latencies,
    /// Answers that were errors.
    pub errors: u64,
    /// Figures that only this mode has.
    pub extra: Vec<(&'static str, Value)>,
}

impl Report {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("mode".into(), self.mode.as_str().into());
        object.insert("clients".into(), self.clients.into());
        object.insert(
            "seconds".into(),
            round(self.elapsed.as_secs_f64(), 3).into(),
        );
        object.insert("operations".into(), self.operations.into());
        object.insert("per_second".into(), round(self.rate(), 1).into());
        object.insert("errors".into(), self.errors.into());
        if self.latency.total() > 0 {
            object.insert(
                "latency_us".into(),
                json!({
                    "p50": round(self.latency.quantile_us(0.5), 1),
                    "p99": round(self.latency.quantile_us(0.99), 1),
                    "p99.9": round(self.latency.quantile_us(0.999), 1),
                    "max": round(self.latency.max_us(), 1),
                }),
            );
        }
        for (name, value) in &self.extra {
            object.insert((*name).into(), value.clone());
        }
        Value::Object(object)
    }

    fn row(&self) -> Vec<String> {
        let latency = |share| match self.latency.total() {
            0 => "-".to_owned(),
            _ => format!("{:.0}", self.latency.quantile_us(share)),
        };
        let extra: Vec<_> = self
            .extra
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        vec![
            self.mode.clone(),
            self.clients.to_string(),
            format!("{:.0}", self.rate()),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            latency(1.0),
            self.errors.to_string(),
            extra.join(" "),
        ]
    }
}

/// Rounds to some decimal digits.
pub fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// Writes all reports to standard output.
pub fn write(reports: &[Report], format: Format) -> Outcome {
    match format {
        Format::Json => {
            for report in reports {
                output::json(&report.json())?;
            }
        }
        Format::Table => {
            let head = [
                "MODE",
                "CLIENTS",
                "PER SECOND",
                "P50 US",
                "P99 US",
                "P99.9 US",
                "MAX US",
                "ERRORS",
                "MORE",
            ];
            let rows: Vec<_> = reports.iter().map(Report::row).collect();
            output::table(&head, &rows)?;
        }
    }
    Ok(())
}
