//! The values of the keys of routes.

use std::time::Duration;

use toml::Value;

use crate::cache::policy::{Mode, Policy};
use crate::cache::storable::SetCookie;
use crate::chain::TipSource;
use crate::config::Config;
use crate::route::{HeaderMode, Methods, Parameter, ResponseSchema, Route};
use crate::units;
use crate::validate::ParameterType;

/// The values of all keys of a route.
pub(in crate::config) fn print(route: &Route, config: &Config) -> Value {
    let text = |text: &str| Value::from(text);
    let mut table = toml::Table::new();
    table.insert("name".into(), text(&route.name));
    let upstream = config.upstream_name(route.upstream.number);
    table.insert("upstream".into(), text(upstream));
    if let Some(summary) = &route.docs.summary {
        table.insert("summary".into(), text(summary));
    }
    table.insert("path".into(), text(&route.request.path));
    let upstream_path = route.upstream.path.print(&route.request.params);
    if *upstream_path != *route.request.path {
        table.insert("upstream_path".into(), Value::from(upstream_path));
    }
    let methods = match &route.request.methods {
        Methods::Any => vec![text("*")],
        Methods::Listed(methods) => methods.iter().map(|method| text(method.as_str())).collect(),
    };
    table.insert("methods".into(), methods.into());
    let headers = HeaderMode::NAMES
        .iter()
        .find(|(_, headers)| *headers == route.headers);
    table.insert(
        "headers".into(),
        text(headers.map_or("typed", |(name, _)| name)),
    );
    if route.request.any_query {
        table.insert("query".into(), text("any"));
    }
    let schema = ResponseSchema::NAMES
        .iter()
        .find(|(_, schema)| *schema == route.docs.response);
    table.insert(
        "response".into(),
        text(schema.map_or("json", |(name, _)| name)),
    );
    table.insert("strict_query".into(), route.request.strict_query.into());
    for (key, parameters) in [
        ("params", &route.request.params),
        ("query", &route.request.query),
    ] {
        if !parameters.is_empty() {
            let entries = parameters
                .iter()
                .map(|p| (p.name.to_string(), print_parameter(p)));
            table.insert(key.into(), Value::Table(entries.collect()));
        }
    }
    if let Some(size) = route.chain.window {
        table.insert("pages".into(), true.into());
        table.insert("upstream_page".into(), i64::from(size.get()).into());
    }
    if let Some(source) = route
        .chain
        .derived_from
        .and_then(|source| config.routes.get(source))
    {
        table.insert("derived_from".into(), text(&source.name));
    }
    table.insert(
        "cache".into(),
        print_policy(&route.cache, &config.chain.tips),
    );
    Value::Table(table)
}

fn print_parameter(parameter: &Parameter) -> Value {
    let mut table = toml::Table::new();
    let number = |n: u64| Value::from(i64::try_from(n).unwrap_or(i64::MAX));
    let mut put = |key: &str, value: Value| table.insert(key.into(), value);
    match &parameter.kind {
        ParameterType::Hex64 => put("type", "hex64".into()),
        ParameterType::Block { .. } => put("type", "block".into()),
        ParameterType::Ticker => put("type", "ticker".into()),
        ParameterType::Integer { min, max } => {
            put("min", number(*min));
            put("max", number(*max));
            put("type", "integer".into())
        }
        ParameterType::Enumeration(values) => {
            put(
                "values",
                values
                    .iter()
                    .map(|v| Value::from(&**v))
                    .collect::<Vec<_>>()
                    .into(),
            );
            put("type", "enum".into())
        }
        ParameterType::Text { min, max, pattern } => {
            put("min_length", number(*min as u64));
            put("max_length", number(*max as u64));
            if let Some((pattern, _)) = pattern {
                put("pattern", Value::from(&**pattern));
            }
            put("type", "string".into())
        }
    };
    if let Some(default) = &parameter.default {
        let number =
            matches!(parameter.kind, ParameterType::Integer { .. }).then(|| default.parse::<i64>());
        let value = match number {
            Some(Ok(number)) => Value::from(number),
            _ => Value::from(&**default),
        };
        put("default", value);
    }
    if let Some(description) = &parameter.description {
        put("description", Value::from(&**description));
    }
    Value::Table(table)
}

fn print_policy(policy: &Policy, tips: &[TipSource]) -> Value {
    let time = |time: &Duration| Value::from(units::format(*time));
    let mut table = toml::Table::new();
    let mode = Mode::NAMES.iter().find(|(_, mode)| *mode == policy.mode);
    table.insert(
        "mode".into(),
        Value::from(mode.map_or("off", |(name, _)| name)),
    );
    let tip = tips.get(usize::from(policy.tip));
    if let Some(tip) = tip.filter(|tip| policy.mode == Mode::Chain && tip.path.is_some()) {
        table.insert("tip".into(), Value::from(&*tip.name));
    }
    table.insert(
        "stale_while_revalidate".into(),
        time(&policy.stale_while_revalidate),
    );
    table.insert("stale_if_error".into(), time(&policy.stale_if_error));
    if policy.mode == Mode::Respect {
        let named = SetCookie::NAMES.iter();
        let name = named
            .filter(|(_, rule)| *rule == policy.set_cookie)
            .map(|(name, _)| *name)
            .next();
        table.insert("store_set_cookie".into(), name.unwrap_or("explicit").into());
    }
    let mut times = toml::Table::new();
    for (status, lifetime) in &policy.times.exact {
        times.insert(status.as_str().to_owned(), time(lifetime));
    }
    for (class, lifetime) in policy.times.classes.iter().enumerate() {
        if let Some(lifetime) = lifetime {
            times.insert(format!("{}xx", class + 1), time(lifetime));
        }
    }
    if let Some(empty) = &policy.times.empty {
        times.insert("empty".into(), time(empty));
    }
    if !times.is_empty() {
        table.insert("times".into(), Value::Table(times));
    }
    Value::Table(table)
}
