//! `ordgate sandbox`.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ordgate::sandbox::{Api, Sandbox};
use ordgate::serve::bind_tcp;
use tokio::signal::unix::{SignalKind, signal};

use super::environment::raise_descriptors;
use super::{SandboxFlags, print};

/// The control routes that the ready lines name.
pub(super) const CONTROL_ROUTES: &str =
    "/sandbox/examples, /counts, /journal, /fault, /advance, /reorg";

pub(super) fn sandbox(flags: SandboxFlags) -> Result<ExitCode> {
    let settings = flags.model.settings(None);
    raise_descriptors();
    let sandbox = Sandbox::new(settings);
    let runes = match flags.split {
        true => Some(runes_listen(flags.runes_listen, flags.listen)?),
        false => None,
    };
    let (socket, address) = bind_tcp(flags.listen)?;
    let runes = runes.map(bind_tcp).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(socket)?;
        let runes = match runes {
            Some((socket, address)) => Some((tokio::net::TcpListener::from_std(socket)?, address)),
            None => None,
        };
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let examples = sandbox.examples();
        let of_runes = runes.as_ref().map_or(address, |(_, address)| *address);
        let addresses = match runes {
            None => format!("http://{address}"),
            Some(_) => format!("http://{address} (ordinals) and http://{of_runes} (runes)"),
        };
        let mut ready = format!(
            "ordgate sandbox is ready on {addresses}; control: {CONTROL_ROUTES}. Try:\n"
        );
        for (address, path) in [
            (address, examples.token()),
            (of_runes, examples.transaction()),
            (of_runes, examples.block()),
        ] {
            ready.push_str(&format!("  curl -i 'http://{address}{path}'\n"));
        }
        if runes.is_some() {
            ready.push_str(&format!(
                "A gateway in front of both:\n  ordgate serve --upstream ordinals=http://{address} --upstream runes=http://{of_runes}\n"
            ));
        }
        print(&ready)?;
        match runes {
            None => sandbox.serve(Api::Both, listener, stop).await,
            Some((runes, _)) => {
                let other = sandbox.clone();
                tokio::select! {
                    () = sandbox.serve(Api::Ordinals, listener, stop) => {}
                    () = other.serve(Api::Runes, runes, std::future::pending()) => {}
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The address of the runes API of a split sandbox.
fn runes_listen(given: Option<SocketAddr>, ordinals: SocketAddr) -> Result<SocketAddr> {
    if let Some(given) = given {
        return Ok(given);
    }
    let port = match ordinals.port() {
        0 => 0,
        port => port
            .checked_add(1)
            .context("there is no port after that of --listen; give --runes-listen")?,
    };
    Ok(SocketAddr::new(ordinals.ip(), port))
}
