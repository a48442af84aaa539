//! What tests of mode `respect` share with those of other modules.

use super::{Reply, Setup, Upstream};

/// The one route that stands before any origin.
pub(crate) const ALL: &str = r#"
    [[route]]
    name = "all"
    path = "/{rest:*}"
    methods = ["*"]
    query = "any"
    headers = "all"
    cache = { mode = "respect" }
"#;

/// A gateway that is a plain HTTP cache.
pub(crate) fn plain(upstream: &Upstream) -> Setup {
    Setup::before(upstream).config(ALL)
}

/// 200 with these fields, one a line, and a body.
pub(crate) fn ok(fields: &[&str], body: &str) -> Reply {
    Reply::with(200, &lines(fields), body)
}

/// Header fields, each with its CRLF.
pub(crate) fn lines(fields: &[&str]) -> String {
    fields.iter().map(|field| format!("{field}\r\n")).collect()
}
