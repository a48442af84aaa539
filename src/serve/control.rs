//! The control thread: the admin listener with its history, probes of tips and
//! endpoints, what other replicas purge, and periodic maintenance.

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::Listeners;
use super::threads::stopped;
use crate::admin::Admin;
use crate::fill;
use crate::listener::Current;
use crate::probe;

/// How often unused clients and entries are removed, and the system's clock is
/// followed.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
/// After so many rounds of maintenance the files of certificates are read again.
const CERTIFICATE_ROUNDS: u64 = 12;

/// Runs until the server stops. `changes` changes with each new gateway.
pub(super) async fn run(
    socket: StdListener,
    admin: Arc<Admin>,
    listeners: Arc<Listeners>,
    changes: watch::Receiver<()>,
    stop: watch::Receiver<bool>,
) {
    let listener = match TcpListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the admin socket cannot be used"),
    };
    let (current, history) = (admin.current.clone(), admin.history.clone());
    // Each time on a new thread, since the runtime's threads end when they have had nothing to do
    // for a second: it reads the whole store, or files, and this runtime must keep answering the
    // operator. The thread's end also makes the allocator return free memory, which otherwise
    // happens only when more is freed; so memory is returned after a peak even if the process is
    // idle.
    let maintenance = async {
        for round in 1_u64.. {
            sleep(MAINTENANCE_INTERVAL).await;
            let (gateway, listeners) = (current.load_full(), listeners.clone());
            let done = spawn_blocking(move || {
                gateway.clock.follow_system_clock();
                gateway.maintain();
                if round % CERTIFICATE_ROUNDS == 0 {
                    listeners.reread_certificates(gateway.clock.wall_now());
                }
            });
            if let Err(error) = done.await {
                tracing::error!(%error, "maintenance has failed; the next attempt is in {MAINTENANCE_INTERVAL:?}");
            }
        }
    };
    tokio::select! {
        () = admin.serve(listener) => {}
        () = maintenance => {}
        () = history.sample_periodically(&current) => {}
        () = probe_tips(current.clone(), changes) => {}
        () = fill::follow(|| current.load().fill.clone()) => {}
        () = stopped(stop) => {}
    }
}

/// Probes the tips and the standbys of the current gateway.
async fn probe_tips(current: Current, mut changes: watch::Receiver<()>) {
    loop {
        changes.mark_unchanged();
        let mut probes = JoinSet::new();
        let gateway = current.load_full();
        for tip in gateway.tips() {
            probes.spawn(probe::watch(gateway.fill.clone(), tip));
        }
        for (number, upstream) in gateway.upstreams.iter() {
            let (fill, upstream) = (gateway.fill.clone(), upstream.clone());
            probes.spawn(probe::watch_standbys(
                fill,
                upstream,
                gateway.tips_of(number),
            ));
        }
        drop(gateway);
        if changes.changed().await.is_err() {
            // No reload can follow.
            return std::future::pending().await;
        }
    }
}
