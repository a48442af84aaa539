//! Which upstream each tip and each route uses.
//!
//! A route or a tip with `upstream = "NAME"` uses that one. A tip without it uses the upstream
//! that its routes in mode `chain` name, else the one of the same name as the tip, else the
//! default one. A route without it uses the upstream of its tip. So `--upstream runes=URL` is
//! enough to have the runes API of the built-in configuration on a server of its own.

use super::File;
use super::chain::no_tip;
use crate::cache::policy::Mode;
use crate::chain::TipSource;
use crate::route::{Route, RouteTable};
use crate::upstream::{self, DEFAULT, Settings};

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
pub(super) fn assign(file: &File, problems: &mut Vec<String>) -> Assigned {
    let upstreams = upstreams(file, problems);
    let mut tips = file.chain.tips();
    let (mut routes, mut named) = (Vec::new(), Vec::new());
    for (at, table) in file.route.iter().enumerate() {
        let name = &table.name;
        if file.route[..at].iter().any(|other| other.name == *name) {
            problems.push(format!(
                "route \"{name}\": another route has this name, too"
            ));
        }
        match table.route(&tips) {
            Ok(route) => {
                routes.push(route);
                named.push(table.upstream.as_deref());
            }
            Err(wrong) => {
                problems.extend(wrong.iter().map(|why| format!("route \"{name}\": {why}")))
            }
        }
    }
    check_names(file, &upstreams, problems);
    name_upstreams(&mut tips, file, &upstreams, routes.iter().zip(&named));
    let mut used_names = Vec::new();
    for (route, named) in routes.iter_mut().zip(named) {
        let of_tip = tips.get(usize::from(route.cache.tip));
        let name: Box<str> = match (named, of_tip) {
            (Some(named), _) => named.into(),
            (None, Some(tip)) => tip.upstream_name.clone(),
            (None, None) => DEFAULT.into(),
        };
        match of_tip {
            Some(tip)
                if route.cache.mode == Mode::Chain
                    && tip.path.is_some()
                    && tip.upstream_name != name =>
            {
                problems.push(format!(
                    "route \"{}\": it uses the upstream \"{name}\", and its tip \"{}\" is read from \"{}\"; both must use one: give the route a tip of its own, [chain.tip.NAME] with upstream = \"{name}\"",
                    route.name, tip.name, tip.upstream_name
                ));
            }
            Some(_) => {}
            // Without a status path, the chain is known from answers alone. Upstreams may have
            // different chains.
            None => {
                let none = no_tip(&name);
                let known = tips.iter().position(|tip| tip.name == none.name);
                let at = known.unwrap_or(tips.len());
                if known.is_none() {
                    tips.push(none);
                }
                route.cache.tip = u16::try_from(at).unwrap_or(u16::MAX);
            }
        }
        used_names.push(name);
    }
    let is_used = |one: &Settings| match used_names.is_empty() {
        true => *one.name == *DEFAULT,
        false => used_names.contains(&one.name),
    };
    let (used, unused): (Vec<_>, Vec<_>) = upstreams.into_iter().partition(is_used);
    let number = |name: &str| {
        let at = used.iter().position(|one| *one.name == *name);
        u16::try_from(at.unwrap_or_default()).unwrap_or(u16::MAX)
    };
    for tip in &mut tips {
        tip.upstream = number(&tip.upstream_name);
    }
    for (route, name) in routes.iter_mut().zip(&used_names) {
        route.upstream.number = number(name);
    }
    derive(file, &mut routes, problems);
    Assigned {
        routes: table(routes, problems),
        tips,
        unused: unused.into_iter().map(|one| one.name).collect(),
        upstreams: used,
    }
}

/// Chooses where each tip is read: as its table says, or its routes, or by its own name.
fn name_upstreams<'r>(
    tips: &mut [TipSource],
    file: &File,
    upstreams: &[Settings],
    routes: impl Iterator<Item = (&'r Route, &'r Option<&'r str>)> + Clone,
) {
    for (at, tip) in tips.iter_mut().enumerate() {
        let goes_by =
            |route: &Route| usize::from(route.cache.tip) == at && route.cache.mode == Mode::Chain;
        let own = file.chain.tip.get(&*tip.name);
        let own = own.and_then(|table| table.upstream.as_deref());
        let mut routes = routes.clone();
        let of_routes = routes.find_map(|(route, named)| named.filter(|_| goes_by(route)));
        let same = upstreams.iter().find(|one| one.name == tip.name);
        let found = own.or(of_routes).or(same.map(|one| &*one.name));
        tip.upstream_name = found.unwrap_or(DEFAULT).into();
    }
}

/// The upstream of `[upstream]`, then the named ones, with their names.
fn upstreams(file: &File, problems: &mut Vec<String>) -> Vec<Settings> {
    let mut all = vec![file.upstream.clone()];
    for (name, settings) in &file.upstreams {
        if name == DEFAULT || !upstream::is_name(name) {
            problems.push(format!(
                "[upstreams.{name}]: {name:?} cannot be the name of an upstream; allowed are 1 to 32 of a-z, 0-9 and -, and not \"{DEFAULT}\", which is [upstream]"
            ));
        }
        all.push(Settings {
            name: name.as_str().into(),
            has_own_file: settings.api_keys_file != file.upstream.api_keys_file,
            ..settings.clone()
        });
    }
    for one in &all {
        let urls = &one.urls;
        if (1..urls.len()).any(|at| urls[..at].contains(&urls[at])) {
            problems.push(format!(
                "{} has a URL twice; each is allowed once",
                one.key("url")
            ));
        }
    }
    all
}

/// Says which routes and tips name an upstream that there is not.
fn check_names(file: &File, upstreams: &[Settings], problems: &mut Vec<String>) {
    let routes = file.route.iter();
    let routes = routes.map(|route| {
        (
            format!("route \"{}\": upstream", route.name),
            &route.upstream,
        )
    });
    let tips = file.chain.tip.iter();
    let tips = tips.map(|(name, tip)| (format!("chain.tip.{name}.upstream"), &tip.upstream));
    for (key, named) in routes.chain(tips) {
        if let Some(name) = named
            && !upstreams.iter().any(|one| *one.name == **name)
        {
            let names = upstreams.iter().skip(1);
            let names: Vec<_> = names.map(|one| &*one.name).collect();
            problems.push(format!(
                "{key} is {name:?}; allowed are \"{DEFAULT}\", which is [upstream], and the names of [upstreams.NAME]: {}",
                names.join(", ")
            ));
        }
    }
}

/// Finds the routes whose stored blocks the activity of transactions is cut from.
fn derive(file: &File, routes: &mut [Route], problems: &mut Vec<String>) {
    for at in 0..routes.len() {
        let table = file
            .route
            .iter()
            .find(|table| *table.name == *routes[at].name);
        let Some(name) = table.and_then(|table| table.derived_from.as_deref()) else {
            continue;
        };
        let found = routes.iter().position(|route| *route.name == *name);
        let fits = |source: usize| {
            let (own, other) = (&routes[at], &routes[source]);
            own.chain.window.is_some()
                && other.chain.window.is_some()
                && own.cache.tip == other.cache.tip
                && own.upstream.number == other.upstream.number
                && own.chain.segments.hex64.is_some()
                && other.chain.segments.block.is_some()
        };
        match found.filter(|source| fits(*source)) {
            Some(source) => routes[at].chain.derived_from = u16::try_from(source).ok(),
            None => problems.push(format!(
                "route \"{}\": derived_from is {name:?}; allowed is the name of a route with a block parameter, for a route with a hex64 parameter; both need pages = true, the same tip and the same upstream",
                routes[at].name
            )),
        }
    }
}

/// The table of the routes; says which overlap.
fn table(routes: Vec<Route>, problems: &mut Vec<String>) -> RouteTable {
    let names: Vec<_> = routes.iter().map(|route| route.name.clone()).collect();
    RouteTable::new(routes).unwrap_or_else(|errors| {
        let of_route = |(index, why)| format!("route \"{}\": {why}", names[index]);
        problems.extend(errors.into_iter().map(of_route));
        // It is never used, since there are problems.
        RouteTable::default()
    })
}
