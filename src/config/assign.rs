//! Which upstream each tip and each route asks.
//!
//! A route or a tip with `upstream = "NAME"` asks that one. A tip without it asks
//! the upstream that its routes in mode `chain` name, else the one of the same name
//! as the tip, else the default one. A route without it asks the upstream of its
//! tip. So `--upstream runes=URL` is enough to have the runes API of the built-in
//! configuration on a server of its own.

use super::reader::{Placed, Table};
use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::Route;
use crate::upstream::Settings;

/// The upstreams that there are, and which of them tips say.
pub(super) struct Assignment<'a> {
    upstreams: &'a [Settings],
    /// What each tip says, in the order of the tips.
    said: &'a [Option<u16>],
}

impl<'a> Assignment<'a> {
    /// Of these upstreams, by what tips say.
    pub(super) fn new(upstreams: &'a [Settings], said: &'a [Option<u16>]) -> Self {
        Self { upstreams, said }
    }

    /// Sets the upstream of each tip and each route. `said` and `spans` have, for
    /// each route, what it says and where it stands.
    pub(super) fn assign(
        &self,
        tips: &mut Vec<TipSource>,
        routes: &mut [Route],
        said: &[Option<Placed<u16>>],
        root: &Table<'_>,
    ) {
        for (at, tip) in tips.iter_mut().enumerate() {
            let of_tip = self.said.get(at).copied().flatten();
            let of_routes = || {
                let mut said = routes.iter().zip(said).filter_map(|(route, said)| {
                    let goes_by = usize::from(route.cache.tip) == at;
                    let (number, _) = said.as_ref()?;
                    (goes_by && route.cache.mode == Mode::Chain).then_some(*number)
                });
                said.next()
            };
            let of_name = || number(self.upstreams, &tip.name);
            tip.upstream = match tip.path.is_some() {
                true => of_tip.or_else(of_routes).or_else(of_name).unwrap_or(0),
                false => 0,
            };
        }
        for (route, said) in routes.iter_mut().zip(said) {
            let tip = tips.get(usize::from(route.cache.tip));
            let of_tip = tip.map_or(0, |tip| tip.upstream);
            route.upstream = said.as_ref().map_or(of_tip, |(number, _)| *number);
            if let (Some((_, span)), Some(tip)) = (said, tip)
                && route.upstream != of_tip
                && route.cache.mode == Mode::Chain
                && tip.path.is_some()
            {
                let name = |number: u16| &*self.upstreams[usize::from(number)].name;
                let message = format!(
                    "the route \"{}\" asks the upstream \"{}\", and its tip \"{}\" is asked of \"{}\"; allowed is one upstream for both: give the route a tip of its own, [chain.tip.NAME] with upstream = \"{}\"",
                    route.name,
                    name(route.upstream),
                    tip.name,
                    name(of_tip),
                    name(route.upstream)
                );
                root.problem(span, message);
            }
        }
        self.part_routes_without_tip(tips, routes);
    }

    /// Routes that have no tip learn of the chain from answers alone. Those of
    /// different upstreams may not: they may be of different chains. So each
    /// upstream gets a source without a path of its own.
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
                .find(|(upstream, _)| *upstream == route.upstream);
            route.cache.tip = match known {
                Some((_, tip)) => *tip,
                None if found.is_empty() => {
                    tips[at].upstream = route.upstream;
                    route.cache.tip
                }
                None => {
                    let upstream = &self.upstreams[usize::from(route.upstream)].name;
                    tips.push(TipSource {
                        name: format!("{}-{upstream}", tip.name).into(),
                        upstream: route.upstream,
                        ..tip
                    });
                    u16::try_from(tips.len() - 1).unwrap_or(u16::MAX)
                }
            };
            found.push((route.upstream, route.cache.tip));
        }
    }
}

/// Reads the `upstream` of a table: the number of the upstream that it names.
pub(super) fn said(table: &Table<'_>, upstreams: &[Settings]) -> Option<Placed<u16>> {
    let (name, at) = table.string("upstream")?;
    let found = number(upstreams, &name);
    if found.is_none() {
        let names: Vec<_> = upstreams.iter().map(|settings| &*settings.name).collect();
        let message = format!(
            "{} is \"{name}\"; allowed are \"default\", which is [upstream], and the names of [upstreams.NAME]: {}",
            table.name("upstream"),
            names.join(", ")
        );
        table.problem(&at, message);
    }
    Some((found?, at))
}

fn number(upstreams: &[Settings], name: &str) -> Option<u16> {
    let at = upstreams.iter().position(|known| *known.name == *name)?;
    u16::try_from(at).ok()
}

/// Keeps the upstreams that some tip or route asks, and numbers them anew.
/// Returns the names of the others. Tips that no route goes by ask nobody.
pub(super) fn keep_used(
    upstreams: &mut Vec<Settings>,
    tips: &mut [TipSource],
    routes: &mut [Route],
) -> Vec<Box<str>> {
    let is_used = |number: usize| {
        routes
            .iter()
            .any(|route| usize::from(route.upstream) == number)
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
        route.upstream = renumbered(route.upstream);
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
