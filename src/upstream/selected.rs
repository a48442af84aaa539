//! Which endpoint of an upstream gets its requests: the conditions of all, and what follows
//! from a change.

use http::Uri;

use super::Upstream;
use super::counters::Failover;
use super::heights::{Heights, highest_at};
use super::selection::Condition;
use crate::sync::lock;

impl Upstream {
    /// The endpoint that requests go to, by its number; selected anew by the present
    /// conditions.
    pub(super) fn select_endpoint(&self) -> usize {
        if self.endpoints.len() == 1 {
            return 0;
        }
        let conditions = self.conditions();
        let mut selection = lock(&self.selection);
        let switch = selection.update(&conditions, self.clock.now());
        let selected = selection.selected();
        drop(selection);
        if let Some(switch) = switch {
            let name = |at: usize| self.endpoints[at].name.clone();
            let (from, condition) = (switch.from, conditions[switch.from]);
            let reason = self.endpoints[from].last_reason();
            let cause = match (condition, reason) {
                (Condition::Sound, _) => "a preferred endpoint is sound again".to_owned(),
                // Requests have failed: the last failure shows how.
                (Condition::Broken, Some(reason)) => {
                    format!("{}: {}", condition.name(), reason.name())
                }
                _ => condition.name().to_owned(),
            };
            tracing::warn!(
                upstream = self.name(),
                endpoint = &*name(switch.to),
                before = &*name(from),
                cause,
                "requests go to another endpoint from now on"
            );
            self.counters.count_switch(Failover {
                at: self.clock.now(),
                from: name(from),
                to: name(switch.to),
                cause,
            });
            self.doubted.send_replace(());
        }
        selected
    }

    /// The best endpoint besides those that a request has been `tried` at.
    pub(super) fn other_endpoint(&self, tried: &[usize]) -> Option<usize> {
        let conditions = self.conditions();
        lock(&self.selection).other(&conditions, tried)
    }

    /// The condition of each endpoint.
    pub(super) fn conditions(&self) -> Vec<Condition> {
        self.conditions_at(&self.heights())
    }

    pub(super) fn conditions_at(&self, heights: &Heights) -> Vec<Condition> {
        let max_lag = self.settings.endpoints.max_lag;
        let endpoints = self.endpoints.iter().zip(&heights.implausible);
        let conditions = endpoints.map(|(endpoint, implausible)| {
            endpoint.log_implausible(*implausible);
            let condition = endpoint.condition(&heights.best, max_lag);
            // No request waits for a key for longer than that.
            let max_wait = self.settings.admission.queue_timeout;
            let refuses = self.keys.all_unusable_at(&endpoint.host, max_wait);
            let signs = [
                implausible.map(|_| Condition::Implausible),
                refuses.then_some(Condition::Refusing),
            ];
            signs.into_iter().flatten().fold(condition, Ord::max)
        });
        conditions.collect()
    }

    /// The reported heights of the endpoints that could be used, compared.
    pub(super) fn heights(&self) -> Heights {
        let now = self.clock.now();
        let reported = self.endpoints.iter().map(|endpoint| {
            // An endpoint that cannot be used must not make the others seem to lag.
            match endpoint.condition(&[], 0) == Condition::Sound {
                true => endpoint.heights(),
                false => Vec::new(),
            }
        });
        let reported: Vec<_> = reported.collect();
        Heights::compare(&reported, highest_at(self.clock.wall(now)), now)
    }

    /// Takes in a height that an endpoint has reported on a status path, to this replica or
    /// another one. Returns whether it is plausible.
    pub fn record_height(&self, at: usize, path: &str, height: u32) -> bool {
        if let Some(endpoint) = self.endpoints.get(at) {
            endpoint.record_height(path, height);
        }
        self.select_endpoint();
        let implausible = self.heights().implausible;
        implausible.get(at).is_none_or(Option::is_none)
    }

    /// The endpoint that requests go to: its number, in the order of preference, and its
    /// URL.
    pub(crate) fn selected_endpoint(&self) -> (u16, &Uri) {
        let at = self.select_endpoint();
        (at as u16, &self.settings.endpoints.urls[at])
    }

    /// The endpoints besides the selected one, by their numbers.
    pub fn standbys(&self) -> Vec<usize> {
        let selected = self.select_endpoint();
        let all = 0..self.endpoints.len();
        all.filter(|at| *at != selected).collect()
    }

    /// Whether all standbys are healthy.
    pub fn standbys_are_sound(&self) -> bool {
        let (selected, conditions) = (self.select_endpoint(), self.conditions());
        let mut all = conditions.iter().enumerate();
        all.all(|(at, condition)| at == selected || *condition == Condition::Sound)
    }
}
