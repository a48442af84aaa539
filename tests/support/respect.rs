//! Routes in mode `respect`, in front of any origin.

use super::{Reply, Setup, Upstream};

/// The one route that forwards everything: any path, method, query and field.
pub(crate) const ALL: &str = r#"
    [[route]]
    name = "all"
    path = "/{rest:*}"
    methods = ["*"]
    query = "any"
    headers = "all"
    cache = { mode = "respect" }
"#;

/// [`ALL`], with a stale answer for up to this time where the origin fails.
pub(crate) fn all_with_stale(stale_if_error: &str) -> String {
    let cache = format!("mode = \"respect\", stale_if_error = \"{stale_if_error}\"");
    ALL.replace("mode = \"respect\"", &cache)
}

/// [`ALL`] for the paths below `/{name}/`, as the route of this name.
pub(crate) fn all_below(name: &str) -> String {
    ALL.replace("\"all\"\n    path", &format!("\"{name}\"\n    path"))
        .replace("/{rest:*}", &format!("/{name}/{{rest:*}}"))
}

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
