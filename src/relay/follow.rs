//! What the announcement of a leader means for a request that waited for it.

use std::sync::Arc;
use std::time::SystemTime;

use http::Response;

use super::serve::{replace_cache_status, serve_in_progress};
use super::shared::{Announced, InProgress};
use super::{Fetch, Recall, Relay, RelayAnswer, RelayResult, forwarded};
use crate::cache::decision::stale_bounds;
use crate::cache::directives::RequestDirectives;
use crate::cache::outcome::Outcome;
use crate::cache::reuse::{Origin, StaleBounds, may_reuse};
use crate::cache::status::Forward;
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::reason::Reason;
use crate::route::Route;
use crate::upstream::Failure;
use crate::wire::Body;

/// What a waiting request does next.
pub(super) enum Followed {
    /// It has its response.
    Done(Box<RelayResult>),
    /// It joins others or leads, for a response that varies by these fields.
    Again(Option<Nominated>),
    /// It goes to the upstream alone.
    Alone,
}

impl Followed {
    fn response(response: Response<Body>, outcome: Outcome) -> Self {
        Self::Done(Box::new(Ok(RelayAnswer {
            response,
            outcome,
            announced: Announced::Unshared,
        })))
    }
}

impl Fetch {
    /// What the leader's announcement means for this request, which arrived at a
    /// given time. `shared` is the key under which they were collapsed.
    pub(super) fn follow(
        &self,
        relay: &Relay,
        route: &Route,
        shared: &[u8],
        announced: Announced,
        arrived: SystemTime,
    ) -> Followed {
        match announced {
            Announced::Stored(variant) => self.follow_stored(relay, route, variant, arrived),
            Announced::InProgress(begun) => {
                self.follow_in_progress(relay, route, shared, &begun, arrived)
            }
            // The answer was the leader's alone, or the key is now known to be
            // not shareable.
            Announced::Unshared => Followed::Again(None),
            // The leader's client has used up its share; this one may have not.
            Announced::Failed(Some(failure), ..) if failure.is_of_client() => Followed::Again(None),
            Announced::Failed(failure, origin, reason) => {
                self.follow_failed(relay, route, failure, (origin, reason))
            }
        }
    }

    fn follow_stored(
        &self,
        relay: &Relay,
        route: &Route,
        variant: Option<Arc<Variant>>,
        arrived: SystemTime,
    ) -> Followed {
        match self.request.recall(relay, route) {
            Recall::Answer { mut response, .. } => {
                let status = Some(response.status());
                let outcome = forwarded(self.why, status, false, true);
                let value = relay.responder.cache_status(outcome, &self.request.key);
                replace_cache_status(response.headers_mut(), value);
                Followed::response(response, outcome)
            }
            // Another variant was stored.
            Recall::Forward {
                why: Forward::VaryMiss | Forward::UriMiss,
                ..
            } => Followed::Again(None),
            // It took longer to arrive than it is fresh. Requests that waited for
            // it may use it all the same.
            Recall::Forward {
                chosen: Some(chosen),
                ..
            } if variant.is_some_and(|variant| Arc::ptr_eq(&variant, &chosen))
                && self.waited_for(&chosen, arrived) =>
            {
                let now = relay.clock.wall(relay.clock.now());
                let outcome = forwarded(self.why, Some(chosen.status), false, true);
                let announced = Announced::Unshared;
                let answer = self.answer_from(relay, route, &chosen, outcome, now, announced);
                Followed::Done(Box::new(Ok(answer)))
            }
            Recall::Forward { .. } | Recall::OnlyIfCached => Followed::Alone,
        }
    }

    fn follow_in_progress(
        &self,
        relay: &Relay,
        route: &Route,
        shared: &[u8],
        begun: &Arc<InProgress>,
        arrived: SystemTime,
    ) -> Followed {
        let variant = &begun.variant;
        let sent = self.request.forwarded_fields(relay, route);
        if !variant.nominated.matches(&variant.secondary, &sent) {
            return Followed::Again(Some(variant.nominated.clone()));
        }
        let now = relay.clock.wall(relay.clock.now());
        let store = relay.cache.store();
        let overtaken = store.may_be_overtaken(&self.request.key, begun.sequence);
        let waited = self.waited_for(variant, arrived);
        if overtaken || !waited && !is_fresh(variant, now) {
            // Nor may any later request use it.
            let is_it = |announced: &Announced| matches!(announced, Announced::InProgress(now) if Arc::ptr_eq(now, begun));
            relay.state.fetching.retire(shared, is_it);
            return Followed::Again(None);
        }
        if !waited && !self.accepts(route, variant, now) {
            return Followed::Alone;
        }
        let outcome = forwarded(self.why, Some(variant.status), false, true);
        match serve_in_progress(relay, route, begun, &self.request, outcome, now) {
            Some(response) => Followed::response(response, outcome),
            None => Followed::Alone,
        }
    }

    fn follow_failed(
        &self,
        relay: &Relay,
        route: &Route,
        failure: Option<Failure>,
        (origin, reason): (Origin, Reason),
    ) -> Followed {
        let stale = self.stale_if_error(relay, route, origin, reason);
        let result = match (stale, failure) {
            (Some(answer), _) => Ok(answer),
            (None, Some(failure)) => {
                let status = failure.received;
                Err((failure, forwarded(self.why, status, false, true)))
            }
            (None, None) => return Followed::Alone,
        };
        Followed::Done(Box::new(result))
    }

    /// Whether this request's directives allow a response of this age.
    fn accepts(&self, route: &Route, variant: &Variant, now: SystemTime) -> bool {
        let directives = RequestDirectives::of(&self.request.fields);
        let bounds = stale_bounds(&route.cache);
        may_reuse(&directives, &variant.reuse, now, Origin::Reachable, &bounds).is_ok()
    }

    /// Whether this request was waiting when the response was received, and has
    /// no directives about its age: then it may use the response, however long it
    /// took to arrive.
    fn waited_for(&self, variant: &Variant, arrived: SystemTime) -> bool {
        let directives = RequestDirectives::of(&self.request.fields);
        let wants_age = directives.max_age.is_some() || directives.min_fresh.is_some();
        arrived <= variant.received && !wants_age && self.is_shareable(variant)
    }
}

/// Whether a request without directives could be answered with this response.
fn is_fresh(variant: &Variant, now: SystemTime) -> bool {
    let none = RequestDirectives::default();
    let never = StaleBounds::default();
    may_reuse(&none, &variant.reuse, now, Origin::Reachable, &never).is_ok()
}
