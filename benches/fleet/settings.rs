//! The settings that the simulation depends on, from the configuration that ordgate
//! ships with.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ordgate::config::Config;
use ordgate::units;
use ordgate::upstream::ProviderKeys;
use toml::{Table, Value};

/// Times in seconds, and the budget of one key.
pub(crate) struct Settings {
    pub(crate) live_ttl: f64,
    pub(crate) absent_ttl: f64,
    pub(crate) probe_every: f64,
    pub(crate) per_minute: i64,
    pub(crate) per_second: i64,
}

impl Settings {
    /// Those of the shipped configuration.
    pub(crate) fn shipped() -> Result<Self> {
        let config = Config::shipped().map_err(|problems| anyhow!("{problems:?}"))?;
        let table: Table = config.print(&ProviderKeys::default())?.parse()?;
        let time = |path: &[&str]| -> Result<f64> {
            let text = value(&table, path)?.as_str();
            let time = text.and_then(units::parse);
            let time = time.with_context(|| format!("{path:?} is no time"));
            time.as_ref()
                .map(Duration::as_secs_f64)
                .map_err(|error| anyhow!("{error}"))
        };
        let number = |path: &[&str]| {
            let number = value(&table, path)?.as_integer();
            number.with_context(|| format!("{path:?} is no number"))
        };
        Ok(Self {
            live_ttl: time(&["chain", "live_ttl"])?,
            absent_ttl: time(&["chain", "absent_ttl"])?,
            probe_every: time(&["chain", "tip", "ordinals", "every"])?,
            per_minute: number(&["upstream", "requests_per_minute"])?,
            per_second: number(&["upstream", "requests_per_second"])?,
        })
    }
}

fn value<'t>(table: &'t Table, path: &[&str]) -> Result<&'t Value> {
    let (last, tables) = path.split_last().context("an empty path")?;
    let mut inner = table;
    for name in tables {
        let found = inner.get(*name).and_then(Value::as_table);
        inner = found.with_context(|| format!("no {path:?}"))?;
    }
    inner.get(*last).with_context(|| format!("no {path:?}"))
}
