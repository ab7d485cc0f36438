//! Reads the files of TLS again: when one has changed, and on SIGHUP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{SignalKind, signal};

use super::expiry::EXPIRES_SOON;
use super::server::{Reload, ServerTls};
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::telemetry::metrics::Metrics;

/// How often the files are looked at. Certificates are renewed days before they expire.
const INTERVAL: Duration = Duration::from_secs(2);

/// Runs until the node stops. Each listener has a task of its own, so that a file system that does not answer keeps no
/// other listener's files from being read. Calls `changed` when clients are judged by something else than before: a
/// renewed certificate of the server alone has no connection verified again.
pub(crate) async fn watch(tls: Arc<ServerTls>, metrics: Arc<Metrics>, changed: impl Fn() + Send) {
    note_expiries(&tls, &metrics);
    let mut hang_up = signal(SignalKind::hangup())
        .inspect_err(|error| tracing::warn!(%error, "SIGHUP can't be caught"))
        .ok();
    loop {
        let hung_up = async {
            match &mut hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        let must = tokio::select! {
            _ = hung_up => true,
            () = tokio::time::sleep(INTERVAL) => false,
        };
        let (files, metrics) = (tls.clone(), metrics.clone());
        // The files may be on a file system that makes its readers wait.
        let read = tokio::task::spawn_blocking(move || reload(&files, must, &metrics));
        // It does not panic, and the runtime ends with the node.
        if let Ok(true) = read.await {
            changed();
        }
    }
}

/// Returns whether clients are judged by something else now.
fn reload(tls: &ServerTls, must: bool, metrics: &Metrics) -> bool {
    let before = tls.loaded();
    match tls.reload(must) {
        Reload::Unchanged => false,
        Reload::Loaded => {
            metrics.certificates_loaded.increment();
            note(tls, Outcome::Accepted, None);
            note_expiries(tls, metrics);
            tracing::info!(files = tls.describe(), "certificates were read again");
            !tls.loaded().judges_as(&before)
        }
        Reload::Failed(error) => {
            metrics.certificates_failed.increment();
            note(tls, Outcome::Failed, Some(&error.to_string()));
            tracing::error!(
                files = tls.describe(),
                %error,
                "certificates can't be read again: those that were read before stay in use"
            );
            false
        }
    }
}

/// Puts it into the audit log: new certificates change whom clients trust, and who is trusted.
fn note(tls: &ServerTls, outcome: Outcome, reason: Option<&str>) {
    audit::record(&Event {
        reason,
        details: &[("files", tls.describe().as_str())],
        ..Event::new(Kind::Certificates, outcome)
    });
}

fn note_expiries(tls: &ServerTls, metrics: &Metrics) {
    for (path, expiry) in &tls.loaded().expiries {
        note_expiry(path, *expiry, metrics);
    }
}

/// Tells when the first certificate of a file expires: in the metric, and in the log if that is soon.
pub(crate) fn note_expiry(path: &Path, expiry: SystemTime, metrics: &Metrics) {
    let path = path.display().to_string();
    let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
    if left < EXPIRES_SOON {
        let days = left.as_secs() / (24 * 3_600);
        tracing::warn!(
            file = path,
            days,
            "a certificate expires soon, or has expired"
        );
    }
    metrics.certificate_expiry_seconds.set(&path, expiry);
}
