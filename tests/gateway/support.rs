//! What the tests stand on: an upstream that does as it is told, a gateway in
//! this process, and a client that sends bytes and reads answers. `tests/hostile`
//! and `tests/split` use it as well, which is why the modules below say their paths.
//!
//! Every wait has a deadline, so that a hang is a failure with a name and not a
//! suite that never ends. Nothing here sleeps to let something happen: who
//! waits, waits for the thing itself.

#[path = "support/client.rs"]
pub(crate) mod client;
#[path = "support/gateway.rs"]
pub(crate) mod gateway;
#[path = "support/http2.rs"]
pub(crate) mod http2;
#[path = "support/process.rs"]
pub(crate) mod process;
#[path = "support/respect.rs"]
pub(crate) mod respect;
#[path = "support/served.rs"]
pub(crate) mod served;
#[path = "support/tls.rs"]
pub(crate) mod tls;
#[path = "support/upstream.rs"]
pub(crate) mod upstream;

use std::future::Future;
use std::time::Duration;

pub(crate) use client::{Answer, Client};
pub(crate) use gateway::{Gateway, ROUTES, Setup, encoded};
pub(crate) use process::Process;
pub(crate) use served::Served;
pub(crate) use upstream::{Gate, Reply, Turnstile, Upstream};

/// How many servers the upstream is. Each test target says it in `crate::SHAPE`.
#[allow(dead_code, reason = "a target has one of the two")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One server has both APIs.
    Single,
    /// One has the runes API, the other one all else, as with the open-source
    /// indexer. A request that goes to the wrong one fails its test.
    Split,
}

impl Shape {
    /// How many upstreams a gateway has in it.
    pub(crate) const fn servers(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Split => 2,
        }
    }
}

/// How long anything may take before it counts as a hang. Far above what a busy
/// machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A token, a transaction and a block that have no meaning but their form.
pub(crate) const TOKEN: &str = "/ordinals/v1/brc-20/tokens/ordi";
pub(crate) const TX: &str = "/runes/v1/transactions/8ef8a9a1d4fd1a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f70819200/activity";
pub(crate) const BLOCK: &str = "/runes/v1/blocks/840000/activity";

/// The canonical form of [`BLOCK`]: what the upstream is asked.
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

/// Waits until a condition holds that nobody announces: a counter, say. The one
/// poll of the suite.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    within(what, poll).await;
}
