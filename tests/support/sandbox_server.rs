//! A sandbox that is served on a port of this machine.

use std::net::SocketAddr;

use ordgate::sandbox::{Api, Sandbox};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A server with one of a sandbox's APIs, or both; it stops when it is dropped.
pub(crate) struct SandboxServer {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl SandboxServer {
    pub(crate) fn start(sandbox: &Sandbox, api: Api) -> Self {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let sandbox = sandbox.clone();
        // A thread of its own: a test may block, and is answered all the same.
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let listener = TcpListener::from_std(socket).unwrap();
                // To be dropped resolves it as well.
                let stop = async { drop(stopped.await) };
                sandbox.serve(api, listener, stop).await;
            });
        });
        Self {
            address,
            _stop: stop,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
