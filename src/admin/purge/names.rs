//! Names of routes, as error texts list them.

use std::fmt;

use crate::route::RouteTable;

/// The routes that there are.
pub(super) fn route_names(routes: &RouteTable) -> String {
    let names = routes.routes().iter().map(|route| &*route.name);
    format!("the name of a route: {}", List(names.collect()))
}

/// The paths that there are.
pub(in crate::admin) fn paths(routes: &RouteTable) -> String {
    let paths = routes.routes().iter().map(|route| &*route.request.path);
    format!(
        "the path of a route, with its query, or an absolute URL with one: {}",
        List(paths.collect())
    )
}

/// Names in a sentence, at most twenty.
struct List<'l>(Vec<&'l str>);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 20;
        let shown = self.0.iter().take(MOST).copied().collect::<Vec<_>>();
        f.write_str(&shown.join(", "))?;
        match self.0.len().checked_sub(MOST) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, " and {more} more"),
        }
    }
}
