//! What a file may have, and what is reported of one that has something else.

mod declared;
mod printed;
mod problems;
mod schema;
mod upstreams;
mod warned;

use super::Config;
use crate::upstream::ProviderKeys;
use crate::upstream::keys::ApiKey;

fn problems(text: &str) -> Vec<String> {
    let problems = Config::parse("p.toml", text).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

fn read(text: &str) -> Config {
    Config::parse("p", text).unwrap()
}

/// The effective configuration without API keys.
fn printed(config: &Config) -> String {
    config.print(&ProviderKeys::default()).unwrap()
}

/// The warnings without API keys.
fn warnings(text: &str) -> Vec<String> {
    read(text).warnings(&ProviderKeys::default())
}

fn keys() -> ProviderKeys {
    ApiKey::list("a-key-of-a-test").unwrap().into()
}

/// The upstream of each route and each tip, by name.
fn asked(config: &Config) -> Vec<(String, String)> {
    let name = |number: u16| config.upstream_name(number).to_owned();
    let tips = config.chain.tips.iter().filter(|tip| tip.path.is_some());
    let tips = tips.map(|tip| (format!("tip {}", tip.name), name(tip.upstream)));
    let routes = config.routes.routes().iter();
    let routes = routes.map(|route| (route.name.to_string(), name(route.upstream.number)));
    tips.chain(routes).collect()
}
