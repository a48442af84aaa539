//! Which routes' upstream gives windows. One whose answers to windows are none is
//! asked for each page itself for a while, which doubles each time. Pure.

use std::sync::Mutex;
use std::time::Duration;

use crate::clock::Moment;
use crate::sync::lock;

/// For each route, whether its pages are cut from windows.
pub(super) struct WindowSupport(Box<[Mutex<Option<Suspension>>]>);

/// Windows of a route are not requested.
#[derive(Clone, Copy, Debug)]
struct Suspension {
    until: Moment,
    /// How long it lasts this time.
    lasts: Duration,
}

/// How long the first suspension lasts.
const FIRST: Duration = Duration::from_secs(60);
/// How long a suspension lasts at most.
const LONGEST: Duration = Duration::from_hours(1);

impl WindowSupport {
    /// No route is suspended.
    pub(super) fn new(routes: usize) -> Self {
        Self((0..routes).map(|_| Mutex::default()).collect())
    }

    /// The suspensions of these, for another number of routes.
    pub(super) fn after(&self, routes: usize) -> Self {
        let known = |route| {
            let route = u16::try_from(route).ok();
            Mutex::new(route.and_then(|route| self.with(route, |suspension| *suspension)?))
        };
        Self((0..routes).map(known).collect())
    }

    /// Whether windows of a route are requested.
    pub(super) fn is_active(&self, route: u16, now: Moment) -> bool {
        self.with(route, |suspension| {
            suspension.is_none_or(|suspension| suspension.until <= now)
        })
        .unwrap_or(false)
    }

    /// Suspends a route; answers for how long.
    pub(super) fn suspend(&self, route: u16, now: Moment) -> Option<Duration> {
        self.with(route, |suspension| {
            let lasts = suspension.map_or(FIRST, |before| (before.lasts * 2).min(LONGEST));
            let until = now + lasts;
            *suspension = Some(Suspension { until, lasts });
            lasts
        })
    }

    /// Ends the suspension of a route that gave a window.
    pub(super) fn resume(&self, route: u16) {
        self.with(route, |suspension| *suspension = None);
    }

    fn with<T>(&self, route: u16, f: impl FnOnce(&mut Option<Suspension>) -> T) -> Option<T> {
        let slot = self.0.get(usize::from(route))?;
        Some(f(&mut lock(slot)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn each_suspension_lasts_twice_as_long_up_to_an_hour() {
        let support = WindowSupport::new(2);
        let mut now = 0;
        for seconds in [60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert!(support.is_active(1, at(now)));
            assert_eq!(
                support.suspend(1, at(now)),
                Some(Duration::from_secs(seconds))
            );
            assert!(
                support.is_active(0, at(now)),
                "other routes are not affected"
            );
            assert!(!support.is_active(1, at(now + seconds - 1)));
            now += seconds;
        }
        support.resume(1);
        assert!(support.is_active(1, at(0)));
        assert_eq!(support.suspend(1, at(now)), Some(FIRST), "the first again");
    }

    #[test]
    fn suspensions_outlive_a_reload_and_unknown_routes_have_no_windows() {
        let support = WindowSupport::new(2);
        support.suspend(1, at(0));
        let after = support.after(3);
        let active = [0, 1, 2, 3].map(|route| after.is_active(route, at(59)));
        assert_eq!(active, [true, false, true, false]);
        assert_eq!(after.suspend(3, at(0)), None);
    }
}
