//! What a gateway is made of.

use std::time::Duration;

use super::gateway;
use crate::cache::key::Key;
use crate::clock::Clock;
use crate::config::Config;
use crate::shared::EngineUrl;
use crate::upstream::ProviderKeys;
use crate::upstream::client::resolver::Resolver;

fn configured(text: &str) -> Config {
    let text = format!("upstream.url = \"http://127.0.0.1:1\"\n{text}");
    Config::parse("p", &text).unwrap()
}

/// How long a request for a route may wait, with a configuration.
fn longest_wait(config: Config) -> Duration {
    let (keys, resolver) = (ProviderKeys::default(), Resolver::default());
    let gateway = gateway(config, &keys, &resolver, Clock::manual(), None).unwrap();
    gateway.fill.longest_wait(&Key::begin(0))
}

#[tokio::test]
async fn a_request_may_wait_for_another_replica_as_well() {
    let replicas = "shared = { replicas = 2, fill_wait = \"7s\" }";
    let engine = |url: &str| {
        let mut config = configured(replicas);
        let settings = config.shared.as_mut().unwrap();
        settings.engine = (!url.is_empty()).then(|| EngineUrl::parse(url).unwrap());
        longest_wait(config)
    };
    let alone = engine("");
    assert_eq!(
        engine("redis://127.0.0.1:1"),
        alone + Duration::from_secs(7)
    );
}
