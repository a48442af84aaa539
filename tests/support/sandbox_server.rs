//! A sandbox that is served on a port of this machine, and can stop and start again
//! there.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread::JoinHandle;

use ordgate::sandbox::{Api, Sandbox};
use socket2::Socket;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::socket::{ANY_PORT, bound};

/// A server with one of a sandbox's APIs, or both; it stops when it is dropped.
pub(crate) struct SandboxServer {
    sandbox: Sandbox,
    api: Api,
    address: SocketAddr,
    /// Holds the port while nothing listens: no other socket of the machine can
    /// get it.
    _holder: Socket,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl SandboxServer {
    pub(crate) fn start(sandbox: &Sandbox, api: Api) -> Self {
        let holder = bound(ANY_PORT);
        let served = Self {
            sandbox: sandbox.clone(),
            api,
            address: holder.local_addr().unwrap().as_socket().unwrap(),
            _holder: holder,
            running: Mutex::default(),
        };
        served.resume();
        served
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes the listener and all connections.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().unwrap().take();
        if let Some((stop, thread)) = running {
            drop(stop);
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking());
        }
    }

    /// Listens on its port again.
    pub(crate) fn resume(&self) {
        let socket = bound(self.address);
        socket.listen(1024).unwrap();
        let (stop, stopped) = oneshot::channel();
        let (sandbox, api) = (self.sandbox.clone(), self.api);
        // A thread of its own: a test may block, and is answered all the same.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(socket.into()).unwrap();
                // To be dropped resolves it as well.
                let stop = async { drop(stopped.await) };
                sandbox.serve(api, listener, stop).await;
            });
        });
        *self.running.lock().unwrap() = Some((stop, thread));
    }
}

impl Drop for SandboxServer {
    fn drop(&mut self) {
        self.stop();
    }
}
