//! Which upstream each tip and each route uses.
//!
//! A route or a tip with `upstream = "NAME"` uses that one. A tip without it uses the upstream
//! that its routes in mode `chain` name, else the one of the same name as the tip, else the
//! default one. A route without it uses the upstream of its tip. So `--upstream runes=URL` is
//! enough to have the runes API of the built-in configuration on a server of its own.

use super::chain::no_tip;
use super::{File, refuse};
use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::{ResponseSchema, Route, RouteTable};
use crate::upstream::{self, DEFAULT, Settings};

/// Routes and tips with their upstreams.
pub(super) struct Assigned {
    pub(super) routes: RouteTable,
    pub(super) tips: Vec<TipSource>,
    /// The upstreams that some route uses, in the order of their numbers.
    pub(super) upstreams: Vec<Settings>,
}

/// Makes the routes of the tables, and assigns upstreams.
pub(super) fn assign(file: &File, problems: &mut Vec<String>) -> Assigned {
    let upstreams = upstreams(file, problems);
    check_names(file, &upstreams, problems);
    let mut tips = file.chain.tips();
    let (mut routes, mut names) = (Vec::new(), Vec::new());
    for table in &file.route {
        match table.route(&tips) {
            Ok(route) => {
                routes.push(route);
                names.push(table.upstream.as_deref());
            }
            Err(wrong) => {
                let name = &table.name;
                problems.extend(wrong.iter().map(|why| format!("route \"{name}\": {why}")));
            }
        }
    }
    name_upstreams(&mut tips, file, &routes, &names);
    let mut used_names: Vec<Box<str>> = Vec::new();
    for (route, name) in routes.iter_mut().zip(names) {
        let tip = tips.get(usize::from(route.cache.tip));
        let of_tip = tip.map_or(DEFAULT, |tip| &*tip.upstream_name);
        let name = name.unwrap_or(of_tip);
        if let Some(tip) = tip {
            let is_apart = route.cache.mode == Mode::Chain && of_tip != name;
            refuse(
                problems,
                is_apart,
                format!(
                    "route \"{}\": it uses the upstream \"{name}\", and its tip \"{}\" is read from \"{of_tip}\"; both must use one: give the route a tip of its own, [chain.tip.NAME] with upstream = \"{name}\"",
                    route.name, tip.name
                ),
            );
        }
        used_names.push(name.into());
        if tip.is_none() {
            // Without a status path, the chain is known from answers alone. Upstreams may have
            // different chains.
            let none = no_tip(used_names.last().map_or(DEFAULT, |name| name));
            let known = tips.iter().position(|tip| tip.name == none.name);
            route.cache.tip = number(known.unwrap_or(tips.len()));
            if known.is_none() {
                tips.push(none);
            }
        }
    }
    let is_used = |one: &Settings| match used_names.is_empty() {
        true => *one.name == *DEFAULT,
        false => used_names.contains(&one.name),
    };
    let used: Vec<_> = upstreams.into_iter().filter(is_used).collect();
    let place = |name: &str| {
        let at = used.iter().position(|one| *one.name == *name);
        number(at.unwrap_or_default())
    };
    for tip in &mut tips {
        tip.upstream = place(&tip.upstream_name);
    }
    for (route, name) in routes.iter_mut().zip(&used_names) {
        route.upstream.number = place(name);
    }
    for at in 0..routes.len() {
        let source = routes
            .iter()
            .position(|other| is_derived(&routes[at], other));
        routes[at].chain.derived_from = source.map(number);
    }
    Assigned {
        routes: table(routes, problems),
        tips,
        upstreams: used,
    }
}

/// Chooses where each tip is read: as its table says, or its routes, or by its own name.
fn name_upstreams(tips: &mut [TipSource], file: &File, routes: &[Route], names: &[Option<&str>]) {
    for (at, tip) in tips.iter_mut().enumerate() {
        let own = file.chain.tip[&*tip.name].upstream.as_deref();
        let of_routes = || {
            let goes_by = |route: &Route| {
                route.cache.mode == Mode::Chain && usize::from(route.cache.tip) == at
            };
            let mut routes = routes.iter().zip(names);
            routes.find_map(|(route, name)| name.filter(|_| goes_by(route)))
        };
        let same = || {
            file.upstreams
                .contains_key(&*tip.name)
                .then_some(&*tip.name)
        };
        let found = own.or_else(of_routes).or_else(same);
        tip.upstream_name = found.unwrap_or(DEFAULT).into();
    }
}

fn number(at: usize) -> u16 {
    u16::try_from(at).unwrap_or(u16::MAX)
}

/// Whether a route has the activity of transactions, and another that of their blocks.
fn is_derived(of_transactions: &Route, of_blocks: &Route) -> bool {
    let has_activity = |route: &Route| {
        route.chain.window.is_some() && route.docs.response == ResponseSchema::RuneActivity
    };
    has_activity(of_transactions)
        && has_activity(of_blocks)
        && of_transactions.chain.segments.hex64.is_some()
        && of_blocks.chain.segments.block.is_some()
        && of_transactions.cache.tip == of_blocks.cache.tip
        && of_transactions.upstream.number == of_blocks.upstream.number
}

/// The upstream of `[upstream]`, then the named ones, with their names.
fn upstreams(file: &File, problems: &mut Vec<String>) -> Vec<Settings> {
    let mut all = vec![file.upstream.clone()];
    for (name, settings) in &file.upstreams {
        refuse(
            problems,
            name == DEFAULT || !upstream::is_name(name),
            format!(
                "[upstreams.{name}]: {name:?} cannot be the name of an upstream; allowed are 1 to 32 of a-z, 0-9 and -, and not \"{DEFAULT}\", which is [upstream]"
            ),
        );
        all.push(Settings {
            name: name.as_str().into(),
            has_own_file: settings.api_keys_file != file.upstream.api_keys_file,
            ..settings.clone()
        });
    }
    for one in &all {
        let urls = &one.urls;
        refuse(
            problems,
            (1..urls.len()).any(|at| urls[..at].contains(&urls[at])),
            format!("{} has a URL twice; each is allowed once", one.key("url")),
        );
    }
    all
}

/// Says which routes and tips name an upstream that there is not.
fn check_names(file: &File, upstreams: &[Settings], problems: &mut Vec<String>) {
    let routes = file.route.iter().map(|route| {
        let key = format!("route \"{}\": upstream", route.name);
        (key, &route.upstream)
    });
    let tips = file.chain.tip.iter();
    let tips = tips.map(|(name, tip)| (format!("chain.tip.{name}.upstream"), &tip.upstream));
    for (key, named) in routes.chain(tips) {
        let is_known = |name: &String| upstreams.iter().any(|one| *one.name == **name);
        if let Some(name) = named.as_ref().filter(|name| !is_known(name)) {
            let names = file.upstreams.keys().map(String::as_str);
            let names: Vec<_> = std::iter::once(DEFAULT).chain(names).collect();
            problems.push(format!(
                "{key} is {name:?}; allowed are the names of upstreams: {} (\"{DEFAULT}\" is [upstream], and [upstreams.NAME] adds one)",
                names.join(", ")
            ));
        }
    }
}

/// The table of the routes; says which overlap.
fn table(routes: Vec<Route>, problems: &mut Vec<String>) -> RouteTable {
    let names: Vec<_> = routes.iter().map(|route| route.name.clone()).collect();
    for (at, name) in names.iter().enumerate() {
        refuse(
            problems,
            names[..at].contains(name),
            format!("route \"{name}\": another route has this name, too"),
        );
    }
    RouteTable::new(routes).unwrap_or_else(|errors| {
        let of_route = |(index, why)| format!("route \"{}\": {why}", names[index]);
        problems.extend(errors.into_iter().map(of_route));
        // It is never used, since there are problems.
        RouteTable::default()
    })
}
