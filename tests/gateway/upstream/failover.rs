//! Several base URLs: if the preferred endpoint fails, another is used, and a
//! switch changes no more than necessary.

mod heights;
mod keys;
mod reloads;
mod switching;

use serde_json::Value;

use crate::support::{Gateway, Setup, Upstream};

/// Nothing is sent again to where it has failed.
const SOON: &str = r#"
    upstream.retry = false
"#;

/// Tips are probed often, and standby endpoints a third as often.
const OFTEN: &str = r#"
    chain.tip.ordinals.every = "100ms"
    chain.tip.runes.every = "100ms"
"#;

/// The tokens that an upstream got requests for, without status paths and standby
/// probes.
fn tokens(upstream: &Upstream) -> usize {
    let mut targets = upstream.targets();
    targets.retain(|target| target.contains("/tokens/"));
    targets.len()
}

fn endpoints(gateway: &Gateway) -> Vec<Value> {
    gateway.status()["upstream"]["endpoints"]
        .as_array()
        .unwrap()
        .clone()
}

/// The position of the endpoint that is in use.
fn endpoint_in_use(gateway: &Gateway) -> usize {
    let endpoints = endpoints(gateway);
    endpoints
        .iter()
        .position(|one| one["selected"] == true)
        .unwrap()
}

fn switches(gateway: &Gateway) -> u64 {
    gateway.figure("/upstream/switches")
}

fn status(gateway: &Gateway) -> Value {
    gateway.status()["upstream"].clone()
}

fn pair() -> [Upstream; 2] {
    [Upstream::start(), Upstream::start()]
}

fn before(upstreams: &[Upstream; 2], config: &str) -> Gateway {
    let [one, other] = upstreams;
    let setup = Setup::before_all(&[one, other]).keys("a-key").manual();
    setup.config(SOON).config(config).start()
}
