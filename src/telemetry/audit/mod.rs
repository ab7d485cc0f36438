//! The audit log: who logged in from where, what was refused and why, and what operators changed, as JSON lines.
//!
//! It is a file of its own (`audit.file`), or off. [`record`] never waits for the disk: a thread writes, its queue is
//! bounded, and `quorumq_audit_dropped_total` counts what it did not take.
//!
//! Invariant: no line holds a secret (see [`Event`]). Invariant: whatever clients do, there is room for what operators
//! do: lines that clients cause have a rate, and a part of the queue is not for them.

mod event;
mod writer;

use std::io;
use std::sync::{Arc, OnceLock};

pub use event::{Event, Kind, Outcome};
use event::{Line, now};
use writer::Sink;

use crate::config::AuditConfig;
use crate::telemetry::metrics::Metrics;

/// The audit log of the process.
struct Audit {
    node: u64,
    sink: Sink,
}

static AUDIT: OnceLock<Audit> = OnceLock::new();

/// Starts the audit log of the whole process, if the configuration asks for one.
///
/// # Errors
/// When its file can't be opened.
pub fn start(node: u64, config: &AuditConfig, metrics: Arc<Metrics>) -> io::Result<()> {
    let Some(path) = &config.file else {
        return Ok(());
    };
    let sink = Sink::start(path, metrics)?;
    let _ = AUDIT.set(Audit { node, sink });
    record(&Event {
        details: &[("version", env!("CARGO_PKG_VERSION"))],
        ..Event::new(Kind::Opened, Outcome::Accepted)
    });
    Ok(())
}

/// Records an event, if there is an audit log.
pub fn record(event: &Event<'_>) {
    let Some(audit) = AUDIT.get() else {
        return;
    };
    audit.sink.record(event.kind, event.outcome, || {
        let line = Line {
            time: now(),
            node: audit.node,
            event,
        };
        line.text()
    });
}

/// Opens the file again under its name: log rotation has moved the former one away.
pub fn reopen() {
    if let Some(audit) = AUDIT.get() {
        audit.sink.reopen();
    }
}

/// Waits until what was recorded is written, for a moment at most.
pub fn flush() {
    if let Some(audit) = AUDIT.get() {
        audit.sink.flush();
    }
}
