//! Threads with a runtime of their own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::StartError;
use super::listeners::bind_tcp;
use crate::config::SandboxUpstream;
use crate::sandbox::{self, Sandbox};
use crate::upstream::base_url;

/// After so long without work, a thread for blocking work ends.
const BLOCKING_IDLE: Duration = Duration::from_secs(1);

/// A runtime for the thread that will run it.
pub(super) fn runtime() -> Result<Runtime, StartError> {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().thread_keep_alive(BLOCKING_IDLE);
    builder.build().map_err(StartError::system("a runtime"))
}

/// The runtimes of this number of workers; of 0, of one per core.
pub(super) fn workers(configured: u16) -> Result<Vec<Runtime>, StartError> {
    let number = match configured {
        0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        workers => usize::from(workers),
    };
    (0..number).map(|_| runtime()).collect()
}

/// Runs a future on a new thread, and waits for it: the caller's thread may have a runtime.
pub(super) fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> Result<T, StartError> {
    let runtime = runtime()?;
    let done = std::thread::scope(|scope| scope.spawn(move || runtime.block_on(work)).join());
    let done = done.map_err(|_panicked| io::Error::other("it has panicked"));
    done.map_err(StartError::system("a thread"))
}

/// Runs a future, which is made there, on a new thread with this runtime.
pub(super) fn spawn<F: Future<Output = ()>>(
    name: &str,
    runtime: Runtime,
    make: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let spawned = std::thread::Builder::new()
        .name(format!("ordgate-{name}"))
        .spawn(move || {
            runtime.block_on(make());
            // Does not wait for name lookups, which block.
            runtime.shutdown_background();
        });
    spawned.map_err(StartError::system("a thread"))
}

/// Waits until the server stops, or did not start.
pub(super) async fn stopped(mut stop: watch::Receiver<bool>) {
    let _not_started = stop.wait_for(|stop| *stop).await;
}

/// Starts the sandbox on a free port. Returns its URL and content.
pub(super) fn spawn_sandbox(
    sandbox: Sandbox,
    stop: watch::Receiver<bool>,
) -> Result<(SandboxUpstream, JoinHandle<()>), StartError> {
    let settings = &sandbox.settings;
    let content = format!("sandbox {} {}", settings.seed, settings.largest_block).into();
    let free_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (socket, address) = bind_tcp(settings.listen.unwrap_or(free_port))?;
    let serve = move || async move {
        match TcpListener::from_std(socket) {
            Ok(listener) => {
                let served = sandbox
                    .clone()
                    .serve(sandbox::Api::Both, listener, stopped(stop));
                tokio::select! {
                    () = served => {}
                    () = sandbox.add_blocks() => {}
                }
            }
            Err(error) => tracing::error!(%error, "the sandbox's socket cannot be used"),
        }
    };
    let thread = spawn("sandbox", runtime()?, serve)?;
    let url = base_url(&format!("http://{address}")).expect("an address and a port are a host");
    Ok(((url, content), thread))
}
