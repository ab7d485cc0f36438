//! The hub of a node: what credentials are judged by, from the files that the configuration names.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::authentication::UsersProblem;
use crate::config::Config;
use crate::connection::hub::shared::Hub;
use crate::login::hub::{HubCredentials, Reread};
use crate::telemetry::audit::{self, Event, Kind, Outcome};
use crate::telemetry::metrics::Metrics;

/// How often the file of the authorities is looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// Reads the files.
///
/// # Errors
/// With everything that is wrong with them.
pub(super) fn load(config: &Config) -> Result<Option<Arc<Hub>>, Vec<UsersProblem>> {
    let credentials = HubCredentials::load(&config.hub).map_err(|problems| {
        let problems = problems.into_iter().map(|problem| UsersProblem {
            key: problem.key,
            path: problem.path,
            line: problem.line,
            message: problem.message,
        });
        problems.collect::<Vec<_>>()
    })?;
    Ok(Hub::new(&config.hub, Arc::new(credentials)))
}

/// Says that devices and modules do without TLS.
pub(super) fn announce(config: &Config) {
    if config.hub.allow_plaintext {
        tracing::warn!(
            "hub.allow_plaintext: devices, modules and back ends need no TLS; this is for tests"
        );
    }
}

/// Keeps the authorities of certificates as their file has them, also on SIGHUP. Runs until the node stops, or ends at
/// once where there is no file.
pub(super) async fn keep_current(credentials: Arc<HubCredentials>, metrics: Arc<Metrics>) {
    let Some(path) = credentials.authorities_file() else {
        return;
    };
    let file = path.display().to_string();
    let mut hang_up = signal(SignalKind::hangup()).ok();
    let mut failed = None;
    loop {
        let hung_up = async {
            match &mut hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hung_up => failed = None,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let read = credentials.clone();
        // The file may be on a file system that makes its readers wait.
        let read = tokio::task::spawn_blocking(move || read.read_authorities_again()).await;
        // It does not panic, and the runtime ends with the node.
        let Ok(read) = read else { return };
        if let Reread::Failed(error) = &read
            && failed.as_ref() != Some(error)
        {
            metrics.certificates_failed.increment();
            note(&file, Outcome::Failed, Some(error));
            tracing::error!(
                %error,
                "the authorities of the hub can't be read again: those that were read before stay in use"
            );
        }
        if read == Reread::Changed {
            metrics.certificates_loaded.increment();
            note(&file, Outcome::Accepted, None);
            tracing::info!(file, "the authorities of the hub were read again");
        }
        failed = match read {
            Reread::Failed(error) => Some(error),
            Reread::Unchanged | Reread::Changed => None,
        };
    }
}

/// Puts it into the audit log: new authorities change who is trusted.
fn note(file: &str, outcome: Outcome, reason: Option<&str>) {
    audit::record(&Event {
        reason,
        details: &[("files", file)],
        ..Event::new(Kind::Certificates, outcome)
    });
}

/// Says when this node's hub is configured with something else than the leader's: a device, or a back end, would be
/// told by one node what it is not told by another.
pub(super) struct HubSettings {
    own: u64,
    differs: AtomicBool,
    metrics: Arc<Metrics>,
}

impl HubSettings {
    /// Of a node whose hub has this digest.
    pub(super) fn new(own: u64, metrics: Arc<Metrics>) -> Arc<HubSettings> {
        Arc::new(HubSettings {
            own,
            differs: AtomicBool::new(false),
            metrics,
        })
    }

    /// The leader has told the digest of its hub; one of an older release tells none.
    pub(super) fn compare(&self, leaders: Option<u64>) {
        let differs = leaders.is_some_and(|leaders| leaders != self.own);
        if self.differs.swap(differs, Ordering::Relaxed) == differs {
            return;
        }
        self.metrics.hub_differs.set(u64::from(differs));
        match differs {
            true => tracing::error!(
                "this node's hub is not the leader's: hub.host_names, hub.max_devices, hub.max_retained and the \
                 policies must be the same on every node"
            ),
            false => tracing::info!("this node's hub is the leader's again"),
        }
    }

    /// This node leads.
    pub(super) fn agrees(&self) {
        self.compare(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_hub_than_the_leaders_is_said_until_they_agree() {
        let metrics = Arc::new(Metrics::default());
        let hub = HubSettings::new(7, metrics.clone());
        let told = [
            (None, 0),
            (Some(7), 0),
            (Some(8), 1),
            (Some(8), 1),
            (Some(7), 0),
            (Some(0), 1),
        ];
        for (leaders, differs) in told {
            hub.compare(leaders);
            assert_eq!(metrics.hub_differs.get(), differs, "{leaders:?}");
        }
        hub.agrees();
        assert_eq!(metrics.hub_differs.get(), 0);
    }
}
