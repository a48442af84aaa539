//! `ordgate sandbox`.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use ordgate::sandbox::{Api, Sandbox};
use ordgate::serve::bind_tcp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::descriptors::raise_descriptors;
use super::{SandboxFlags, print};

/// The control routes that the ready lines name.
pub(super) const CONTROL_ROUTES: &str =
    "/sandbox/examples, /counts, /journal, /fault, /advance, /reorg";

pub(super) fn sandbox(flags: SandboxFlags) -> Result<ExitCode> {
    raise_descriptors();
    let sandbox = Sandbox::new(flags.model.settings(None));
    let (first, address) = bind_tcp(flags.listen)?;
    let runes = match (flags.split, flags.listen.port()) {
        (false, _) => None,
        (true, 0) => Some(flags.listen),
        (true, port) => Some(SocketAddr::new(flags.listen.ip(), port.saturating_add(1))),
    };
    let runes = runes.map(bind_tcp).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let of_runes = runes.as_ref().map_or(address, |(_, address)| *address);
        print(&ready(&sandbox, address, of_runes))?;
        let mut servers = vec![];
        match runes {
            None => servers.push((Api::Both, first)),
            Some((second, _)) => servers.extend([(Api::Ordinals, first), (Api::Runes, second)]),
        }
        for (api, socket) in servers {
            let listener = TcpListener::from_std(socket)?;
            tokio::spawn(sandbox.clone().serve(api, listener, std::future::pending()));
        }
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = sandbox.add_blocks() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// What is printed when the sockets are bound: where the two APIs are, and what to try.
fn ready(sandbox: &Sandbox, ordinals: SocketAddr, runes: SocketAddr) -> String {
    let is_split = ordinals != runes;
    let addresses = match is_split {
        false => format!("http://{ordinals}"),
        true => format!("http://{ordinals} (ordinals) and http://{runes} (runes)"),
    };
    let examples = sandbox.examples();
    let [token, transaction, block] = examples.first();
    let mut ready = format!(
        "ordgate sandbox is ready on {addresses}; control: {CONTROL_ROUTES}. Try:
  curl -i 'http://{ordinals}{token}'
  curl -i 'http://{runes}{transaction}'
  curl -i 'http://{runes}{block}'
"
    );
    if is_split {
        ready.push_str(&format!(
            "A gateway in front of both:\n  ordgate serve --upstream ordinals=http://{ordinals} --upstream runes=http://{runes}\n"
        ));
    }
    ready
}
