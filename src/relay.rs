//! The request path of plain routes, whose responses follow the origin's own
//! fields: those with mode `respect` or `headers = "all"`.
//!
//! The gateway comes here once it knows the route and the key. [`recall()`]
//! decides from memory, without waiting. [`Fetch::run`] goes to the upstream:
//! collapsed with other requests where the answer may be stored (`shared`),
//! alone otherwise (`forward`). The rules are in `cache`, each quoted beside
//! its code; this module applies them in order. Responses are sent to clients
//! while they are being stored (`pump`).
//!
//! Invariant: only complete responses are stored. A response that is not stored
//! passes through in bounded memory.

mod answer;
mod content_length;
mod follow;
mod forward;
mod lingering;
mod pump;
mod recall;
mod request_fields;
mod sent;
mod serve;
mod shared;
mod state;
mod storing;
mod uncacheable;
mod update;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, Response, StatusCode, Version};

use crate::cache::Cache;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::sequence::PurgeSequence;
use crate::cache::status::Forward;
use crate::cache::targeted::TargetList;
use crate::cache::variant::Variant;
use crate::clock::Clock;
use crate::identify::{Client, TrustedProxies};
use crate::respond::Responder;
use crate::route::{Route, RouteTable};
use crate::upstream::{Failure, RequestBody, Upstreams};
use crate::wire::Body;
use crate::wire::request_id::RequestId;
pub(crate) use recall::{Recall, decide_plain, recall};
use sent::ForwardedFields;
pub use shared::{Announced, InProgress};
pub use state::RelayState;

/// ordgate's name in `cache-status`, and in the `via` of responses. In the `via`
/// of requests it has a name of its own for each process ([`Relay::pseudonym`]).
const NAME: &str = "ordgate";

/// What relaying needs.
pub struct Relay {
    /// The routes.
    pub(crate) routes: Arc<RouteTable>,
    /// The cache.
    pub(crate) cache: Cache,
    /// What survives reloads.
    pub state: RelayState,
    /// The upstreams of the routes.
    pub(crate) upstreams: Arc<Upstreams>,
    /// The routes that their upstreams say they do not have.
    /// How long the end of a body is waited for, so that a stale response can be
    /// sent where it breaks off.
    pub(crate) wait_for_end: Duration,
    /// Renders responses.
    pub(crate) responder: Arc<Responder>,
    /// The proxies whose forwarding fields are believed.
    pub(crate) trust: TrustedProxies,
    /// The caches whose targeted cache-control fields apply here (RFC 9213).
    pub(crate) targeted_fields: TargetList,
    /// The clock.
    pub(crate) clock: Clock,
    /// The name of this process in the `via` of requests, by which it recognises
    /// requests that have already passed it. No other process has it, so two
    /// ordgates in a row are no loop.
    pub(crate) pseudonym: Arc<str>,
}

impl Relay {
    /// The longest that a client waits for its response to begin.
    fn max_wait(&self, key: &Key) -> Duration {
        let route = self.routes.get(key.route());
        let number = route.map_or(0, |route| route.upstream.number);
        self.upstreams.client(number).max_wait() + Duration::from_secs(1)
    }

    /// The most bytes of a body that is stored.
    fn max_stored(&self, route: &Route) -> u64 {
        let settings = self.upstreams.get(route.upstream.number).settings();
        settings.max_body_bytes.min(self.cache.store().max_body())
    }
}

/// A client's request.
pub(crate) struct ClientRequest {
    pub(crate) method: Method,
    /// Its fields, as received.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    pub(crate) key: Key,
    pub(crate) body: Option<RequestBody>,
    pub(crate) client: Client,
    /// The address of the client's connection.
    pub(crate) peer: IpAddr,
    /// Its id.
    pub(crate) request_id: RequestId,
}

impl ClientRequest {
    /// Its fields as the origin receives them.
    fn forwarded_fields<'a>(&'a self, relay: &'a Relay, route: &Route) -> ForwardedFields<'a> {
        ForwardedFields::of(relay, route, &self.fields, self.peer)
    }

    /// What memory has for it now.
    fn recall(&self, relay: &Relay, route: &Route) -> Recall {
        let now = relay.clock.now();
        let (method, fields, key) = (&self.method, &self.fields, &self.key);
        let from = (self.peer, self.client);
        recall(relay, route, method, fields, from, key, now)
    }
}

/// A request that goes to the upstream.
pub(crate) struct Fetch {
    pub(crate) request: ClientRequest,
    /// Why it is not answered from memory.
    pub(crate) why: Forward,
    /// The selected stored response: it may be used once it is validated, or where
    /// the upstream fails.
    pub(crate) to_validate: Option<Arc<Variant>>,
    /// Whether to send it without the client's conditions, which are then applied
    /// to the answer.
    pub(crate) unconditional: bool,
}

/// The response to one client, and what other requests for the key may do.
struct RelayAnswer {
    response: Response<Body>,
    outcome: Outcome,
    announced: Announced,
}

/// The response, or why there is none.
type RelayResult = Result<RelayAnswer, (Failure, Outcome)>;

/// When a request was sent and its answer received.
#[derive(Clone, Copy)]
struct ExchangeRecord {
    /// The position among purges and removals when it was sent.
    sequence: PurgeSequence,
    requested: SystemTime,
    received: SystemTime,
}

fn forwarded(why: Forward, status: Option<StatusCode>, stored: bool, collapsed: bool) -> Outcome {
    Outcome::Forwarded {
        why,
        status,
        stored,
        collapsed,
    }
}
