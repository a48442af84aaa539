//! Routes in mode `respect`, in front of any origin.

use super::{Gateway, Reply, Setup, Upstream};

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

/// A typed route in mode `respect`: `/tokens/{ticker}`.
const TYPED: &str = r#"
    [[route]]
    name = "token"
    path = "/tokens/{ticker}"
    params.ticker = { type = "ticker" }
    cache = { mode = "respect", stale_if_error = "5m" }
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

/// A gateway with the typed route [`TYPED`], whose clock a test moves.
pub(crate) fn typed(upstream: &Upstream) -> Gateway {
    typed_with(upstream, "")
}

/// [`typed`] with further keys.
pub(crate) fn typed_with(upstream: &Upstream, config: &str) -> Gateway {
    let setup = Setup::before(upstream).config(TYPED).config(config);
    setup.manual().start()
}

/// 200 with these fields, one a line, and a body.
pub(crate) fn ok(fields: &[&str], body: &str) -> Reply {
    Reply::with(200, &lines(fields), body)
}

/// Header fields, each with its CRLF.
pub(crate) fn lines(fields: &[&str]) -> String {
    fields.iter().map(|field| format!("{field}\r\n")).collect()
}
