//! Which endpoint requests go to: selection by health, height and keys, and the
//! probes of the other endpoints (standbys).

use std::sync::{Arc, MutexGuard};

use http::Uri;
use tokio::sync::watch;

use super::Upstream;
use super::counters::Failover;
use super::endpoint::Endpoint;
use super::endpoint::heights::{Heights, highest_at};
use super::endpoint::selection::{Condition, EndpointSelection, Switch};
use crate::sync::lock;

impl Upstream {
    /// The endpoint that requests go to, by its index; selected anew by the present
    /// conditions.
    pub(super) fn select_endpoint(&self) -> usize {
        if self.has_one_endpoint() {
            return 0;
        }
        let conditions = self.conditions();
        let mut selection = self.selection();
        let switch = selection.update(&conditions, self.clock.now());
        let selected = selection.selected();
        drop(selection);
        if let Some(Switch { from, to }) = switch {
            let name = |at: usize| self.endpoints[at].name();
            let cause = self.failover_cause(from, conditions[from]);
            tracing::warn!(
                upstream = self.name(),
                endpoint = name(to),
                before = name(from),
                which_is = conditions[from].name(),
                cause,
                "requests go to another endpoint from now on"
            );
            self.counters.switch(Failover {
                at: self.clock.now(),
                from: name(from).into(),
                to: name(to).into(),
                cause,
            });
            self.switched.send_replace(());
        }
        selected
    }

    /// Why requests no longer go to an endpoint in this condition.
    fn failover_cause(&self, from: usize, condition: Condition) -> String {
        let name = condition.name();
        match condition {
            Condition::Sound => "a preferred endpoint is sound again".to_owned(),
            // Requests have failed: the last failure shows how.
            Condition::Broken | Condition::Doubtful => {
                match self.endpoints[from].last_failure_kind() {
                    Some(kind) => format!("{name}: {kind}"),
                    None => name.to_owned(),
                }
            }
            Condition::Lagging
            | Condition::Implausible
            | Condition::Refusing
            | Condition::Retired => name.to_owned(),
        }
    }

    /// The best endpoint besides those that a request has been `tried` at.
    pub(super) fn other_endpoint(&self, tried: &[usize]) -> Option<usize> {
        let conditions = self.conditions();
        self.selection().other(&conditions, tried)
    }

    /// The condition of each endpoint.
    fn conditions(&self) -> Vec<Condition> {
        self.conditions_at(&self.heights())
    }

    pub(super) fn conditions_at(&self, heights: &Heights) -> Vec<Condition> {
        let (now, max_lag) = (self.clock.now(), self.settings.endpoints.max_lag);
        let endpoints = self.endpoints.iter().zip(&heights.implausible);
        let conditions = endpoints.map(|(endpoint, implausible)| {
            endpoint.log_implausible(*implausible);
            let condition = endpoint.condition(&heights.best, max_lag, now);
            // No request waits for a key for longer than that.
            let max_wait = self.settings.admission.queue_timeout;
            let refuses = self.keys.all_unusable_at(endpoint.host(), max_wait);
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
            match endpoint.condition(&[], 0, now) == Condition::Sound {
                true => endpoint.heights(),
                false => Vec::new(),
            }
        });
        let reported: Vec<_> = reported.collect();
        Heights::compare(&reported, highest_at(self.clock.wall(now)), now)
    }

    /// Takes in a height that an endpoint has reported on a status path. Returns
    /// whether it is plausible.
    pub(super) fn record_height(&self, at: usize, path: &str, height: u32) -> bool {
        if let Some(endpoint) = self.endpoints.get(at) {
            endpoint.record_height(path, height, self.clock.now());
        }
        self.select_endpoint();
        let implausible = self.heights().implausible;
        implausible.get(at).is_none_or(Option::is_none)
    }

    /// Takes in a height that a standby has reported.
    pub fn record_standby_height(&self, at: usize, path: &str, height: u32) {
        self.record_height(at, path, height);
    }

    /// The endpoint that requests go to: its number, in the order of preference, and its
    /// URL.
    pub(crate) fn selected_endpoint(&self) -> (u16, &Uri) {
        let at = self.select_endpoint();
        (at as u16, &self.settings.endpoints.urls[at])
    }

    /// Takes in a height that an endpoint has reported to another replica. Returns whether
    /// it is plausible.
    pub(crate) fn record_followed_height(&self, at: u16, path: &str, height: u32) -> bool {
        self.record_height(usize::from(at), path, height)
    }

    /// The endpoints besides the selected one, by their indexes.
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

    /// Changes when another endpoint is selected.
    pub fn switches(&self) -> watch::Receiver<()> {
        self.switched.subscribe()
    }

    /// Whether there is no other endpoint to use.
    pub(super) fn has_one_endpoint(&self) -> bool {
        self.endpoints.len() == 1
    }

    /// The index of an endpoint in the order of preference.
    pub(super) fn index_of(&self, endpoint: &Arc<Endpoint>) -> usize {
        let mut all = self.endpoints.iter();
        all.position(|own| Arc::ptr_eq(own, endpoint)).unwrap_or(0)
    }

    pub(super) fn selection(&self) -> MutexGuard<'_, EndpointSelection> {
        lock(&self.selection)
    }
}
