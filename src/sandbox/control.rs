//! Control routes: the sandbox's methods over HTTP.
//!
//! `server` calls it for every path under `/sandbox`. With one server for each API, counts and faults are those of the
//! server that receives the request; the chain is common. Invariants: control requests need no key and are neither
//! counted nor limited; an invalid one gets a 400 that names the allowed values. The routes have no protection, so a
//! sandbox should listen on loopback only.

use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::Sandbox;
use super::api::Api;
use super::faults::{ALWAYS, Fault, FaultKind, MAX_PATH};
use super::journal::MOST_REQUESTS;
use super::target;

/// The most blocks that one request may add.
const MAX_BLOCKS: u32 = 10_000;

/// The longest delay of a fault, in milliseconds.
const MAX_DELAY: u32 = 600_000;
/// The most times that a fault may apply. One more stands for no end.
const MAX_TIMES: u32 = u32::MAX - 1;

/// The longest oversize body, in bytes.
const MAX_BODY: u32 = 1 << 30;

const KINDS: &str = "a status (500, 503, 429, 401, 403, 410, ...: 400 to 599), redirect, truncate, close, stall, drip, \
                     html, garbage, oversize, oversize-chunked";

/// True for targets of control routes.
pub(super) fn is_control(target: &str) -> bool {
    let (path, _) = target::split(target);
    path == "/sandbox" || path.starts_with("/sandbox/")
}

/// The control routes: method, path, the parameters that it takes, and how the 404 shows it.
const ROUTES: &[(&str, &str, &[&str], &str)] = &[
    ("GET", "/sandbox/examples", &[], "GET /sandbox/examples"),
    ("GET", "/sandbox/counts", &[], "GET /sandbox/counts"),
    (
        "GET",
        "/sandbox/journal",
        &["last"],
        "GET /sandbox/journal?last=N",
    ),
    (
        "POST",
        "/sandbox/advance",
        &["blocks"],
        "POST /sandbox/advance?blocks=N",
    ),
    (
        "POST",
        "/sandbox/reorg",
        &["depth"],
        "POST /sandbox/reorg?depth=N",
    ),
    (
        "POST",
        "/sandbox/rollback",
        &["depth"],
        "POST /sandbox/rollback?depth=N",
    ),
    ("POST", "/sandbox/apply", &[], "POST /sandbox/apply"),
    (
        "POST",
        "/sandbox/tokens-ahead",
        &[],
        "POST /sandbox/tokens-ahead",
    ),
    ("GET", "/sandbox/fault", &[], "GET /sandbox/fault"),
    (
        "POST",
        "/sandbox/fault",
        &[
            "kind",
            "times",
            "path",
            "chance",
            "delay",
            "retry-after",
            "bytes",
        ],
        "POST /sandbox/fault?kind=K&times=N&path=PREFIX&chance=P&delay=MS&retry-after=S&bytes=N",
    ),
    (
        "DELETE",
        "/sandbox/fault",
        &["id"],
        "DELETE /sandbox/fault?id=N",
    ),
];

/// Executes a control request to the server of this API.
pub(super) fn answer(
    sandbox: &Sandbox,
    api: Api,
    method: &Method,
    target: &str,
) -> (StatusCode, Value) {
    let (path, query) = target::split(target);
    let method = match method.as_str() {
        "HEAD" => "GET",
        method => method,
    };
    let known = ROUTES
        .iter()
        .find(|(known, at, ..)| *known == method && *at == path);
    let Some((.., parameters, _)) = known else {
        let routes: Vec<_> = ROUTES.iter().map(|(.., shown)| *shown).collect();
        return (
            StatusCode::NOT_FOUND,
            json!({ "error": "no such control route", "routes": routes }),
        );
    };
    let result = check_names(query, parameters).and_then(|()| match (method, path) {
        ("GET", "/sandbox/examples") => Ok(sandbox.examples().to_json()),
        ("GET", "/sandbox/counts") => Ok(sandbox.counts_at(api).to_json()),
        ("GET", "/sandbox/journal") => {
            let most = number(query, "last", 100, (1, MOST_REQUESTS))?;
            Ok(sandbox.journal().last(api, most))
        }
        ("GET", "/sandbox/fault") => {
            let faults = sandbox.faults();
            let faults = faults.list(api).map(|(id, fault)| shown(id, fault));
            Ok(json!({ "faults": faults.collect::<Vec<_>>() }))
        }
        ("POST", "/sandbox/fault") => add_fault(sandbox, fault(query)?.at(api)),
        ("DELETE", "/sandbox/fault") => remove_faults(sandbox, api, query),
        _ => change_chain(sandbox, path, query),
    });
    match result {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error })),
    }
}

/// Refuses parameters that a route does not take.
fn check_names(query: &str, allowed: &[&str]) -> Result<(), String> {
    let Some(unknown) = target::names(query).find(|name| !allowed.contains(&&**name)) else {
        return Ok(());
    };
    let allowed = match allowed {
        [] => "none".to_owned(),
        allowed => allowed.join(", "),
    };
    Err(format!("unknown parameter {unknown:?}; allowed: {allowed}"))
}

/// Executes a `POST` that changes the chain, and answers with the tip.
fn change_chain(sandbox: &Sandbox, path: &str, query: &str) -> Result<Value, String> {
    let depth = || number(query, "depth", 1, (1, u32::MAX));
    let changed = match path {
        "/sandbox/advance" => {
            sandbox.advance(number(query, "blocks", 1, (1, MAX_BLOCKS))?);
            None
        }
        "/sandbox/reorg" => Some(("replaced", sandbox.reorg(depth()?))),
        "/sandbox/rollback" => Some(("deleted", sandbox.rollback(depth()?))),
        "/sandbox/apply" => Some(("applied", sandbox.apply())),
        _ => {
            sandbox.tokens_ahead();
            None
        }
    };
    let mut body = tip(sandbox);
    if let Some((member, count)) = changed {
        body[member] = Value::from(count);
    }
    Ok(body)
}

fn add_fault(sandbox: &Sandbox, fault: Fault) -> Result<Value, String> {
    let id = sandbox.faults().push(fault.clone());
    let id = id.ok_or("there are too many faults; DELETE /sandbox/fault clears them")?;
    Ok(shown(id, &fault))
}

/// Removes the fault that the query names, or all of the server of this API.
fn remove_faults(sandbox: &Sandbox, api: Api, query: &str) -> Result<Value, String> {
    let mut faults = sandbox.faults();
    match target::values(query, "id").next() {
        None => faults.clear(api),
        Some(_) => {
            let id = number(query, "id", 0, (1, u32::MAX))?;
            if !faults.remove(api, id.into()) {
                return Err(format!(
                    "there is no fault {id}; GET /sandbox/fault lists them"
                ));
            }
        }
    }
    Ok(json!({ "faults": faults.list(api).count() }))
}

/// A fault as JSON, with the parameters that it was made with.
fn shown(id: u64, fault: &Fault) -> Value {
    let millis = |delay: &Duration| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    let mut body = json!({
        "id": id,
        "kind": fault.kind.name(),
        "times": (fault.times != u32::MAX).then_some(fault.times),
        "path": fault.path,
        "chance": f64::from(fault.chance) / f64::from(ALWAYS),
    });
    match &fault.kind {
        FaultKind::Status {
            status,
            retry_after,
        } => {
            body["kind"] = status.as_str().into();
            body["retry-after"] = json!(retry_after);
        }
        FaultKind::Stall(delay) | FaultKind::Drip(delay) => body["delay"] = millis(delay).into(),
        FaultKind::Oversize { bytes, .. } => body["bytes"] = (*bytes).into(),
        FaultKind::Redirect
        | FaultKind::Truncate
        | FaultKind::Close
        | FaultKind::Html
        | FaultKind::Garbage => {}
    }
    body
}

fn tip(sandbox: &Sandbox) -> Value {
    let tip = sandbox.tip();
    json!({ "height": tip.height, "hash": tip.hash })
}

fn fault(query: &str) -> Result<Fault, String> {
    let kind = text(query, "kind")?.unwrap_or_default();
    let delay =
        || number(query, "delay", 1_000, (0, MAX_DELAY)).map(|ms| Duration::from_millis(ms.into()));
    let bytes = || number(query, "bytes", 64 << 20, (1, MAX_BODY)).map(u64::from);
    let kind = match kind.as_str() {
        "redirect" => FaultKind::Redirect,
        "truncate" => FaultKind::Truncate,
        "close" => FaultKind::Close,
        "stall" => FaultKind::Stall(delay()?),
        "drip" => FaultKind::Drip(delay()?),
        "html" => FaultKind::Html,
        "garbage" => FaultKind::Garbage,
        "oversize" => FaultKind::Oversize {
            bytes: bytes()?,
            declared: true,
        },
        "oversize-chunked" => FaultKind::Oversize {
            bytes: bytes()?,
            declared: false,
        },
        other => {
            let status = other.parse().ok().filter(|code| (400..600).contains(code));
            let Some(status) = status.and_then(|code| StatusCode::from_u16(code).ok()) else {
                return Err(format!("kind is {other:?}; allowed is {KINDS}"));
            };
            // A 429 has `retry-after` unless the query sets it to zero.
            let default = u32::from(status == StatusCode::TOO_MANY_REQUESTS);
            let seconds = number(query, "retry-after", default, (0, 86_400))?;
            FaultKind::Status {
                status,
                retry_after: (seconds > 0).then_some(seconds),
            }
        }
    };
    check_goes_with(query, &kind)?;
    let chance = chance(query)?;
    // One with a chance stays until it is removed.
    let times = if chance.is_none() { 1 } else { u32::MAX };
    let path = text(query, "path")?.filter(|path| !path.is_empty());
    if let Some(bytes) = path.as_ref().map(String::len)
        && bytes > MAX_PATH
    {
        return Err(format!(
            "path has {bytes} bytes; allowed are up to {MAX_PATH}"
        ));
    }
    if let Some(path) = &path
        && (!path.starts_with('/') || path.starts_with("/sandbox"))
    {
        return Err(format!(
            "path is {path:?}; allowed is how a path begins, from its first /, and not /sandbox"
        ));
    }
    Ok(Fault {
        kind,
        times: number(query, "times", times, (1, MAX_TIMES))?,
        path,
        api: Api::Both,
        chance: chance.unwrap_or(ALWAYS),
    })
}

/// Refuses a parameter that has no effect on faults of this kind.
fn check_goes_with(query: &str, kind: &FaultKind) -> Result<(), String> {
    let has_delay = matches!(kind, FaultKind::Stall(_) | FaultKind::Drip(_));
    let is_status = matches!(kind, FaultKind::Status { .. });
    let is_oversize = matches!(kind, FaultKind::Oversize { .. });
    for (name, is_allowed, kinds) in [
        ("delay", has_delay, "stall or drip"),
        ("retry-after", is_status, "a status"),
        ("bytes", is_oversize, "oversize or oversize-chunked"),
    ] {
        if !is_allowed && target::values(query, name).next().is_some() {
            return Err(format!("{name} goes with kind={kinds} only"));
        }
    }
    Ok(())
}

/// A parameter that may be given once.
fn text(query: &str, name: &str) -> Result<Option<String>, String> {
    let mut values = target::values(query, name);
    match (values.next(), values.next()) {
        (Some(first), Some(second)) => Err(format!(
            "{name} is {first:?} and {second:?}; allowed is one"
        )),
        (first, _) => Ok(first),
    }
}

/// Reads the chance of a fault, in millionths; `None` if it is not given.
fn chance(query: &str) -> Result<Option<u32>, String> {
    let Some(text) = text(query, "chance")? else {
        return Ok(None);
    };
    let share: Option<f64> = text.parse().ok();
    let millionths = share.map(|share| share * f64::from(ALWAYS));
    match millionths.filter(|chance| *chance >= 1.0 && *chance <= f64::from(ALWAYS)) {
        Some(chance) => Ok(Some(chance as u32)),
        None => Err(format!(
            "chance is {text:?}; allowed is a number from 0.000001 to 1"
        )),
    }
}

/// Reads a whole number within bounds. The error names the allowed values.
fn number(query: &str, name: &str, default: u32, (least, most): (u32, u32)) -> Result<u32, String> {
    let Some(text) = text(query, name)? else {
        return Ok(default);
    };
    let number = text.parse().ok();
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        format!("{name} is {text:?}; allowed is a whole number from {least} to {most}")
    })
}

#[cfg(test)]
mod tests;
