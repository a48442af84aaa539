//! Which upstream each tip and each route uses.
//!
//! A route or a tip with `upstream = "NAME"` uses that one. A tip without it uses the upstream
//! that its routes in mode `chain` name, else the one of the same name as the tip, else the
//! default one. A route without it uses the upstream of its tip. So `--upstream runes=URL` is
//! enough to have the runes API of the built-in configuration on a server of its own.

use super::chain::{Tips, number_of, position};
use super::routes;
use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::{Route, RouteTable};
use crate::upstream::Settings;

/// Routes and tips with their upstreams.
pub(super) struct Assigned {
    pub(super) routes: RouteTable,
    pub(super) tips: Vec<TipSource>,
    /// The upstreams that some route uses, in the order of their numbers.
    pub(super) upstreams: Vec<Settings>,
    /// The names of the others.
    pub(super) unused: Vec<Box<str>>,
}

/// Makes the routes of the tables, and assigns upstreams.
pub(super) fn assign(
    tables: &[routes::RouteEntry],
    mut tips: Tips,
    upstreams: Vec<Settings>,
    hash_zeros: u8,
    problems: &mut Vec<String>,
) -> Assigned {
    let mut routes = Vec::new();
    let mut named = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let name = &table.name;
        if tables[..at].iter().any(|other| other.name == *name) {
            problems.push(format!(
                "route \"{name}\": another route has this name, too"
            ));
        }
        match table.route(&tips.sources, hash_zeros) {
            Ok(route) => routes.push(route),
            Err(wrong) => {
                problems.extend(wrong.iter().map(|why| format!("route \"{name}\": {why}")));
                continue;
            }
        }
        let key = format!("route \"{name}\": upstream");
        let own = table.upstream.as_deref();
        named.push(own.and_then(|own| number_of(&upstreams, own, &key, problems)));
    }
    assign_upstreams(&mut tips, &mut routes, &named, &upstreams, problems);
    part_routes_without_tip(&mut tips.sources, &mut routes, &upstreams);
    for at in 0..routes.len() {
        let table = tables.iter().find(|table| *table.name == *routes[at].name);
        if let Some(name) = table.and_then(|table| table.derived_from.as_deref()) {
            match derived_from(&routes, at, name) {
                Ok(source) => routes[at].chain.derived_from = Some(source),
                Err(why) => problems.push(format!(
                    "route \"{}\": derived_from is {name:?}; {why}",
                    routes[at].name
                )),
            }
        }
    }
    let (upstreams, unused) = keep_used(upstreams, &mut tips.sources, &mut routes);
    let names: Vec<_> = routes.iter().map(|route| route.name.clone()).collect();
    let routes = RouteTable::new(routes).unwrap_or_else(|errors| {
        let of_route = |(index, why)| format!("route \"{}\": {why}", names[index]);
        problems.extend(errors.into_iter().map(of_route));
        // It is never used, since there are problems.
        RouteTable::default()
    });
    Assigned {
        routes,
        tips: tips.sources,
        upstreams,
        unused,
    }
}

/// Sets the upstream of each tip and each route; `named` has what each route names.
fn assign_upstreams(
    tips: &mut Tips,
    routes: &mut [Route],
    named: &[Option<u16>],
    upstreams: &[Settings],
    problems: &mut Vec<String>,
) {
    for (at, tip) in tips.sources.iter_mut().enumerate() {
        let of_routes = || {
            let mut named = routes.iter().zip(named).filter_map(|(route, named)| {
                let goes_by = usize::from(route.cache.tip) == at && route.cache.mode == Mode::Chain;
                named.filter(|_| goes_by)
            });
            named.next()
        };
        let own = tips.named.get(at).copied().flatten();
        let found = own
            .or_else(of_routes)
            .or_else(|| position(upstreams, &tip.name));
        tip.upstream = found.filter(|_| tip.path.is_some()).unwrap_or(0);
    }
    for (route, named) in routes.iter_mut().zip(named) {
        let tip = &tips.sources[usize::from(route.cache.tip)];
        route.upstream.number = named.unwrap_or(tip.upstream);
        if route.cache.mode == Mode::Chain
            && tip.path.is_some()
            && route.upstream.number != tip.upstream
        {
            let name = |number: u16| &*upstreams[usize::from(number)].name;
            let (own, of_tip) = (name(route.upstream.number), name(tip.upstream));
            problems.push(format!(
                "route \"{}\": it uses the upstream \"{own}\", and its tip \"{}\" is read from \"{of_tip}\"; both must use one: give the route a tip of its own, [chain.tip.NAME] with upstream = \"{own}\"",
                route.name, tip.name
            ));
        }
    }
}

/// Routes without a tip know the chain from answers alone. Those of different upstreams may
/// be of different chains, so each upstream gets a source without a path of its own.
fn part_routes_without_tip(
    tips: &mut Vec<TipSource>,
    routes: &mut [Route],
    upstreams: &[Settings],
) {
    let none = tips.len() - 1;
    let mut found: Vec<(u16, usize)> = Vec::new();
    for route in routes {
        if route.cache.mode != Mode::Chain || tips[usize::from(route.cache.tip)].path.is_some() {
            continue;
        }
        let number = route.upstream.number;
        let known = found.iter().find(|(upstream, _)| *upstream == number);
        let at = known.map_or(tips.len(), |(_, at)| *at);
        let at = if found.is_empty() { none } else { at };
        if at == tips.len() {
            let name = format!("none-{}", upstreams[usize::from(number)].name);
            tips.push(TipSource {
                name: name.into(),
                ..tips[none].clone()
            });
        }
        tips[at].upstream = number;
        route.cache.tip = u16::try_from(at).unwrap_or(u16::MAX);
        found.push((number, at));
    }
}

/// The number of the route whose stored blocks a transaction's activity is cut from.
fn derived_from(routes: &[Route], at: usize, name: &str) -> Result<u16, &'static str> {
    let found = routes.iter().position(|route| *route.name == *name);
    let source = found.ok_or("there is no such route")?;
    let (own, other) = (&routes[at], &routes[source]);
    let are_pages = own.chain.window.is_some() && other.chain.window.is_some();
    if !are_pages
        || own.cache.tip != other.cache.tip
        || own.upstream.number != other.upstream.number
    {
        return Err("both routes need pages = true, the same tip and the same upstream");
    }
    if own.chain.segments.hex64.is_none() || other.chain.segments.block.is_none() {
        return Err("it is for a route with a hex64 parameter, from one with a block parameter");
    }
    u16::try_from(source).map_err(|_many| "there are too many routes")
}

/// Keeps the upstreams that some route uses, and numbers them anew. Also returns the names of
/// the others. Tips that no route goes by are not read.
fn keep_used(
    upstreams: Vec<Settings>,
    tips: &mut [TipSource],
    routes: &mut [Route],
) -> (Vec<Settings>, Vec<Box<str>>) {
    let is_used = |at: usize| {
        let mut numbers = routes
            .iter()
            .map(|route| usize::from(route.upstream.number));
        numbers.any(|number| number == at) || (routes.is_empty() && at == 0)
    };
    let (mut used, mut unused, mut renumbered) = (Vec::new(), Vec::new(), Vec::new());
    for (at, settings) in upstreams.into_iter().enumerate() {
        renumbered.push(u16::try_from(used.len()).unwrap_or(u16::MAX));
        match is_used(at) {
            true => used.push(settings),
            false => {
                renumbered[at] = 0;
                unused.push(settings.name);
            }
        }
    }
    for route in routes {
        route.upstream.number = renumbered[usize::from(route.upstream.number)];
    }
    for tip in tips {
        tip.upstream = renumbered[usize::from(tip.upstream)];
        tip.upstream_name
            .clone_from(&used[usize::from(tip.upstream)].name);
    }
    (used, unused)
}
