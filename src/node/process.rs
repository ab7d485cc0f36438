//! The process: its threads, its limits, and its signals.

use tokio::runtime::{Handle, Runtime};

use super::RunError;

/// Replication has a thread of its own: it does little, in many small steps that wait for each other, and a burst of
/// clients' work between two of them would delay every commit, and heartbeats too.
pub(super) fn threads(name: &str, count: usize) -> Result<Runtime, RunError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(count)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)
}

/// Runs `task` on `runtime`: what it opens is driven there.
pub(super) async fn on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = Result<T, RunError>> + Send + 'static,
) -> Result<T, RunError> {
    let ended = runtime.spawn(task).await;
    ended.map_err(|error| RunError::Runtime(error.into()))?
}

/// Every connection is a descriptor; the soft limit is often 1,024.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Until the process is asked to end.
pub(super) async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "SIGTERM can't be caught");
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
