//! The process: its threads, its limits, and its signals.

use tokio::runtime::{Handle, Runtime};

use super::error::RunError;

/// A runtime of its own threads. Replication has a separate one: it works in many small steps that wait for each other,
/// and clients' work between two of them would delay every commit, and heartbeats too.
pub(super) fn threads(name: &str, count: usize) -> Result<Runtime, RunError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(count)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)
}

/// Runs `task` on `runtime`, which then drives the sockets that the task opens.
pub(super) async fn on<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = Result<T, RunError>> + Send + 'static,
) -> Result<T, RunError> {
    let ended = runtime.spawn(task).await;
    ended.map_err(|error| RunError::Runtime(error.into()))?
}

/// Raises the limit of open files to what the system allows. Every connection needs one, and the default is often
/// 1,024.
pub(super) fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Keeps what the process makes from here on to its own user: clients' messages, snapshots, logs of events.
pub(super) fn keep_files_private() {
    use rustix::fs::Mode;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Waits until the process is asked to stop.
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

/// Does `work` at each SIGHUP, which log rotation sends and which otherwise ends the process.
pub(super) fn on_hang_up(work: fn()) {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hang_up = match signal(SignalKind::hangup()) {
        Ok(hang_up) => hang_up,
        Err(error) => {
            tracing::warn!(%error, "SIGHUP can't be caught");
            return;
        }
    };
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            let _ = tokio::task::spawn_blocking(work).await;
        }
    });
}
