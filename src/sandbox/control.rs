//! Control routes: the sandbox's methods over HTTP, for people and scripts.
//!
//! `server` calls it for every path under `/sandbox`. Control requests need no key and are neither counted nor limited;
//! an invalid one gets a 400 that names what is allowed. The routes have no protection, so a sandbox should listen on
//! loopback only.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use http::request::Parts;
use serde_json::{Value, json};
use url::form_urlencoded::parse;

use super::provider::{Fault, FaultKind};
use super::{Answer, Sandbox};

/// The control routes, and the parameters that each takes.
const ROUTES: [(&str, &[&str]); 7] = [
    ("GET /sandbox/examples", &[]),
    ("GET /sandbox/counts", &[]),
    ("GET /sandbox/journal", &[]),
    ("POST /sandbox/advance", &["blocks"]),
    ("POST /sandbox/reorg", &["depth"]),
    (
        "POST /sandbox/fault",
        &["kind", "times", "path", "chance", "delay"],
    ),
    ("DELETE /sandbox/fault", &[]),
];

/// The parameters of a request.
type Given<'r> = BTreeMap<Cow<'r, str>, Cow<'r, str>>;

/// Executes a control request.
pub(super) fn answer(sandbox: &Sandbox, request: &Parts) -> Answer {
    let asked = format!("{} {}", request.method, request.uri.path());
    let Some((route, allowed)) = ROUTES.iter().find(|(route, _)| *route == asked) else {
        let routes = ROUTES.map(|(route, names)| match names {
            [] => route.to_owned(),
            _ => format!("{route}?{}=", names.join("=&")),
        });
        let body = json!({ "error": "no such control route", "routes": routes });
        return Answer::new(StatusCode::NOT_FOUND, None, &body);
    };
    let pairs = parse(request.uri.query().unwrap_or("").as_bytes());
    let given: Given<'_> = pairs.collect();
    let unknown = given.keys().find(|name| !allowed.contains(&&***name));
    let done = match unknown {
        Some(name) => {
            let allowed = allowed.join(", ");
            Err(format!("unknown parameter {name:?}; allowed: {allowed}"))
        }
        None if given.len() < pairs.count() => Err("a parameter is given more than once".into()),
        None => execute(sandbox, route, &given),
    };
    match done {
        Ok(body) => Answer::new(StatusCode::OK, None, &body),
        Err(error) => Answer::new(StatusCode::BAD_REQUEST, None, &json!({ "error": error })),
    }
}

fn execute(sandbox: &Sandbox, route: &str, given: &Given<'_>) -> Result<Value, String> {
    Ok(match route {
        "GET /sandbox/examples" => json!(sandbox.examples()),
        "GET /sandbox/counts" => json!(sandbox.counts()),
        "GET /sandbox/journal" => json!({ "requests": sandbox.state().provider.journal }),
        "POST /sandbox/advance" => {
            sandbox.advance(number(given, "blocks", 1, 1..=10_000)?);
            json!(sandbox.tip())
        }
        "POST /sandbox/reorg" => {
            let replaced = sandbox.reorg(number(given, "depth", 1, 1..=10_000)?);
            let tip = sandbox.tip();
            json!({ "height": tip.height, "hash": tip.hash, "replaced": replaced })
        }
        route => {
            match route {
                "POST /sandbox/fault" => sandbox.fault(fault(given)?),
                _ => sandbox.clear_faults(),
            }
            json!({ "faults": sandbox.state().provider.faults.len() })
        }
    })
}

fn fault(given: &Given<'_>) -> Result<Fault, String> {
    let delay = number(given, "delay", 1_000, 0..=600_000)?;
    let kind = match given.get("kind").map_or("", |kind| kind) {
        "close" => FaultKind::Close,
        "stall" => FaultKind::Stall(Duration::from_millis(delay)),
        other => {
            let status = other.parse::<StatusCode>().ok();
            let status = status.filter(|status| (400..600).contains(&status.as_u16()));
            FaultKind::Status(status.ok_or_else(|| {
                format!("kind is {other:?}; allowed is a status from 400 to 599, close, or stall")
            })?)
        }
    };
    let chance = number(given, "chance", 1.0, 0.0..=1.0)?;
    // One with a chance stays until it is cleared.
    let times = if chance < 1.0 { u32::MAX } else { 1 };
    Ok(Fault {
        kind,
        times: number(given, "times", times, 1..=u32::MAX)?,
        path: given.get("path").map(|path| path.to_string()),
        chance,
    })
}

/// A number within bounds, or the default if it is not given.
fn number<T: FromStr + PartialOrd + Display>(
    given: &Given<'_>,
    name: &str,
    default: T,
    allowed: RangeInclusive<T>,
) -> Result<T, String> {
    let Some(text) = given.get(name) else {
        return Ok(default);
    };
    let number = text.parse().ok().filter(|number| allowed.contains(number));
    let (least, most) = (allowed.start(), allowed.end());
    number.ok_or_else(|| format!("{name} is {text:?}; allowed is {least} to {most}"))
}

#[cfg(test)]
mod tests;
