//! Which upstream each tip and each route uses.
//!
//! A route or a tip with `upstream = "NAME"` uses that one. A tip without it uses
//! the upstream that its routes in mode `chain` name, else the one of the same name
//! as the tip, else the default one. A route without it uses the upstream of its
//! tip. So `--upstream runes=URL` is enough to have the runes API of the built-in
//! configuration on a server of its own.

use super::key::{Setting, meant_or_allowed};
use super::problem::{FileSpan, Path};
use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::Route;
use crate::upstream::{DEFAULT, Settings};

/// The upstreams that routes and tips may name.
#[derive(Clone, Copy)]
pub(super) struct KnownUpstreams<'a> {
    pub(super) settings: &'a [Settings],
    /// Whether the file's upstreams could not be read, which has been reported:
    /// routes may name one of them.
    pub(super) is_incomplete: bool,
}

/// The number of the upstream that a route names, and where it does.
pub(super) type NamedUpstream = (u16, FileSpan);

/// The upstreams, and which of them tips name.
pub(super) struct Assignment<'a> {
    upstreams: &'a [Settings],
    /// The upstream that each tip names, in the order of the tips.
    of_tips: &'a [Option<u16>],
}

impl<'a> Assignment<'a> {
    pub(super) fn new(upstreams: &'a [Settings], of_tips: &'a [Option<u16>]) -> Self {
        Self { upstreams, of_tips }
    }

    /// Sets the upstream of each tip and each route. `named` has, for each route,
    /// the upstream that it names.
    pub(super) fn assign(
        &self,
        tips: &mut Vec<TipSource>,
        routes: &mut [Route],
        named: &[Option<NamedUpstream>],
        root: &Path<'_>,
    ) {
        for (at, tip) in tips.iter_mut().enumerate() {
            let of_tip = self.of_tips.get(at).copied().flatten();
            let of_routes = || {
                let mut named = routes.iter().zip(named).filter_map(|(route, named)| {
                    let goes_by = usize::from(route.cache.tip) == at;
                    let (number, _) = named.as_ref()?;
                    (goes_by && route.cache.mode == Mode::Chain).then_some(*number)
                });
                named.next()
            };
            let of_name = || number(self.upstreams, &tip.name);
            tip.upstream = match tip.path.is_some() {
                true => of_tip.or_else(of_routes).or_else(of_name).unwrap_or(0),
                false => 0,
            };
        }
        for (route, named) in routes.iter_mut().zip(named) {
            let tip = tips.get(usize::from(route.cache.tip));
            let of_tip = tip.map_or(0, |tip| tip.upstream);
            route.upstream.number = named.as_ref().map_or(of_tip, |(number, _)| *number);
            if let (Some((_, span)), Some(tip)) = (named, tip)
                && route.upstream.number != of_tip
                && route.cache.mode == Mode::Chain
                && tip.path.is_some()
            {
                let name = |number: u16| &*self.upstreams[usize::from(number)].name;
                let message = format!(
                    "route.upstream: the route \"{}\" uses the upstream \"{}\", and its tip \"{}\" is read from \"{}\"; both must use one upstream: give the route a tip of its own, [chain.tip.NAME] with upstream = \"{}\"",
                    route.name,
                    name(route.upstream.number),
                    tip.name,
                    name(of_tip),
                    name(route.upstream.number)
                );
                root.problem_whole(span, message);
            }
        }
        self.part_routes_without_tip(tips, routes);
    }

    /// Routes without a tip know the chain from answers alone. Those of different
    /// upstreams may be of different chains, so each upstream gets a source without
    /// a path of its own.
    fn part_routes_without_tip(&self, tips: &mut Vec<TipSource>, routes: &mut [Route]) {
        let mut found: Vec<(u16, u16)> = Vec::new();
        for route in routes {
            let at = usize::from(route.cache.tip);
            let Some(tip) = tips.get(at).filter(|tip| tip.path.is_none()).cloned() else {
                continue;
            };
            if route.cache.mode != Mode::Chain {
                continue;
            }
            let known = found
                .iter()
                .find(|(upstream, _)| *upstream == route.upstream.number);
            route.cache.tip = match known {
                Some((_, tip)) => *tip,
                None if found.is_empty() => {
                    tips[at].upstream = route.upstream.number;
                    route.cache.tip
                }
                None => {
                    let upstream = &self.upstreams[usize::from(route.upstream.number)].name;
                    tips.push(TipSource {
                        name: format!("{}-{upstream}", tip.name).into(),
                        upstream: route.upstream.number,
                        ..tip
                    });
                    u16::try_from(tips.len() - 1).unwrap_or(u16::MAX)
                }
            };
            found.push((route.upstream.number, route.cache.tip));
        }
    }
}

/// The number of the upstream that a key names. One that there is not is reported,
/// unless the file's upstreams could not be read.
pub(super) fn named(
    path: &Path<'_>,
    key: &Setting<Option<String>>,
    known: &KnownUpstreams<'_>,
) -> Option<u16> {
    let (name, at) = key.value.as_deref().zip(key.at.as_ref())?;
    let found = number(known.settings, name);
    if found.is_none() && !known.is_incomplete {
        let names = known.settings.iter().map(|settings| &*settings.name);
        let names: Vec<_> = names.filter(|name| *name != DEFAULT).collect();
        let allowed = meant_or_allowed(name, &names);
        path.key("upstream").problem(
            at,
            format!(
                "is \"{name}\"; {allowed} are \"default\", which is [upstream], and the names of [upstreams.NAME]: {}",
                if names.is_empty() { "there are none".to_owned() } else { names.join(", ") }
            ),
        );
    }
    found
}

fn number(upstreams: &[Settings], name: &str) -> Option<u16> {
    let at = upstreams.iter().position(|known| *known.name == *name)?;
    u16::try_from(at).ok()
}

/// Keeps the upstreams that some route uses, and numbers them anew. Returns the
/// names of the others. Tips that no route goes by are not read.
pub(super) fn keep_used(
    upstreams: &mut Vec<Settings>,
    tips: &mut [TipSource],
    routes: &mut [Route],
) -> Vec<Box<str>> {
    let is_used = |number: usize| {
        routes
            .iter()
            .any(|route| usize::from(route.upstream.number) == number)
    };
    let mut used: Vec<usize> = (0..upstreams.len()).filter(|at| is_used(*at)).collect();
    if used.is_empty() {
        used.push(0);
    }
    let renumbered = |number: u16| {
        let at = used.iter().position(|kept| *kept == usize::from(number));
        at.and_then(|at| u16::try_from(at).ok()).unwrap_or(0)
    };
    for tip in tips {
        tip.upstream = renumbered(tip.upstream);
        let kept = used.get(usize::from(tip.upstream)).copied().unwrap_or(0);
        tip.upstream_name.clone_from(&upstreams[kept].name);
    }
    for route in routes.iter_mut() {
        route.upstream.number = renumbered(route.upstream.number);
    }
    let mut unused = Vec::new();
    let mut at = 0;
    upstreams.retain(|settings| {
        let keep = used.contains(&at);
        if !keep {
            unused.push(settings.name.clone());
        }
        at += 1;
        keep
    });
    unused
}
