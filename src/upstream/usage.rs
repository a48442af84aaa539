//! What upstream requests are sent for: by route and reason since the start, and in the
//! last minutes also by client and by target.
//!
//! Two windows of five minutes alternate, so that what is shown covers the last five to
//! ten minutes. Clients and targets are counted in bounded memory
//! ([`heavy_hitters`]); routes and reasons are few. Pure: `now` is an argument.
//!
//! Deliberately absent: what a key may spend (`admission`), and the order of the queue,
//! which forgets faster.

mod heavy_hitters;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use heavy_hitters::HeavyHitter;
use heavy_hitters::HeavyHitters;

use super::counters::SendReason;
use super::{Check, Priority, RequestPriority};
use crate::client_tokens::redact;
use crate::clock::Moment;
use crate::identify::Client;
use crate::sync::lock;

/// How long a window is.
const WINDOW: Duration = Duration::from_mins(5);
/// How much of a target is kept, in bytes.
const MOST_TARGET: usize = 256;
/// What requests are sent for: each reason of [`SendReason`], and each check.
const REASONS: usize = SendReason::ALL.len() + Check::ALL.len();
/// The name of the route of requests that have none.
const NO_ROUTE: &str = "none";

/// What the upstream requests of the process are sent for.
#[derive(Debug, Default)]
pub(crate) struct Usage(Mutex<UsageState>);

#[derive(Debug)]
struct UsageState {
    /// The names of all routes since the start, and the requests for each.
    routes: Vec<RouteUsage>,
    /// The index there, by the route's number.
    numbers: HashMap<u16, usize>,
    /// The present window.
    present: UsageWindow,
    /// The one before, if there was one.
    before: Option<UsageWindow>,
}

#[derive(Debug)]
struct RouteUsage {
    name: Arc<str>,
    /// Since the start, by reason.
    sent: [u64; REASONS],
}

#[derive(Clone, Debug, Default)]
struct UsageWindow {
    /// `None` before the first request.
    began: Option<Moment>,
    /// By route and reason.
    sent: Vec<[u64; REASONS]>,
    clients: HeavyHitters<Client>,
    targets: HeavyHitters<UsedTarget>,
}

/// A target, and its route.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedTarget {
    route: usize,
    /// At most [`MOST_TARGET`] bytes of it, without client tokens.
    target: Box<str>,
}

/// How many requests were sent for a route and a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteSpending {
    /// The route's name, or `none`.
    pub(crate) route: Arc<str>,
    /// Such as `miss`.
    pub(crate) reason: &'static str,
    pub(crate) requests: u64,
}

/// What requests were sent for in the last minutes.
#[derive(Clone, Debug)]
pub(crate) struct RecentSpending {
    /// How many minutes those are.
    pub(crate) since: Duration,
    /// The most frequent first.
    pub(crate) by_route: Vec<RouteSpending>,
    /// The clients that most requests were sent for, the first first.
    pub(crate) clients: Vec<HeavyHitter<Client>>,
    /// The targets that most requests were sent for, the first first, each with its route.
    pub(crate) targets: Vec<HeavyHitter<(Arc<str>, Box<str>)>>,
}

impl Default for UsageState {
    fn default() -> Self {
        Self {
            routes: vec![RouteUsage::new(NO_ROUTE)],
            numbers: HashMap::new(),
            present: UsageWindow::default(),
            before: None,
        }
    }
}

impl RouteUsage {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            sent: [0; REASONS],
        }
    }
}

impl Usage {
    /// Sets the names of the routes with these numbers. Names that are known stay: late
    /// requests of routes before a reload count too.
    pub(crate) fn name_routes<'n>(&self, routes: impl Iterator<Item = (u16, &'n str)>) {
        let mut state = self.state();
        for (number, name) in routes {
            let known = state.routes.iter().position(|route| *route.name == *name);
            let at = known.unwrap_or_else(|| {
                state.routes.push(RouteUsage::new(name));
                state.routes.len() - 1
            });
            state.numbers.insert(number, at);
        }
    }

    /// Counts a request that is sent. Returns the name of its route, if it has one.
    pub(crate) fn record(
        &self,
        reason: SendReason,
        request: RequestPriority,
        target: &str,
        now: Moment,
    ) -> Option<Arc<str>> {
        let mut state = self.state();
        let state = &mut *state;
        state.rotate(now);
        let number = request.origin.route.as_ref();
        let route = number.and_then(|number| state.numbers.get(number).copied());
        let (at, reason_index) = (route.unwrap_or(0), index(reason, request));
        state.routes[at].sent[reason_index] += 1;
        let window = &mut state.present;
        if window.sent.len() <= at {
            window.sent.resize(at + 1, [0; REASONS]);
        }
        window.sent[at][reason_index] += 1;
        if let Some(client) = request.client {
            window.clients.count(|known| *known == client, || client);
        }
        // Status paths are the same few, and no client requests them.
        let is_status_path = reason == SendReason::KeyCheck || request.priority == Priority::Probe;
        if !is_status_path {
            let kept = redact(target, MOST_TARGET);
            let is_it = |known: &UsedTarget| known.route == at && *known.target == *kept;
            let make = || UsedTarget {
                route: at,
                target: (&*kept).into(),
            };
            window.targets.count(is_it, make);
        }
        route.map(|at| state.routes[at].name.clone())
    }

    /// The requests since the start, by route and reason: all but those that are zero.
    pub(crate) fn by_route(&self) -> Vec<RouteSpending> {
        let state = self.state();
        let sent = state.routes.iter().map(|route| route.sent);
        state.cells(sent)
    }

    /// The requests of the last minutes.
    pub(crate) fn recent(&self, now: Moment) -> RecentSpending {
        let mut state = self.state();
        state.rotate(now);
        let none = UsageWindow::default();
        let (present, before) = (&state.present, state.before.as_ref().unwrap_or(&none));
        let of = |window: &UsageWindow, at: usize| {
            let sent = window.sent.get(at);
            sent.copied().unwrap_or([0; REASONS])
        };
        let sums = (0..state.routes.len()).map(|at| {
            let (one, two) = (of(present, at), of(before, at));
            std::array::from_fn(|reason| one[reason] + two[reason])
        });
        let mut by_route = state.cells(sums);
        by_route.sort_by_key(|cell| std::cmp::Reverse(cell.requests));
        let targets = present.targets.merged(&before.targets).into_iter();
        let targets = targets.map(|row| HeavyHitter {
            item: (state.routes[row.item.route].name.clone(), row.item.target),
            count: row.count,
            error: row.error,
        });
        let began = before.began.or(present.began);
        RecentSpending {
            since: began.map_or(Duration::ZERO, |began| now.since(began)),
            by_route,
            clients: present.clients.merged(&before.clients),
            targets: targets.collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, UsageState> {
        lock(&self.0)
    }
}

impl UsageState {
    /// Begins another window if it is time.
    fn rotate(&mut self, now: Moment) {
        let began = *self.present.began.get_or_insert(now);
        let windows = now.since(began).as_secs() / WINDOW.as_secs();
        if windows == 0 {
            return;
        }
        let ended = |windows: u64| began + Duration::from_secs(windows * WINDOW.as_secs());
        let next = UsageWindow {
            began: Some(ended(windows)),
            ..UsageWindow::default()
        };
        let present = std::mem::replace(&mut self.present, next);
        // If there was none for longer, the window before this one was empty.
        self.before = Some(match windows {
            1 => present,
            _ => UsageWindow {
                began: Some(ended(windows - 1)),
                ..UsageWindow::default()
            },
        });
    }

    /// Counts of all routes, without those that are zero.
    fn cells(&self, sent: impl Iterator<Item = [u64; REASONS]>) -> Vec<RouteSpending> {
        let cells = self.routes.iter().zip(sent).flat_map(|(route, sent)| {
            let each = sent.into_iter().enumerate();
            each.map(|(reason, requests)| RouteSpending {
                route: route.name.clone(),
                reason: name(reason),
                requests,
            })
        });
        cells.filter(|cell| cell.requests > 0).collect()
    }
}

/// The index of what a request is sent for. A retry counts as one, whatever the
/// first attempt was for.
fn index(reason: SendReason, request: RequestPriority) -> usize {
    match (reason, request.origin.check) {
        (SendReason::First(_), Some(check)) => SendReason::ALL.len() + check.index(),
        (reason, _) => reason.index(),
    }
}

/// The name of what requests with this index are sent for.
fn name(index: usize) -> &'static str {
    match SendReason::ALL.get(index) {
        Some(reason) => reason.name(),
        None => Check::ALL[index - SendReason::ALL.len()].name(),
    }
}

#[cfg(test)]
mod tests;
