//! Values in queries of the admin listener, and what errors list as allowed ones.

use std::fmt;

use http::Uri;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::route::RouteTable;
use crate::validate::{Invalid, decode};

/// A parameter's value. In a URL `+` stays as it is; elsewhere it is a blank.
pub(super) fn value(name: &str, raw: &str) -> Result<String, Invalid> {
    let text = decode(raw, name != "url").filter(|text| !text.is_empty());
    let wrong = || Invalid::new(name, raw, "percent-encoded UTF-8, and not empty");
    text.map(String::from).ok_or_else(wrong)
}

/// The target of a public URL: its path and query.
pub(super) fn public_target(url: &str) -> Result<Uri, Invalid> {
    /// What browsers encode in a URL as it is typed.
    const TYPED: &AsciiSet = &CONTROLS.add(b' ');
    /// The same with what no target may have; elsewhere these stay as they are.
    const REFUSED: &AsciiSet = &TYPED.add(b'"').add(b'<').add(b'>').add(b'`');
    let wrong = || {
        let allowed = "a path with its query, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL with one";
        Invalid::new("url", url, allowed)
    };
    let begins = ["/", "http://", "https://"];
    if !begins.iter().any(|begin| url.starts_with(begin)) {
        return Err(wrong());
    }
    let encoded = |set| Uri::try_from(utf8_percent_encode(url, set).to_string());
    let target = encoded(TYPED).or_else(|_no_uri| encoded(REFUSED));
    target.map_err(|_no_uri| wrong())
}

/// The routes that there are.
pub(super) fn route_names(routes: &RouteTable) -> String {
    let names = routes.routes().iter().map(|route| &*route.name);
    format!("the name of a route: {}", List(names.collect()))
}

/// The paths that there are.
pub(super) fn paths(routes: &RouteTable) -> String {
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
