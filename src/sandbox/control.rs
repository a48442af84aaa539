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
use super::faults::{Fault, FaultKind};
use super::target;

/// The most blocks that one request may add.
const MAX_BLOCKS: u32 = 10_000;

/// The longest delay of a fault, in milliseconds.
const MAX_DELAY: u32 = 600_000;

/// The longest oversize body, in bytes.
const MAX_BODY: u32 = 1 << 30;

const KINDS: &str = "a status (500, 503, 429, 401, 403, 410, ...: 400 to 599), redirect, truncate, close, stall, drip, \
                     html, garbage, oversize, oversize-chunked";

/// True for targets of control routes.
pub(super) fn is_control(target: &str) -> bool {
    let (path, _) = target::split(target);
    path == "/sandbox" || path.starts_with("/sandbox/")
}

/// Executes a control request to the server of this API.
pub(super) fn answer(
    sandbox: &Sandbox,
    api: Api,
    method: &Method,
    target: &str,
) -> (StatusCode, Value) {
    let (path, query) = target::split(target);
    let result = match (method.as_str(), path) {
        ("GET" | "HEAD", "/sandbox/examples") => Ok(sandbox.examples().to_json()),
        ("GET" | "HEAD", "/sandbox/counts") => Ok(sandbox.counts_at(api).to_json()),
        ("POST", "/sandbox/advance") => number(query, "blocks", 1, (1, MAX_BLOCKS)).map(|blocks| {
            sandbox.advance(blocks);
            tip(sandbox)
        }),
        ("POST", "/sandbox/reorg") => number(query, "depth", 1, (1, u32::MAX)).map(|depth| {
            let replaced = sandbox.reorg(depth);
            with(tip(sandbox), "replaced", replaced)
        }),
        ("POST", "/sandbox/rollback") => number(query, "depth", 1, (1, u32::MAX)).map(|depth| {
            let deleted = sandbox.rollback(depth);
            with(tip(sandbox), "deleted", deleted)
        }),
        ("POST", "/sandbox/apply") => {
            let applied = sandbox.apply();
            Ok(with(tip(sandbox), "applied", applied))
        }
        ("POST", "/sandbox/tokens-ahead") => {
            sandbox.tokens_ahead();
            Ok(tip(sandbox))
        }
        ("POST", "/sandbox/fault") => fault(query).map(|fault| {
            let fault = fault.at(api);
            let ordered = format!("{fault:?}");
            sandbox.fault(fault);
            json!({ "ordered": ordered })
        }),
        ("DELETE", "/sandbox/fault") => {
            sandbox.faults().clear(api);
            Ok(json!({ "faults": 0 }))
        }
        _ => {
            let routes = json!([
                "GET /sandbox/examples",
                "GET /sandbox/counts",
                "POST /sandbox/advance?blocks=N",
                "POST /sandbox/reorg?depth=N",
                "POST /sandbox/rollback?depth=N",
                "POST /sandbox/apply",
                "POST /sandbox/tokens-ahead",
                "POST /sandbox/fault?kind=K&times=N&path=PREFIX&delay=MS&retry-after=S&bytes=N",
                "DELETE /sandbox/fault",
            ]);
            return (
                StatusCode::NOT_FOUND,
                json!({ "error": "no such control route", "routes": routes }),
            );
        }
    };
    match result {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (StatusCode::BAD_REQUEST, json!({ "error": error })),
    }
}

fn tip(sandbox: &Sandbox) -> Value {
    let tip = sandbox.tip();
    json!({ "height": tip.height, "hash": tip.hash })
}

fn with(mut body: Value, member: &str, count: u32) -> Value {
    body[member] = Value::from(count);
    body
}

fn fault(query: &str) -> Result<Fault, String> {
    let value = |name| target::values(query, name).next();
    let delay =
        || number(query, "delay", 1_000, (0, MAX_DELAY)).map(|ms| Duration::from_millis(ms.into()));
    let bytes = || number(query, "bytes", 64 << 20, (1, MAX_BODY)).map(u64::from);
    let kind = value("kind").unwrap_or_default();
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
    let times = number(query, "times", 1, (1, u32::MAX))?;
    Ok(Fault {
        kind,
        times,
        path: value("path").filter(|path| !path.is_empty()),
        api: Api::Both,
    })
}

/// Reads a whole number within bounds. The error names the allowed values.
fn number(query: &str, name: &str, default: u32, (least, most): (u32, u32)) -> Result<u32, String> {
    let mut values = target::values(query, name);
    let (first, second) = (values.next(), values.next());
    let Some(text) = first else {
        return Ok(default);
    };
    let number = text
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number));
    match (number, second) {
        (Some(number), None) => Ok(number),
        _ => Err(format!(
            "{name} is {text:?}; allowed is one whole number from {least} to {most}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{Api, answer, is_control};
    use crate::sandbox::{Sandbox, Settings};

    #[test]
    fn answers_name_the_result_or_the_allowed_values() {
        let sandbox = Sandbox::new(Settings {
            blocks: 10,
            ..Settings::default()
        });
        for (request, status, says) in [
            ("POST /sandbox/advance?blocks=0", 400, "from 1 to 10000"),
            (
                "POST /sandbox/advance?blocks=1&blocks=1",
                400,
                "one whole number",
            ),
            ("POST /sandbox/reorg?depth=x", 400, "depth is \\\"x\\\""),
            ("POST /sandbox/fault", 400, "oversize-chunked"),
            ("POST /sandbox/fault?kind=200", 400, "400 to 599"),
            (
                "POST /sandbox/fault?kind=stall&delay=-1",
                400,
                "from 0 to 600000",
            ),
            (
                "POST /sandbox/fault?kind=429&times=2&path=/runes",
                200,
                "retry_after: Some(1)",
            ),
            ("GET /sandbox/advance", 404, "POST /sandbox/advance"),
            ("GET /sandbox", 404, "GET /sandbox/examples"),
            ("GET /sandbox/counts", 200, "busiest_minute"),
            (
                "GET /sandbox/examples",
                200,
                "/ordinals/v1/brc-20/tokens/ordi",
            ),
            ("POST /sandbox/advance", 200, "\"height\":840010"),
            ("POST /sandbox/reorg?depth=2", 200, "\"replaced\":2"),
            ("POST /sandbox/rollback", 200, "\"height\":840009"),
            ("POST /sandbox/apply", 200, "\"height\":840010"),
            ("POST /sandbox/tokens-ahead", 200, "840010"),
            ("DELETE /sandbox/fault", 200, "faults"),
        ] {
            let (method, target) = request.split_once(' ').unwrap();
            let method = method.parse().unwrap();
            let (code, body) = answer(&sandbox, Api::Both, &method, target);
            assert_eq!(code.as_u16(), status, "{request}: {body}");
            assert!(body.to_string().contains(says), "{request}: {body}");
        }
    }

    #[test]
    fn control_paths_are_those_under_sandbox() {
        assert!(is_control("/sandbox/counts") && is_control("/sandbox?x"));
        assert!(!is_control("/sandboxes") && !is_control("/runes/v1/"));
    }
}
