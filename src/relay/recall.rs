//! What memory says of a request, without waiting for anything.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Response};

use super::sent::Sent;
use super::serve::serve;
use super::{Relay, bounds};
use crate::cache::directives::RequestDirectives;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::Mode;
use crate::cache::reuse::{Decision, Origin, decide};
use crate::cache::status::Forward;
use crate::cache::variant::Variant;
use crate::cache::{reuse, validator};
use crate::clock::Moment;
use crate::route::Route;
use crate::wire::Body;

/// What memory says of a request.
pub(crate) enum Recall {
    /// The answer.
    Answer {
        /// It.
        response: Response<Body>,
        /// How it came about.
        outcome: Outcome,
        /// Whether it is to be validated meanwhile (RFC 5861 §3).
        refresh: bool,
    },
    /// Go forward.
    Forward {
        /// Why.
        why: Forward,
        /// What is stored and would do if it were validated.
        chosen: Option<Arc<Variant>>,
    },
    /// The client wants no forwarding (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// What memory has for a request, without waiting for anything.
pub(crate) fn recall(
    relay: &Relay,
    route: &Route,
    method: &Method,
    fields: &HeaderMap,
    peer: IpAddr,
    key: &Key,
    now: Moment,
) -> Recall {
    let forward = |why, chosen| Recall::Forward { why, chosen };
    if route.cache.mode != Mode::Respect {
        return forward(Forward::Bypass, None);
    }
    if let Err(why) = reuse::applies(method, fields) {
        return forward(why, None);
    }
    let directives = RequestDirectives::of(fields);
    let (why, chosen) = match choose(relay, key, &Sent::of(relay, route, fields, peer)) {
        Err(why) => (why, None),
        Ok(chosen) => (Forward::Request, Some(chosen)),
    };
    let Some(chosen) = chosen.filter(|_| !validator::for_the_origin(fields)) else {
        return match directives.only_if_cached {
            true => Recall::OnlyIfCached,
            false => forward(why, None),
        };
    };
    let wall = relay.clock.wall(now);
    let decision = decide(
        &directives,
        &chosen.reuse,
        wall,
        Origin::Reachable,
        &bounds(&route.cache),
    );
    match decision {
        Decision::Fresh
        | Decision::MaxStale
        | Decision::StaleWhileRevalidate
        | Decision::StaleIfError => {
            let outcome = Outcome::Hit {
                ttl: chosen.reuse.ttl(wall),
            };
            Recall::Answer {
                response: serve(relay, route, &chosen, method, fields, key, outcome, wall),
                outcome,
                refresh: decision == Decision::StaleWhileRevalidate,
            }
        }
        Decision::Validate(why) => forward(why, Some(chosen)),
        Decision::OnlyIfCached => Recall::OnlyIfCached,
    }
}

/// The stored response that `Vary` selects, the most recent of several.
pub(super) fn choose(relay: &Relay, key: &Key, sent: &Sent<'_>) -> Result<Arc<Variant>, Forward> {
    let variants = relay.cache.variants(key).ok_or(Forward::UriMiss)?;
    let matching = variants
        .iter()
        .rev()
        .find(|v| v.nominated.matches(&v.secondary, sent));
    matching.cloned().ok_or(Forward::VaryMiss)
}
