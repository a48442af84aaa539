//! The values of the keys of routes.

use std::time::Duration;

use toml::{Table, Value};

use crate::cache::policy::{Mode, Policy};
use crate::cache::storable::SetCookie;
use crate::chain::TipSource;
use crate::config::Config;
use crate::config::kinds::choice;
use crate::route::{HeaderMode, Methods, Parameter, ResponseSchema, Route};
use crate::units;
use crate::validate::ParameterType;

/// The values of all keys of a route.
pub(in crate::config) fn print(route: &Route, config: &Config) -> Table {
    let (request, chain) = (&route.request, &route.chain);
    let upstream = config.upstream_name(route.upstream.number);
    let upstream_path = route.upstream.path.print(&request.params);
    let methods = match &request.methods {
        Methods::Any => vec!["*"],
        Methods::Listed(methods) => methods.iter().map(|method| method.as_str()).collect(),
    };
    let query = match request.any_query {
        true => Some("any".into()),
        false => print_parameters(&request.query),
    };
    let source = chain.derived_from.and_then(|at| config.routes.get(at));
    table([
        ("name", Some((*route.name).into())),
        ("upstream", Some(upstream.into())),
        ("summary", route.docs.summary.as_deref().map(Value::from)),
        ("path", Some((*request.path).into())),
        (
            "upstream_path",
            (*upstream_path != *request.path).then(|| upstream_path.into()),
        ),
        ("methods", Some(methods.into())),
        ("headers", headers(route)),
        ("params", print_parameters(&request.params)),
        ("query", query),
        ("strict_query", Some(request.strict_query.into())),
        (
            "response",
            name(&ResponseSchema::NAMES, route.docs.response),
        ),
        ("pages", chain.window.map(|_| true.into())),
        (
            "upstream_page",
            chain.window.map(|size| i64::from(size.get()).into()),
        ),
        ("derived_from", source.map(|source| (*source.name).into())),
        (
            "cache",
            Some(print_policy(&route.cache, &config.chain.tips)),
        ),
    ])
}

/// A table of the keys that have a value.
fn table<const N: usize>(keys: [(&str, Option<Value>); N]) -> Table {
    let set = keys.into_iter();
    set.filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

fn name<T: Copy + PartialEq>(names: &'static [(&'static str, T)], value: T) -> Option<Value> {
    choice(names).name(value).map(Value::from)
}

fn print_parameters(parameters: &[Parameter]) -> Option<Value> {
    let named = parameters.iter();
    let named = named.map(|one| (one.name.to_string(), print_parameter(one)));
    (!parameters.is_empty()).then(|| Value::Table(named.collect()))
}

fn print_parameter(parameter: &Parameter) -> Value {
    let number = |n: u64| Value::from(i64::try_from(n).unwrap_or(i64::MAX));
    let text = |text: &str| Value::from(text);
    let (name, own) = match &parameter.kind {
        ParameterType::Hex64 => ("hex64", vec![]),
        ParameterType::Block { .. } => ("block", vec![]),
        ParameterType::Ticker => ("ticker", vec![]),
        ParameterType::Integer { min, max } => (
            "integer",
            vec![("min", number(*min)), ("max", number(*max))],
        ),
        ParameterType::Enumeration(values) => {
            let values: Vec<_> = values.iter().map(|value| text(value)).collect();
            ("enum", vec![("values", values.into())])
        }
        ParameterType::Text { min, max, pattern } => {
            let lengths = [("min_length", *min), ("max_length", *max)];
            let pattern = pattern.as_ref().map(|(pattern, _)| text(pattern));
            let lengths = lengths.map(|(key, length)| (key, number(length as u64)));
            let pattern = pattern.map(|pattern| ("pattern", pattern));
            ("string", lengths.into_iter().chain(pattern).collect())
        }
    };
    let default = parameter.default.as_deref().map(|default| {
        let is_number = matches!(parameter.kind, ParameterType::Integer { .. });
        let number = default.parse::<i64>().ok().filter(|_| is_number);
        number.map_or_else(|| text(default), Value::from)
    });
    let mut table = table([
        ("type", Some(text(name))),
        ("default", default),
        ("description", parameter.description.as_deref().map(text)),
    ]);
    table.extend(own.into_iter().map(|(key, value)| (key.to_owned(), value)));
    table.into()
}

fn print_policy(policy: &Policy, tips: &[TipSource]) -> Value {
    let time = |time: Duration| Value::from(units::format(time));
    let tip = tips.get(usize::from(policy.tip));
    let tip = tip.filter(|tip| policy.mode == Mode::Chain && tip.path.is_some());
    let is_respect = policy.mode == Mode::Respect;
    let exact = policy.times.exact.iter();
    let exact = exact.map(|(status, lifetime)| (status.as_str().to_owned(), *lifetime));
    let classes = policy.times.classes.iter().zip(1..);
    let classes = classes.filter_map(|(time, class)| Some((format!("{class}xx"), (*time)?)));
    let empty = policy.times.empty.map(|time| ("empty".to_owned(), time));
    let times = exact.chain(classes).chain(empty);
    let times: Table = times.map(|(key, of)| (key, time(of))).collect();
    let values = table([
        ("mode", name(&Mode::NAMES, policy.mode)),
        ("tip", tip.map(|tip| (*tip.name).into())),
        (
            "stale_while_revalidate",
            Some(time(policy.stale_while_revalidate)),
        ),
        ("stale_if_error", Some(time(policy.stale_if_error))),
        (
            "store_set_cookie",
            name(&SetCookie::NAMES, policy.set_cookie).filter(|_| is_respect),
        ),
        ("times", (!times.is_empty()).then(|| times.into())),
    ]);
    values.into()
}

fn headers(route: &Route) -> Option<Value> {
    let listed = route.passed.as_ref().map(|names| {
        let names = names.iter().map(|name| Value::from(name.as_str()));
        Value::Array(names.collect())
    });
    listed.or_else(|| name(&HeaderMode::NAMES, route.headers))
}
