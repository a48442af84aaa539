//! What the next request would do, in words.

use std::net::Ipv4Addr;

use http::{HeaderMap, Method};
use serde_json::{Value, json};

use crate::cache::JudgedResponse;
use crate::cache::decision::Decision;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::reuse::Reuse;
use crate::cache::status::Forward;
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::fill::{LookupKey, Plan};
use crate::gateway::Gateway;
use crate::relay::decide_plain;
use crate::route::Route;

/// What the next request would do, why, and which targets the upstream would be
/// asked for.
pub(super) struct Next {
    does: &'static str,
    why: String,
    asks: Vec<String>,
}

impl Next {
    pub(super) fn new(does: &'static str, why: impl Into<String>) -> Self {
        Self {
            does,
            why: why.into(),
            asks: Vec::new(),
        }
    }

    fn asks<'k>(why: impl Into<String>, keys: impl IntoIterator<Item = &'k Key>) -> Self {
        let asks = keys.into_iter().map(|key| key.target().to_owned());
        Self {
            does: "ask upstream",
            why: why.into(),
            asks: asks.collect(),
        }
    }

    pub(super) fn value(&self) -> Value {
        json!({ "does": self.does, "why": self.why, "asks": self.asks })
    }
}

/// On a route in mode `chain`, `override` or `off`. `judged` is the response
/// that is stored under the key, whether or not it may answer.
pub(super) fn of_filled(
    gateway: &Gateway,
    lookup: &LookupKey,
    decision: Decision<JudgedResponse>,
    judged: Option<&JudgedResponse>,
) -> Next {
    let key = &lookup.key;
    let by = judged.map_or(0, |judged| judged.staleness().as_secs());
    match decision {
        Decision::Serve {
            stored,
            reuse: Reuse::Fresh,
        } => Next::new("hit", fresh(&stored)),
        Decision::Serve { .. } => {
            let plan = planned(gateway, key);
            Next {
                does: "stale hit and refresh",
                why: format!(
                    "It is stale by {by} s, within the route's stale_while_revalidate; meanwhile: {}",
                    plan.why
                ),
                asks: plan.asks,
            }
        }
        Decision::Fetch {
            why: Forward::Bypass,
            ..
        } => Next::asks("The route stores nothing", [key]),
        Decision::Fetch {
            why: Forward::Stale,
            stored,
        } => {
            let plan = planned(gateway, key);
            let stands_in = match stored {
                Some(_) => {
                    "; what is stored stands in where that fails, or takes longer than cache.stale_wait"
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
                let why =
                    "Since a reorg, another block has the height under which the hash is stored";
                Next::asks(why, &lookup.by_hash)
            }
            Some(Freshness::Stale { .. }) => {
                after("What is stored is past every use", gateway, key)
            }
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
        Some(stamp) if stamp.class.ends_with_epoch() => format!(
            "It is stored and fresh: {}, in the present epoch, for {ttl} s at the most",
            stamp.class.name()
        ),
        Some(stamp) => format!(
            "It is stored and fresh: {}, for {ttl} s",
            stamp.class.name()
        ),
        None => format!("It is stored and fresh for {ttl} s"),
    }
}

/// How the key would be fetched.
fn planned(gateway: &Gateway, key: &Key) -> Next {
    let cut = |why: &str| Next::new("cut from stored windows", why);
    if let Some(failure) = gateway.fill.recent_failure(key) {
        let why = format!(
            "it has failed repeatedly ({}), and the upstream is not asked for it again for a while; a stale answer stands in, where there is one",
            failure.name()
        );
        return Next::new("answer with the error that is remembered", why);
    }
    match gateway.fill.plan(key) {
        Plan::Check(other) => Next::asks(
            "what is stored is live and old: if this response of the same tip is unchanged, it is fresh again",
            [&other],
        ),
        Plan::Revalidate(anchor) => Next::asks(
            "if this request shows that the blocks it names still stand, it is fresh again",
            [&anchor],
        ),
        Plan::CutTransaction => cut("its block's stored windows contain the whole transaction"),
        Plan::Cut => cut("the windows that it needs are stored and fresh"),
        Plan::Windows {
            asks,
            disagree: true,
        } => Next::asks(
            "its windows are stored but are from different times; they are fetched anew",
            &asks,
        ),
        Plan::Windows { asks, .. } => Next::asks(
            "it is cut from windows, of which some are not stored and fresh",
            &asks,
        ),
        Plan::Plain => Next::asks("the upstream is asked for it as it is", [key]),
    }
}

/// On a plain route.
pub(super) fn of_plain(gateway: &Gateway, route: &Route, key: &Key, now: Moment) -> Next {
    let (get, fields) = (Method::GET, HeaderMap::new());
    // It matters only to a response that varies by the client's address.
    let peer = Ipv4Addr::UNSPECIFIED.into();
    match decide_plain(&gateway.relay, route, &get, &fields, peer, key, now) {
        Decision::Serve {
            reuse: Reuse::WhileRevalidate,
            ..
        } => Next {
            does: "stale hit and refresh",
            ..Next::asks(
                "It is stale, and may be used while it is validated (RFC 5861)",
                [key],
            )
        },
        Decision::Serve { .. } => Next::new("hit", "It is stored, and may be used by RFC 9111"),
        Decision::Fetch {
            stored: Some(_), ..
        } => Next::asks("What is stored has to be validated", [key]),
        Decision::Fetch { .. } if route.cache.mode != Mode::Respect => {
            Next::asks("The route stores nothing", [key])
        }
        Decision::Fetch { .. } => Next::asks(
            "Nothing is stored that answers a request without fields",
            [key],
        ),
        Decision::OnlyIfCached => Next::new("refuse with 504", "Nothing is stored"),
    }
}
