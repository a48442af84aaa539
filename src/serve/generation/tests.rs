//! What a gateway is made of.

use std::time::Duration;

use super::gateway;
use crate::cache::key::Key;
use crate::clock::Clock;
use crate::config::Config;
use crate::upstream::ProviderKeys;
use crate::upstream::client::resolver::Resolver;

/// How long a request for a route may wait, with a configuration.
fn longest_wait(text: &str) -> Duration {
    let text = format!("upstream.url = \"http://127.0.0.1:1\"\n{text}");
    let config = Config::parse("p", &text).unwrap();
    let (keys, resolver) = (ProviderKeys::default(), Resolver::default());
    let gateway = gateway(config, &keys, &resolver, Clock::manual(), None).unwrap();
    gateway.fill.longest_wait(&Key::begin(0))
}

#[tokio::test]
async fn a_request_may_wait_for_the_disk_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let state = format!("state.path = \"{}\"", directory.path().display());
    // A second for reads. For the record of a purge that its answer causes, three seconds,
    // and as many before it where the disk is only being opened.
    let disk = Duration::from_secs(7);
    assert_eq!(longest_wait(&state), longest_wait("") + disk);
}
