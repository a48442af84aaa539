//! Routes that an upstream says it does not have: each is logged once, with what
//! to check, and not for each request.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::route::Route;

/// Which routes are missing at which endpoints, as far as that has been logged
/// since the configuration was loaded.
#[derive(Debug, Default)]
pub struct MissingRoutes(Mutex<Vec<(u16, Box<str>)>>);

impl MissingRoutes {
    /// The endpoint with this base URL has answered that it has no such route as
    /// a target is of. Logs it where that is news.
    pub fn report(&self, route: &Route, target: &str, endpoint: &str) {
        if !self.add(route.number, endpoint) {
            return;
        }
        tracing::error!(
            endpoint,
            route = &*route.name,
            target_path = target,
            "the upstream answers that it has no such route (a 404 of its web framework, with statusCode and message, and not the API's): clients get 502. Check whether this is the right server: the reference indexer serves ordinals and runes as two servers on two ports (see upstreams); and check the route's upstream_path. This is logged again only once the route has been answered, or after a reload"
        );
    }

    /// A route has been answered.
    pub fn answered(&self, route: u16) {
        self.logged().retain(|(missing, _)| *missing != route);
    }

    /// Whether it is news that an endpoint does not have a route.
    fn add(&self, route: u16, endpoint: &str) -> bool {
        let mut logged = self.logged();
        let is_it = |(missing, at): &(u16, Box<str>)| *missing == route && **at == *endpoint;
        let is_news = !logged.iter().any(is_it);
        if is_news {
            logged.push((route, endpoint.into()));
        }
        is_news
    }

    fn logged(&self) -> MutexGuard<'_, Vec<(u16, Box<str>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_route_of_each_endpoint_is_news_once() {
        let missing = MissingRoutes::default();
        for (route, endpoint, is_news) in [
            (1, "http://a", true),
            (1, "http://a", false),
            (1, "http://b", true),
            (2, "http://a", true),
            (1, "http://b", false),
        ] {
            assert_eq!(missing.add(route, endpoint), is_news, "{route} {endpoint}");
        }
        missing.answered(1);
        assert!(!missing.add(2, "http://a"), "another route");
        assert!(missing.add(1, "http://a"));
        assert!(missing.add(1, "http://b"));
    }
}
