//! Answering from memory on plain routes, without waiting.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Response};

use super::Relay;
use super::sent::ForwardedFields;
use super::serve::serve;
use crate::cache::decision::{Basis, Decision, RequestFacts, decide};
use crate::cache::directives::RequestDirectives;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::reuse::{Origin, Reuse, applies};
use crate::cache::status::Forward;
use crate::cache::validator;
use crate::cache::variant::Variant;
use crate::clock::Moment;
use crate::identify::Client;
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

/// What memory has for a request.
pub(crate) enum Recall {
    /// A response.
    Answer {
        /// The response.
        response: Response<Body>,
        /// How it came about.
        outcome: Outcome,
        /// Whether the stored response is to be validated meanwhile (RFC 5861 §3).
        refresh: bool,
    },
    /// Nothing; the request is to be forwarded.
    Forward {
        /// Why.
        why: Forward,
        /// The stored response that the upstream may validate.
        chosen: Option<Arc<Variant>>,
    },
    /// Nothing, and the client forbids forwarding (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// Answers a request from memory, if memory may answer it.
pub(crate) fn recall(
    relay: &Relay,
    route: &Route,
    method: &Method,
    fields: &HeaderMap,
    (peer, client): (IpAddr, Client),
    key: &Key,
    now: Moment,
) -> Recall {
    let (stored, reuse) = match decide_plain(relay, route, method, fields, peer, key, now) {
        Decision::Serve { stored, reuse } => (stored, reuse),
        Decision::Fetch { why, stored } => {
            let chosen = stored;
            return Recall::Forward { why, chosen };
        }
        Decision::OnlyIfCached => return Recall::OnlyIfCached,
    };
    let wall = relay.clock.wall(now);
    let outcome = Outcome::Hit {
        ttl: stored.reuse.ttl(wall),
    };
    Recall::Answer {
        response: serve(
            relay, route, &stored, method, fields, client, key, outcome, wall,
        ),
        outcome,
        refresh: reuse == Reuse::WhileRevalidate,
    }
}

/// What to do with a request on a plain route. `/explain` asks it too.
pub(crate) fn decide_plain(
    relay: &Relay,
    route: &Route,
    method: &Method,
    fields: &HeaderMap,
    peer: IpAddr,
    key: &Key,
    now: Moment,
) -> Decision<Arc<Variant>> {
    let directives = RequestDirectives::of(fields);
    let request = RequestFacts {
        not_reusable: applies(method, fields).err(),
        directives: &directives,
        // A typed route forwards no field.
        for_the_origin: route.headers == HeaderMode::All && validator::for_the_origin(fields),
        origin: Origin::Reachable,
    };
    let now = relay.clock.wall(now);
    decide(
        &route.cache,
        &request,
        || choose(relay, key, &ForwardedFields::of(relay, route, fields, peer)),
        |variant| Basis::Origin {
            facts: &variant.reuse,
            now,
        },
    )
}

/// The stored response that `Vary` selects, the most recent of several.
pub(super) fn choose(
    relay: &Relay,
    key: &Key,
    sent: &ForwardedFields<'_>,
) -> Result<Arc<Variant>, Forward> {
    let variants = relay.cache.variants(key).ok_or(Forward::UriMiss)?;
    let matching = variants
        .iter()
        .rev()
        .find(|v| v.nominated.matches(&v.secondary, sent));
    matching.cloned().ok_or(Forward::VaryMiss)
}
