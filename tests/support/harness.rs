//! The harness that the socket tests share: a scripted upstream, a gateway in
//! this process or as one of its own, and a client that sends raw bytes.
//!
//! Every wait has a deadline, so a hang fails with a name. Nothing sleeps to let
//! something happen: a test waits for a condition that it names.

pub(crate) mod client;
pub(crate) mod frames;
pub(crate) mod gateway;
pub(crate) mod https;
pub(crate) mod polite;
pub(crate) mod process;
pub(crate) mod respect;
pub(crate) mod sandbox_server;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod upstream;
pub(crate) mod wire;

use std::future::Future;
use std::time::Duration;

pub(crate) use client::{Answer, Client};
pub(crate) use gateway::{Gateway, ROUTES, Setup, encoded};
pub(crate) use process::Process;
pub(crate) use sandbox_server::SandboxServer;
pub(crate) use transport::{Endpoint, Transport};
pub(crate) use upstream::{Gate, Reply, Upstream};

/// How long anything may take before it counts as a hang: far more than a busy
/// machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A token, a transaction and a block of valid form.
pub(crate) const TOKEN: &str = "/ordinals/v1/brc-20/tokens/ordi";
pub(crate) const TX: &str = "/runes/v1/transactions/8ef8a9a1d4fd1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f70819200/activity";
pub(crate) const BLOCK: &str = "/runes/v1/blocks/840000/activity";

/// The canonical form of [`BLOCK`], as it is forwarded.
pub(crate) const BLOCK_CANONICAL: &str = "/runes/v1/blocks/840000/activity?limit=20&offset=0";

/// A token's path by number, for tests that need many.
pub(crate) fn token(number: usize) -> String {
    format!("/ordinals/v1/brc-20/tokens/t{number}")
}

/// Waits for a future, within [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_elapsed) => panic!("hangs: {what}"),
    }
}

/// Polls until a condition holds, within [`PATIENCE`].
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(what, poll).await;
}
