//! Control routes: the sandbox's methods over HTTP, for people and scripts.
//!
//! `server` calls it for every path under `/sandbox`. Control requests need no key and are neither counted nor limited;
//! an invalid one gets a 400 that names what is allowed. The routes have no protection, so a sandbox should listen on
//! loopback only.

use std::any::{Any, TypeId};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::provider::{Fault, FaultKind};
use super::{Sandbox, api};

/// The control routes: method, path, and the parameters that it takes.
const ROUTES: [(&str, &str, &[&str]); 8] = [
    ("GET", "/sandbox/examples", &[]),
    ("GET", "/sandbox/counts", &[]),
    ("GET", "/sandbox/journal", &[]),
    ("POST", "/sandbox/advance", &["blocks"]),
    ("POST", "/sandbox/reorg", &["depth"]),
    ("GET", "/sandbox/fault", &[]),
    (
        "POST",
        "/sandbox/fault",
        &["kind", "times", "path", "chance", "delay"],
    ),
    ("DELETE", "/sandbox/fault", &[]),
];

/// Executes a control request.
pub(super) fn answer(sandbox: &Sandbox, method: &Method, target: &str) -> (StatusCode, Value) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let is_at = |(known, at, _): &&(&str, &str, &[&str])| *known == method.as_str() && *at == path;
    let Some((method, path, parameters)) = ROUTES.iter().find(is_at) else {
        let routes = ROUTES.map(|(method, path, parameters)| match parameters {
            [] => format!("{method} {path}"),
            _ => format!("{method} {path}?{}=", parameters.join("=&")),
        });
        let body = json!({ "error": "no such control route", "routes": routes });
        return (StatusCode::NOT_FOUND, body);
    };
    let done = check_names(query, parameters).and_then(|()| execute(sandbox, method, path, query));
    match done {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error })),
    }
}

fn execute(sandbox: &Sandbox, method: &str, path: &str, query: &str) -> Result<Value, String> {
    Ok(match (method, path) {
        (_, "/sandbox/examples") => json!(sandbox.examples()),
        (_, "/sandbox/counts") => json!(sandbox.counts()),
        (_, "/sandbox/journal") => sandbox.state().provider.journal(),
        (_, "/sandbox/advance") => {
            sandbox.advance(number(query, "blocks", 1, 1..=10_000)?);
            json!(sandbox.tip())
        }
        (_, "/sandbox/reorg") => {
            let replaced = sandbox.reorg(number(query, "depth", 1, 1..=10_000)?);
            let tip = sandbox.tip();
            json!({ "height": tip.height, "hash": tip.hash, "replaced": replaced })
        }
        ("POST", _) => {
            let fault = fault(query)?;
            let shown = fault.shown();
            if !sandbox.state().provider.add_fault(fault) {
                return Err("there are too many faults; DELETE /sandbox/fault clears them".into());
            }
            shown
        }
        _ => {
            if method == "DELETE" {
                sandbox.clear_faults();
            }
            let faults = &sandbox.state().provider.faults;
            json!({ "faults": faults.iter().map(Fault::shown).collect::<Vec<_>>() })
        }
    })
}

/// Refuses parameters that a route does not take.
fn check_names(query: &str, allowed: &[&str]) -> Result<(), String> {
    let names = query.split('&').filter(|pair| !pair.is_empty());
    let mut names = names.map(|pair| pair.split('=').next().unwrap_or(pair));
    match names.find(|name| !allowed.contains(name)) {
        None => Ok(()),
        Some(unknown) if allowed.is_empty() => Err(format!("{unknown:?}: there are no parameters")),
        Some(unknown) => {
            let allowed = allowed.join(", ");
            Err(format!("unknown parameter {unknown:?}; allowed: {allowed}"))
        }
    }
}

fn fault(query: &str) -> Result<Fault, String> {
    let delay = number(query, "delay", 1_000, 0..=600_000u64)?;
    let kind = text(query, "kind")?.unwrap_or_default();
    let kind = match kind.as_str() {
        "close" => FaultKind::Close,
        "stall" => FaultKind::Stall(Duration::from_millis(delay)),
        other => {
            let status = StatusCode::from_str(other).ok();
            let status =
                status.filter(|status| status.is_client_error() || status.is_server_error());
            FaultKind::Status(status.ok_or_else(|| {
                format!("kind is {other:?}; allowed is a status from 400 to 599, close, or stall")
            })?)
        }
    };
    let chance = number(query, "chance", 1.0, 0.0..=1.0)?;
    // One with a chance stays until it is cleared.
    let times = if chance < 1.0 { u32::MAX } else { 1 };
    Ok(Fault {
        kind,
        times: number(query, "times", times, 1..=u32::MAX)?,
        path: text(query, "path")?,
        chance,
    })
}

/// A parameter that may be given once.
fn text(query: &str, name: &str) -> Result<Option<String>, String> {
    let mut values = api::values(query, name);
    match values.len() {
        0 | 1 => Ok(values.pop()),
        _ => Err(format!("{name} is given more than once")),
    }
}

/// A number within bounds: a whole one if those are.
fn number<T: FromStr + PartialOrd + Display + Any>(
    query: &str,
    name: &str,
    default: T,
    allowed: RangeInclusive<T>,
) -> Result<T, String> {
    let Some(text) = text(query, name)? else {
        return Ok(default);
    };
    let number = text.parse().ok().filter(|number| allowed.contains(number));
    number.ok_or_else(|| {
        let (least, most) = (allowed.start(), allowed.end());
        let kind = if TypeId::of::<T>() == TypeId::of::<f64>() {
            "number"
        } else {
            "whole number"
        };
        format!("{name} is {text:?}; allowed is a {kind} from {least} to {most}")
    })
}

#[cfg(test)]
mod tests;
