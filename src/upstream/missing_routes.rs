//! Routes that an upstream reports as missing. Each is logged once, with what to check,
//! not for each request. If responses alternate, because one of the servers behind a URL
//! is the wrong one, it is logged once a minute.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::client_tokens::shown_path;
use crate::clock::Moment;
use crate::route::Route;
use crate::sync::lock;

/// The least time between two logs of the same route.
const QUIET: Duration = Duration::from_mins(1);

/// The missing routes of each endpoint that were logged since the configuration was
/// loaded.
#[derive(Debug, Default)]
pub struct MissingRoutes(Mutex<Vec<Logged>>);

#[derive(Debug)]
struct Logged {
    route: u16,
    endpoint: Box<str>,
    at: Moment,
    /// Whether the route has been answered since.
    is_answered: bool,
}

impl MissingRoutes {
    /// Logs that the endpoint with this base URL does not have the route of a target,
    /// unless that has been logged already.
    pub fn report(&self, route: &Route, target: &str, endpoint: &str, now: Moment) {
        if !self.add(route.number, endpoint, now) {
            return;
        }
        tracing::error!(
            endpoint,
            route = &*route.name,
            target_path = &*shown_path(target),
            "the upstream answers that it has no such route (a 404 of its web framework, with statusCode and message, and not the API's): clients get 502. Check whether this is the right server: the reference indexer serves ordinals and runes as two servers on two ports, each of which needs an upstream of its own ([upstreams.NAME]); and check the route's upstream_path. This is logged again only once the route has been answered, a minute later at the earliest, or after a reload"
        );
    }

    /// Records that a route has been answered.
    pub fn answered(&self, route: u16) {
        for logged in &mut *self.logged() {
            logged.is_answered |= logged.route == route;
        }
    }

    /// Records that an endpoint does not have a route. Returns whether to log it.
    fn add(&self, route: u16, endpoint: &str, now: Moment) -> bool {
        let mut all = self.logged();
        let mut known = all.iter_mut();
        match known.find(|known| known.route == route && *known.endpoint == *endpoint) {
            Some(known) => {
                let is_new = known.is_answered && now.since(known.at) >= QUIET;
                if is_new {
                    known.at = now;
                    known.is_answered = false;
                }
                is_new
            }
            None => {
                all.push(Logged {
                    route,
                    endpoint: endpoint.into(),
                    at: now,
                    is_answered: false,
                });
                true
            }
        }
    }

    fn logged(&self) -> MutexGuard<'_, Vec<Logged>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    #[test]
    fn each_route_of_each_endpoint_is_logged_once() {
        let missing = MissingRoutes::default();
        for (route, endpoint, is_new) in [
            (1, "http://a", true),
            (1, "http://a", false),
            (1, "http://b", true),
            (2, "http://a", true),
            (1, "http://b", false),
        ] {
            let added = missing.add(route, endpoint, at(0));
            assert_eq!(added, is_new, "{route} {endpoint}");
        }
        assert!(!missing.add(1, "http://a", at(600)), "never answered");
        missing.answered(1);
        assert!(!missing.add(2, "http://a", at(600)), "another route");
        assert!(missing.add(1, "http://a", at(600)));
        assert!(missing.add(1, "http://b", at(600)));
        assert!(!missing.add(1, "http://a", at(600)));
    }

    #[test]
    fn a_route_with_alternating_responses_is_logged_once_a_minute() {
        let missing = MissingRoutes::default();
        let mut logged = 0;
        for second in 0..180 {
            logged += u32::from(missing.add(1, "http://a", at(second)));
            missing.answered(1);
        }
        assert_eq!(logged, 3);
    }
}
