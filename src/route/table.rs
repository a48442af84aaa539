//! The table of all routes, with the router that finds one for a path.

use std::borrow::Cow;

use matchit::{Params, Router};

use super::Route;
use super::template::{TAIL, is_tail};
use crate::validate::decode;

/// The most routes: their numbers have 16 bits.
const MOST_ROUTES: usize = 1 << 16;

/// All routes.
#[derive(Clone, Default)]
pub struct RouteTable {
    routes: Box<[Route]>,
    router: Router<u16>,
    /// How many numbers have been assigned to routes of this table and of those before it.
    assigned: usize,
}

/// The route that matches a path.
pub struct RouteMatch<'t, 'p> {
    /// The route.
    pub route: &'t Route,
    /// Its index in the table.
    pub(crate) index: u16,
    /// The values of its path parameters.
    pub captures: Params<'t, 'p>,
}

impl RouteTable {
    /// Makes the table.
    ///
    /// # Errors
    /// Why each route that overlaps one before it cannot be added, with its index.
    pub(crate) fn new(mut routes: Vec<Route>) -> Result<Self, Vec<(usize, String)>> {
        if routes.len() > MOST_ROUTES {
            let why = format!("it is one too many: allowed are {MOST_ROUTES}");
            return Err(vec![(MOST_ROUTES, why)]);
        }
        let mut router = Router::new();
        let mut errors = Vec::new();
        for (number, route) in (0..=u16::MAX).zip(&routes) {
            let (path, bare) = router_paths(&route.request.path);
            let inserted = router.insert(path, number);
            let bare = bare.map_or(Ok(()), |bare| router.insert(bare, number));
            if inserted.and(bare).is_err() {
                let shape = shape(&route.request.path);
                let mut others = routes.iter();
                let other = others.find(|other| self::shape(&other.request.path) == shape);
                let other = other.unwrap_or(route);
                let (name, path) = (&other.name, &other.request.path);
                let why = format!("it overlaps the route \"{name}\" ({path})");
                errors.push((usize::from(number), why));
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        for (number, route) in (0..=u16::MAX).zip(&mut routes) {
            route.number = number;
        }
        Ok(Self {
            assigned: routes.len(),
            routes: routes.into(),
            router,
        })
    }

    /// Numbers the routes of a table that comes after another: as `known` says, or by the
    /// next number that no route has had. `None` where there are no more.
    pub(crate) fn renumber(
        &mut self,
        before: &Self,
        known: impl Fn(&Route) -> Option<u16>,
    ) -> Option<()> {
        self.assigned = before.assigned;
        for route in &mut self.routes {
            route.number = match known(route) {
                Some(number) => number,
                None => {
                    self.assigned += 1;
                    u16::try_from(self.assigned - 1).ok()?
                }
            };
        }
        Some(())
    }

    /// The routes, in the file's order.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The route with a number; `None` where there is none, or no longer.
    pub(crate) fn get(&self, number: u16) -> Option<&Route> {
        self.routes.iter().find(|route| route.number == number)
    }

    /// The route that matches a path. None matches a path with a dot segment as a
    /// parameter, since the upstream might resolve it. [`Route::canonical`] refuses
    /// those within a tail or a parameter.
    pub fn find<'t, 'p>(&'t self, path: &'p str) -> Option<RouteMatch<'t, 'p>> {
        let found = self.router.at(path).ok()?;
        // Most paths have none, and their parameters need not be looked at for it.
        let may_have_dots = memchr::memchr2(b'.', b'%', path.as_bytes()).is_some();
        let is_dots = |text: Cow<'_, str>| matches!(&*text, "." | "..");
        let mut values = found.params.iter().filter(|(name, _)| *name != TAIL);
        if may_have_dots && values.any(|(_, value)| decode(value, false).is_some_and(is_dots)) {
            return None;
        }
        let index = *found.value;
        Some(RouteMatch {
            route: &self.routes[usize::from(index)],
            index,
            captures: found.params,
        })
    }
}

/// A path in the router's syntax. Where it has a tail, also the path without it:
/// a tail may be empty, which the router does not match.
fn router_paths(path: &str) -> (String, Option<String>) {
    match path.rsplit_once('/') {
        Some((before, last)) if is_tail(last) => {
            (format!("{before}/{{*{TAIL}}}"), Some(format!("{before}/")))
        }
        _ => (path.to_owned(), None),
    }
}

/// A path without the names of its parameters: two routes with the same shape
/// match the same paths.
fn shape(path: &str) -> Vec<&str> {
    let segments = path.split('/');
    let shape = segments.map(|part| if part.starts_with('{') { "{}" } else { part });
    shape.collect()
}
