//! Digests of what routes and tips mean.
//!
//! The numbers of routes and tips are valid within one process. Elsewhere a route is
//! named by the digest of all that its stored responses depend on: with another path,
//! mode or upstream it has another digest, and finds nothing of what was stored
//! before. Where the text that is digested differs from one version to the next, what
//! was stored is absent.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use http::{HeaderName, Uri};

use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::{Parameter, Route};
use crate::upstream::Settings;
use crate::validate::ParameterType;

/// The digest of what a route, or a tip, means.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MeaningDigest(pub(crate) [u8; 32]);

impl fmt::Debug for MeaningDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.hex())
    }
}

impl MeaningDigest {
    fn of(meaning: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, meaning.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Its first half, in hexadecimal.
    pub(crate) fn hex(self) -> String {
        let half = self.0[..16].iter();
        half.map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key of a target of a route.
    pub(crate) fn key_of(self, target: &str) -> [u8; 16] {
        let mut whole = Vec::with_capacity(self.0.len() + target.len());
        whole.extend_from_slice(&self.0);
        whole.extend_from_slice(target.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&digest(&SHA256, &whole).as_ref()[..16]);
        key
    }
}

/// The part of an upstream's meaning that its answers depend on: its name, and its
/// preferred URL or what its answers follow from. The other URLs are of the same API, so
/// that adding or removing one changes no answer.
fn upstream(settings: &Settings) -> (&str, String) {
    let endpoints = &settings.endpoints;
    let preferred = match &endpoints.content {
        Some(content) => content.to_string(),
        None => endpoints
            .urls
            .first()
            .map_or_else(String::new, Uri::to_string),
    };
    (&settings.name, preferred)
}

/// The digest of a tip.
pub(crate) fn of_tip(tip: &TipSource, asked: &Settings) -> MeaningDigest {
    let meaning = (&tip.name, &tip.path, &tip.height, upstream(asked));
    MeaningDigest::of(&format!("tip 1 {meaning:?}"))
}

/// The digest of a route's name: it names the route in purges, which mean the same where
/// replicas differ in anything else, as while they are restarted one after the other.
pub(crate) fn of_name(route: &str) -> MeaningDigest {
    MeaningDigest::of(&format!("route name 1 {route:?}"))
}

/// The digest of a route. `tip` is that of its tip, in mode `chain`, with the depth at
/// which answers are final; `targeted` the field that mode `respect` prefers to
/// `cache-control`.
pub(crate) fn of_route(
    route: &Route,
    asked: &Settings,
    tip: Option<(MeaningDigest, u32)>,
    targeted: Option<&HeaderName>,
) -> MeaningDigest {
    let (request, cache) = (&route.request, &route.cache);
    let requests = (
        &route.name,
        &request.path,
        parameters(&request.params),
        parameters(&request.query),
        request.any_query,
    );
    let answers = (
        &route.upstream.path,
        upstream(asked),
        route.headers,
        cache.mode,
        &cache.times,
        cache.set_cookie,
    );
    let pages = (route.chain.window, route.chain.segments);
    let of_mode = (
        tip.filter(|_| cache.mode == Mode::Chain),
        targeted.filter(|_| cache.mode == Mode::Respect),
    );
    MeaningDigest::of(&format!(
        "route 1 {requests:?} {answers:?} {pages:?} {of_mode:?}"
    ))
}

/// The names and the types of parameters. Their bounds and defaults may change:
/// canonical requests contain every value.
fn parameters(all: &[Parameter]) -> Vec<(&str, &'static str)> {
    let kind = |kind: &ParameterType| match kind {
        ParameterType::Hex64 => "hex64",
        ParameterType::Block { .. } => "block",
        ParameterType::Ticker => "ticker",
        ParameterType::Integer { .. } => "integer",
        ParameterType::Enumeration(_) => "enum",
        ParameterType::Text { .. } => "string",
    };
    let each = all.iter();
    each.map(|one| (&*one.name, kind(&one.kind))).collect()
}
