//! The table of all routes, with the router that finds one for a path.

use matchit::{InsertError, Params, Router};
use percent_encoding::percent_decode;

use super::Route;
use super::template::{TAIL, is_tail};

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
            if let Err(error) = inserted.and(bare) {
                let why = if let InsertError::Conflict { with } = &error {
                    format!("it overlaps the route of {with}")
                } else {
                    error.to_string()
                };
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

    /// The route that matches a path. None matches a path with a dot segment, since the
    /// upstream, or a proxy before it, could resolve it to another.
    pub fn find<'t, 'p>(&'t self, path: &'p str) -> Option<RouteMatch<'t, 'p>> {
        if has_dot_segment(path.as_bytes()) {
            return None;
        }
        let found = self.router.at(path).ok()?;
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

/// Whether a path has a dot segment (RFC 3986 §5.2.4), `.` or `..`, in any form that some
/// server takes for one: it would lead to a path outside of the base URL or of
/// `upstream_path`.
///
/// A dot may be percent-encoded. A segment may end with a slash or a backslash, either of
/// which may be percent-encoded, or with the semicolon of parameters or a NUL, which some
/// servers remove before they resolve dots. Text that is encoded twice is not decoded twice
/// by a server that follows the RFC.
fn has_dot_segment(path: &[u8]) -> bool {
    // Most paths contain neither.
    if memchr::memchr2(b'.', b'%', path).is_none() {
        return false;
    }
    // The dots that the segment consists of so far; `None` where it has another byte.
    let mut dots = Some(0);
    for byte in percent_decode(path).chain([b'/']) {
        let ends = matches!(byte, b'/' | b'\\' | b';' | 0);
        if ends && matches!(dots, Some(1 | 2)) {
            return true;
        }
        dots = match byte {
            b'/' | b'\\' => Some(0),
            b'.' => dots.map(|dots| dots + 1),
            _ => None,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_dot_segments() {
        for path in [
            ".",
            "..",
            "../x",
            "a/..",
            "a/./b",
            "a/../b",
            "a/%2e%2e/b",
            "a/%2E%2e/b",
            "a/%2e",
            "a/.%2E/b",
            "%2e./b",
            "a//../b",
            "..%2fb",
            "a%2F..%2Fb",
            "a%2f%2e%2e",
            "..\\b",
            "a\\..",
            "..%5Cb",
            "a%5c..",
            "..;/b",
            "..;x=y/b",
            "a/..%3b/b",
            "a/.;/b",
            "..%00",
            "a/..%00x/b",
            "a/.../..",
        ] {
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "a/b",
            "a.b/c",
            "..a",
            "a..",
            "a../b",
            "a/.b",
            "a/b./c",
            "...",
            "a/.../b",
            "%2e%2e%2e",
            ".well-known/x",
            "a/..b;c",
            "a/b..;c",
            "%252e%252e/b",
            "..%252fb",
            "%2",
            "%",
            "a%20.%20b",
            "a/%2eb",
        ] {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }
}
