//! What a purge request names: URLs, routes, tags, or all, as query parameters or
//! as JSON.

use serde::Deserialize;
use serde_json::Value;

use crate::admin::query::value;
use crate::validate::Invalid;

/// The most selectors in a request, which bounds how long it takes.
const MOST_SELECTORS: usize = 100;

const KINDS: &str = "url=URL, route=NAME, tag=TAG or all, percent-encoded";
const JSON: &str =
    "a JSON object with one of url, route and tag (a text or a list of texts), or {\"all\":true}";
/// What is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    Url(String),
    Route(String),
    Tag(String),
    All,
}

impl Selector {
    /// The name of its kind.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Url(_) => "url",
            Self::Route(_) => "route",
            Self::Tag(_) => "tag",
            Self::All => "all",
        }
    }

    /// What it names, as JSON.
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Url(text) | Self::Route(text) | Self::Tag(text) => text.as_str().into(),
            Self::All => true.into(),
        }
    }
}

/// Reads a query.
pub(super) fn by_query(query: &str) -> Result<Vec<Selector>, Invalid> {
    let mut selectors = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
        selectors.push(match name {
            "url" => Selector::Url(value(name, raw)?),
            "route" => Selector::Route(value(name, raw)?),
            "tag" => Selector::Tag(value(name, raw)?),
            "all" if matches!(raw, "" | "true") => Selector::All,
            "all" => return Err(Invalid::new("all", raw, "true, or without a value")),
            _ => return Err(Invalid::new("a query parameter", pair, KINDS)),
        });
    }
    of_one_kind(selectors)
}

/// Reads a body of JSON.
pub(super) fn by_body(bytes: &[u8]) -> Result<Vec<Selector>, Invalid> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        url: Option<Texts>,
        route: Option<Texts>,
        tag: Option<Texts>,
        all: Option<bool>,
    }
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    let named: Named = serde_json::from_slice(bytes).map_err(|error| {
        let came = String::from_utf8_lossy(bytes);
        Invalid::new("the body", &came, format!("{JSON} ({error})"))
    })?;
    let mut selectors = Vec::new();
    for (texts, selector) in [
        (named.url, Selector::Url as fn(String) -> Selector),
        (named.route, Selector::Route),
        (named.tag, Selector::Tag),
    ] {
        match texts {
            Some(Texts::One(text)) => selectors.push(selector(text)),
            Some(Texts::Many(texts)) => selectors.extend(texts.into_iter().map(selector)),
            None => {}
        }
    }
    match named.all {
        Some(true) => selectors.push(Selector::All),
        Some(false) => return Err(Invalid::new("all", "false", "true, or left out")),
        None => {}
    }
    of_one_kind(selectors)
}

/// Checks that there are selectors, of one kind, and not too many.
fn of_one_kind(selectors: Vec<Selector>) -> Result<Vec<Selector>, Invalid> {
    let Some(first) = selectors.first() else {
        let allowed = format!("given: {KINDS}; or {JSON}");
        return Err(Invalid::new("what is purged", "nothing", allowed));
    };
    let other = selectors.iter().find(|other| other.kind() != first.kind());
    if let Some(other) = other {
        let came = format!("{} and {}", first.kind(), other.kind());
        return Err(Invalid::new("what is purged", &came, "of one kind"));
    }
    if selectors.len() > MOST_SELECTORS {
        let came = format!("{} of kind {}", selectors.len(), first.kind());
        let allowed = format!("at most {MOST_SELECTORS} in a request");
        return Err(Invalid::new("what is purged", &came, allowed));
    }
    Ok(selectors)
}
