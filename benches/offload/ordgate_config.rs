//! ordgate's configuration for a run: the shipped one, with what a bench changes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use toml::{Table, Value};

const SHIPPED: &str = include_str!("../../proxy.toml");

/// The shipped proxy.toml for this upstream, with free ports and without limits;
/// with another interval between two requests for the tip and another size of the
/// upstream's pages, if they are given.
pub(crate) fn text(
    upstream: SocketAddr,
    every: Option<Duration>,
    upstream_page: Option<i64>,
) -> Result<String> {
    let mut config: Table = SHIPPED.parse().context("proxy.toml")?;
    let any_port = || Value::from("127.0.0.1:0");
    for (table, key, value) in [
        ("server", "listen", any_port()),
        ("admin", "listen", any_port()),
        ("limit", "enabled", false.into()),
        ("cache", "max_bytes", "1GiB".into()),
        ("upstream", "url", format!("http://{upstream}").into()),
        ("upstream", "requests_per_minute", 1_000_000.into()),
        ("upstream", "requests_per_second", 1_000_000.into()),
        ("upstream", "max_in_flight", 256.into()),
        ("log", "level", "warn".into()),
    ] {
        inner(&mut config, table)?.insert(key.to_owned(), value);
    }
    if let Some(every) = every {
        let tips = inner(inner(&mut config, "chain")?, "tip")?;
        for name in ["ordinals", "runes"] {
            let every = format!("{}ms", every.as_millis());
            inner(tips, name)?.insert("every".to_owned(), every.into());
        }
    }
    if let Some(upstream_page) = upstream_page {
        let routes = config.get_mut("route").and_then(Value::as_array_mut);
        for route in routes.context("no routes")? {
            let route = route.as_table_mut().context("a route that is no table")?;
            if route.get("pages") == Some(&Value::Boolean(true)) {
                route.insert("upstream_page".to_owned(), upstream_page.into());
            }
        }
    }
    Ok(toml::to_string(&config)?)
}

fn inner<'t>(table: &'t mut Table, key: &str) -> Result<&'t mut Table> {
    let inner = table
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()));
    inner
        .as_table_mut()
        .with_context(|| format!("{key} is no table"))
}
