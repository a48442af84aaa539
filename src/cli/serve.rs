//! `ordgate serve`: from the flags to the end of the process.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use ordgate::clock::Clock;
use ordgate::listener::BoundListener;
use ordgate::log_writer::Destination;
use ordgate::sandbox::Sandbox;
use ordgate::serve::{Options, Server};
use ordgate::supervisor;
use ordgate::telemetry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::sandbox::CONTROL_ROUTES;
use super::{ServeFlags, environment};

pub(super) fn serve(flags: ServeFlags) -> Result<ExitCode> {
    let done = start(flags);
    if let Err(error) = &done {
        supervisor::failed(&format!("{error:#}"));
    }
    done
}

/// Starts the server, and returns when it has ended.
fn start(flags: ServeFlags) -> Result<ExitCode> {
    // Before there are threads.
    let sockets = supervisor::inherited_sockets()?;
    let binds_all = sockets.is_empty();
    let (loaded, config_name) = environment::loaded(&flags, binds_all)?;
    telemetry::begin(&loaded.config.file.log)?;
    let is_limited = loaded.config.file.limit.enabled;
    let sandbox = flags.sandbox();
    let examples = sandbox.as_ref().map(Sandbox::examples);
    let server = Server::start(Options {
        loaded,
        config_name: config_name.clone(),
        load: Box::new(move || {
            let again = environment::loaded(&flags, binds_all);
            again.map(|(loaded, _)| loaded).map_err(|error| {
                let problems = format!("{error:#}");
                problems.lines().map(str::to_owned).collect()
            })
        }),
        sandbox,
        clock: Clock::machine(),
        sockets,
    })?;
    server.report_start(&config_name);
    let (addresses, admin) = (server.urls(), server.admin);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // It serves already: from here on, a signal reloads or drains it.
    let signals = runtime.block_on(async {
        io::Result::Ok([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ])
    })?;
    let not_ready = runtime.block_on(server.not_ready());
    let mut ready = match not_ready.is_empty() {
        true => format!("ordgate is ready on {addresses} (admin on http://{admin})\n"),
        false => format!(
            "ordgate is listening on {addresses} (admin on http://{admin}), and is not ready: {}\n",
            not_ready.join("; ")
        ),
    };
    if let Some(examples) = examples {
        let url = server.upstream_url();
        ready.push_str(&format!(
            "A sandbox is its upstream, on {url}; control: {CONTROL_ROUTES}. "
        ));
        if !is_limited {
            ready.push_str("Clients are not limited. ");
        }
        ready.push_str("Try:\n");
        let is_tcp = |listener: &BoundListener| listener.address.tcp().is_some();
        let public = server.bound_listeners().into_iter().find(|one| is_tcp(one));
        let url = public.map_or_else(String::new, |public| public.url());
        for path in examples.first() {
            ready.push_str(&format!("  curl -i '{url}{path}'\n"));
        }
    }
    let ended = runtime.block_on(until_stopped(Arc::new(server), signals, &ready));
    // Waits for nothing that a file system holds up.
    runtime.shutdown_background();
    ended
}

/// Says that the server is ready, reloads it on SIGHUP, and drains it on SIGTERM or
/// SIGINT.
async fn until_stopped(
    server: Arc<Server>,
    [mut terminate, mut interrupt, mut hang_up]: [Signal; 3],
    ready: &str,
) -> Result<ExitCode> {
    // Nobody may read it.
    let _ = Destination::StandardOutput
        .writer()
        .write_all(ready.as_bytes());
    let (addresses, admin) = (server.urls(), server.admin);
    supervisor::ready(&format!("serving on {addresses}, admin on {admin}"));
    tokio::spawn(supervisor::run_watchdog(server.runtimes.clone()));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                tracing::info!("SIGHUP: the configuration is read again");
                let reloads = server.reloads.clone();
                // It logs its result. Signals are handled meanwhile.
                tokio::spawn(async move { drop(reloads.request().await) });
            }
        }
    }
    let delay = server.drain_delay();
    tracing::info!(
        drain_delay_ms = delay.as_millis(),
        "draining: /readyz answers 503; connections are accepted until server.drain_delay is over; then requests under way finish"
    );
    supervisor::stopping();
    server.drain(delay);
    let draining = server.clone();
    let finished = tokio::task::spawn_blocking(move || draining.wait());
    tokio::select! {
        _ = finished => Ok(ExitCode::SUCCESS),
        // A second SIGINT stops at once; after SIGTERM, the first one does.
        _ = interrupt.recv() => {
            tracing::warn!("stopped at once");
            Ok(ExitCode::from(130))
        }
    }
}
