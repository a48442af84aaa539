//! A process that has started while another one used the state directory uses it as soon
//! as that one has ended.

use std::io;
use std::time::Duration;

use tokio::sync::watch;

use super::{StartError, threads};
use crate::gateway::Gateway;
use crate::listener::Current;
use crate::state_dir::StateDirError;

/// How often it is looked whether the other process has ended.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
enum TakeOverError {
    #[error(transparent)]
    Directory(#[from] StateDirError),
    #[error("there is no thread for the spend journal: {0}")]
    Journal(#[from] io::Error),
}

/// Starts the thread that waits for the other process, if there is one. Nothing waits for
/// the thread at the end, since it may wait for a disk that hangs.
///
/// # Errors
/// Where there is no thread.
pub(super) fn spawn(current: Current, mut stop: watch::Receiver<bool>) -> Result<(), StartError> {
    if !current.load().state.is_missing() {
        return Ok(());
    }
    let work = async move {
        tokio::select! {
            () = wait(current) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    };
    threads::spawn("state", threads::current_thread()?, work)?;
    Ok(())
}

async fn wait(current: Current) {
    let mut has_failed = false;
    while current.load().state.is_missing() {
        tokio::time::sleep(ATTEMPT_EVERY).await;
        match take_over(&current.load_full()) {
            Ok(()) => has_failed = false,
            Err(error) if has_failed => tracing::debug!(%error, "it cannot be used still"),
            Err(error) => {
                has_failed = true;
                tracing::error!(%error, "the state directory of another process cannot be used: it is tried again each second");
            }
        }
    }
}

/// Uses the state directory, if the other process has ended. It waits for the disk.
fn take_over(gateway: &Gateway) -> Result<(), TakeOverError> {
    let state = &gateway.state;
    let Some(directory) = state.open_late()? else {
        return Ok(());
    };
    // The budget first: what the other process has spent counts before anything else.
    let clock = gateway.clock.clone();
    gateway.upstreams.begin_journal(directory.clone(), clock)?;
    tracing::info!(
        path = %directory.path().display(),
        "the process that used the state directory has ended: this one uses it now"
    );
    state.set(directory);
    gateway.fill.disk.open();
    Ok(())
}
