//! `ratelimit` and `ratelimit-policy`, which are structured fields (RFC 9651):
//! draft-ietf-httpapi-ratelimit-headers 7, a dictionary such as
//! `limit=100, remaining=50, reset=5`, and 8 and later, a list of service limits
//! such as `"default";r=50;t=30`, which ordgate itself sends. Pure.
//!
//! Each line is parsed on its own, so that of two intermediaries that report limits
//! neither hides the limits of the other.

use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};

use super::{ReportedLimit, add, until};

struct QuotaPolicy {
    name: String,
    window: Option<u64>,
    /// Whether the unit is requests, not bytes or concurrent requests (draft 8, quota
    /// units).
    counts_requests: bool,
}

/// Adds the service limits of a response that count requests.
pub(super) fn read(fields: &HeaderMap, wall: SystemTime, to: &mut Vec<ReportedLimit>) {
    let policies = policies(fields);
    for line in fields.get_all("ratelimit") {
        if let Some((remaining, end)) = draft_7(line) {
            add(to, remaining, end.map(|end| until(end, wall)), None);
            continue;
        }
        for entry in list(line) {
            let ListEntry::Item(item) = entry else {
                continue;
            };
            let (parameter, name) = (
                |name| item.params.get(name).and_then(integer),
                name(&item.bare_item),
            );
            let policy = policies
                .iter()
                .find(|policy| Some(&policy.name) == name.as_ref());
            let counts_requests = policy.is_none_or(|policy| policy.counts_requests);
            if let Some(remaining) = parameter("r").filter(|_| counts_requests) {
                let end = parameter("t").map(|end| until(end, wall));
                add(to, remaining, end, policy.and_then(|policy| policy.window));
            }
        }
    }
}

/// The requests left, and the end of the window, by a line of draft 7.
fn draft_7(line: &HeaderValue) -> Option<(u64, Option<u64>)> {
    let members: Dictionary = Parser::new(line.as_bytes()).parse().ok()?;
    let member = |name: &str| match members.get(name)? {
        ListEntry::Item(item) => integer(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    Some((member("remaining")?, member("reset")))
}

/// The named policies.
fn policies(fields: &HeaderMap) -> Vec<QuotaPolicy> {
    let entries = fields.get_all("ratelimit-policy").iter().flat_map(list);
    let policy = |entry: ListEntry| match entry {
        ListEntry::Item(item) => Some(QuotaPolicy {
            name: name(&item.bare_item)?,
            window: item.params.get("w").and_then(integer),
            counts_requests: match item.params.get("qu") {
                Some(unit) => name(unit).is_some_and(|unit| unit == "requests"),
                None => true,
            },
        }),
        ListEntry::InnerList(_) => None,
    };
    entries.filter_map(policy).collect()
}

/// The members of a line; none if it cannot be parsed.
fn list(line: &HeaderValue) -> List {
    Parser::new(line.as_bytes()).parse().unwrap_or_default()
}

/// A name: a string, or a token, which some servers send.
fn name(item: &BareItem) -> Option<String> {
    let string = item.as_string().map(|string| string.as_str());
    let name = string.or_else(|| item.as_token().map(|token| token.as_str()));
    name.map(str::to_owned)
}

fn integer(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}
