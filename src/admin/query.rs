//! Values in queries of the admin listener.

use http::Uri;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

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
    let wrong = || {
        let allowed = "a path with its query, such as /runes/v1/blocks/840000/activity?limit=20, or an http or https URL with one";
        Invalid::new("url", url, allowed)
    };
    let begins = ["/", "http://", "https://"];
    if !begins.iter().any(|begin| url.starts_with(begin)) {
        return Err(wrong());
    }
    let typed = utf8_percent_encode(url, TYPED).to_string();
    Uri::try_from(typed).map_err(|_no_uri| wrong())
}
