//! Values in queries of the admin listener, and what errors list as allowed ones.

use http::Uri;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::route::{Route, RouteTable};
use crate::validate::{Invalid, decode};

/// What no target may have, and browsers encode in a URL as it is typed.
const TYPED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// A parameter's value. In a URL `+` stays as it is; elsewhere it is a blank.
pub(super) fn value(name: &str, raw: &str) -> Result<String, Invalid> {
    let text = decode(raw, name != "url").filter(|text| !text.is_empty());
    let wrong = || Invalid::new(name, raw, "percent-encoded UTF-8, and not empty");
    text.ok_or_else(wrong)
}

/// The target of a public URL: its path and query.
pub(super) fn public_target(url: &str) -> Result<Uri, Invalid> {
    let is_whole = ["/", "http://", "https://"]
        .iter()
        .any(|begin| url.starts_with(begin));
    let target = Uri::try_from(utf8_percent_encode(url, TYPED).to_string()).ok();
    target.filter(|_| is_whole).ok_or_else(|| {
        let allowed = "a path with its query, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL with one";
        Invalid::new("url", url, allowed)
    })
}

/// Names or paths of routes in a sentence, at most twenty.
pub(super) fn listed(routes: &RouteTable, name: impl Fn(&Route) -> &str) -> String {
    let names = routes.routes().iter().map(name);
    names.take(20).collect::<Vec<_>>().join(", ")
}
