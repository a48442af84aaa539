//! What the next request would do, in words.

use std::net::Ipv4Addr;

use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::cache::JudgedResponse;
use crate::cache::decision::Decision;
use crate::cache::key::Key;
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::reuse::Reuse;
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::fill::LookupKey;
use crate::gateway::Gateway;
use crate::route::Route;

/// What the next request would do, why, and the targets that would be requested from
/// the upstream.
pub(super) struct Next {
    does: &'static str,
    why: String,
    upstream_requests: Vec<String>,
}

impl Next {
    pub(super) fn new(does: &'static str, why: impl Into<String>) -> Self {
        Self {
            does,
            why: why.into(),
            upstream_requests: Vec::new(),
        }
    }

    fn fetch<'k>(why: impl Into<String>, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let targets = keys.into_iter().map(|key| key.target().to_owned());
        Self {
            does: "fetch",
            why: why.into(),
            upstream_requests: targets.collect(),
        }
    }

    /// Adds a sentence to the reason.
    pub(super) fn add_note(&mut self, note: Option<&str>) {
        if let Some(note) = note {
            let end = if self.why.ends_with('.') { " " } else { ". " };
            self.why.push_str(&format!("{end}{note}"));
        }
    }

    pub(super) fn value(&self) -> Value {
        json!({
            "does": self.does,
            "why": self.why,
            "upstream_requests": self.upstream_requests,
        })
    }
}

/// On a route in mode `chain`, `override` or `off`. `judged` is the response
/// that is stored under the key, whether or not it may answer.
pub(super) fn of_filled(
    gateway: &Gateway,
    route: &Route,
    lookup: &LookupKey,
    judged: Option<&JudgedResponse>,
    now: Moment,
) -> Next {
    let key = &lookup.key;
    let by = judged.map_or(0, |judged| judged.staleness().as_secs());
    match decide(gateway, route, lookup, now) {
        Decision::Serve {
            stored,
            reuse: Reuse::Fresh,
        } => Next::new("hit", fresh(&stored)),
        Decision::Serve { .. } => {
            let plan = planned(gateway, key);
            Next {
                does: "stale hit and refresh",
                why: format!(
                    "It is stale by {by} s, within the route's stale_while_revalidate. The refresh: {}",
                    plan.why
                ),
                upstream_requests: plan.upstream_requests,
            }
        }
        Decision::Fetch {
            why: Forward::Bypass,
            ..
        } => Next::fetch("The route stores nothing", [key]),
        Decision::Fetch {
            why: Forward::Stale,
            stored,
        } => {
            let plan = planned(gateway, key);
            let stands_in = match stored {
                Some(_) => {
                    "; if that fails, or takes longer than cache.stale_wait, the stored response is served"
                }
                None => "",
            };
            Next {
                why: format!("It is stale by {by} s: {}{stands_in}", plan.why),
                ..plan
            }
        }
        Decision::Fetch { .. } | Decision::OnlyIfCached => match judged.map(|j| j.freshness) {
            Some(Freshness::Fresh { .. } | Freshness::BecameFinal { .. }) => {
                let why = "The response stored for this height is of another block than the requested hash, because of a reorg, so the hash is fetched";
                Next::fetch(why, &lookup.by_hash)
            }
            Some(Freshness::Stale { .. }) => after(
                "The stored response is too old to be served, even stale",
                gateway,
                key,
            ),
            None => after("Nothing is stored under this key", gateway, key),
        },
    }
}

fn after(why: &str, gateway: &Gateway, key: &Key) -> Next {
    let plan = planned(gateway, key);
    Next {
        why: format!("{why}: {}", plan.why),
        ..plan
    }
}

fn fresh(judged: &JudgedResponse) -> String {
    let ttl = judged.ttl();
    if let Freshness::BecameFinal { .. } = judged.freshness {
        return "Its blocks have become final since it was stored; it will be stored as final"
            .to_owned();
    }
    match judged.stored.stamp() {
        Some(stamp) => format!(
            "It is stored and fresh: {}, for {ttl} s",
            stamp.class.name()
        ),
        None => format!("It is stored and fresh for {ttl} s"),
    }
}

/// How the key would be fetched.
fn planned(gateway: &Gateway, key: &Key) -> Next {
    let requests = gateway.fill.requests(key);
    let now = gateway.clock.now();
    let mut failures = requests.iter();
    if let Some(failure) = failures.find_map(|key| gateway.fill.failures.recent(key, now)) {
        let why = format!(
            "its last fetches failed ({}), so it is not fetched again for a while; a stale response is served if one is stored",
            failure.reason.name()
        );
        return Next::new("answer with the error that is remembered", why);
    }
    match &requests[..] {
        [] => Next::new(
            "cut from stored windows",
            "the windows that it needs are stored and fresh",
        ),
        [own] if own == key => Next::fetch("it is fetched with one request", [key]),
        missing => Next::fetch(
            "it is cut from windows, and these are missing or stale",
            missing,
        ),
    }
}

/// What to do with a GET without fields.
fn decide(
    gateway: &Gateway,
    route: &Route,
    lookup: &LookupKey,
    now: Moment,
) -> Decision<JudgedResponse> {
    // The address matters only to a response that varies by it.
    let peer = Ipv4Addr::UNSPECIFIED.into();
    let request = (&Method::GET, &HeaderMap::new(), peer);
    gateway.fill.decide(route, lookup, request, now)
}

/// On a plain route.
pub(super) fn of_plain(gateway: &Gateway, route: &Route, key: Key, now: Moment) -> Next {
    let lookup = LookupKey::from(key);
    let key = &lookup.key;
    match decide(gateway, route, &lookup, now) {
        Decision::Serve {
            reuse: Reuse::WhileRevalidate,
            ..
        } => Next {
            does: "stale hit and refresh",
            ..Next::fetch(
                "It is stale, and may be used while it is validated (RFC 5861)",
                [key],
            )
        },
        Decision::Serve { .. } => Next::new("hit", "It is stored, and may be used by RFC 9111"),
        Decision::Fetch {
            stored: Some(_), ..
        } => Next::fetch("The stored response must be validated first", [key]),
        Decision::Fetch { .. } if route.cache.mode != Mode::Respect => {
            Next::fetch("The route stores nothing", [key])
        }
        Decision::Fetch { .. } => Next::fetch(
            "Nothing is stored that answers a request without fields",
            [key],
        ),
        Decision::OnlyIfCached => Next::new("refuse with 504", "Nothing is stored"),
    }
}
