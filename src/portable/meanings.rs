//! What the routes and tips of a configuration mean.

use std::collections::HashMap;

use http::HeaderName;

use super::digest::{MeaningDigest, of_name, of_route, of_tip};
use crate::cache::policy::Mode;
use crate::chain::{Chain, TipNumber};
use crate::route::{Route, RouteTable};
use crate::upstream::Upstreams;

/// What the routes and tips of a configuration mean.
#[derive(Clone, Debug)]
pub(crate) struct Meanings {
    /// The routes, by their numbers.
    pub(crate) routes: HashMap<u16, RouteMeaning>,
    /// The tips, by their numbers.
    pub(crate) tips: Vec<MeaningDigest>,
}

/// What a route means, as far as its stored responses are concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteMeaning {
    pub(crate) digest: MeaningDigest,
    /// The digest of its name alone.
    pub(crate) name: MeaningDigest,
    pub(crate) mode: Mode,
    pub(crate) tip: TipNumber,
    pub(crate) tip_digest: Option<MeaningDigest>,
}

impl Meanings {
    /// Those of a configuration. `targeted` is the field that mode `respect` prefers to
    /// `cache-control`.
    pub(crate) fn of(
        table: &RouteTable,
        upstreams: &Upstreams,
        chain: &Chain,
        targeted: Option<&HeaderName>,
    ) -> Self {
        let sources = (0..).map_while(|tip| chain.source(tip));
        let tips: Vec<_> = sources
            .map(|source| of_tip(source, upstreams.get(source.upstream).settings()))
            .collect();
        let depth = chain.finality().final_depth;
        let route = |route: &Route| {
            let cache = &route.cache;
            let tip_digest = match cache.mode {
                Mode::Chain => tips.get(usize::from(cache.tip)).copied(),
                Mode::Off | Mode::Override | Mode::Respect => None,
            };
            let settings = upstreams.get(route.upstream.number).settings();
            let tip = tip_digest.map(|tip| (tip, depth));
            let meaning = RouteMeaning {
                digest: of_route(route, settings, tip, targeted),
                name: of_name(&route.name),
                mode: cache.mode,
                tip: cache.tip,
                tip_digest,
            };
            (route.number, meaning)
        };
        Self {
            routes: table.routes().iter().map(route).collect(),
            tips,
        }
    }
}
