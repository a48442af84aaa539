//! Which of several base URLs requests go to.
//!
//! They are in the order of preference. The selected one stays selected while none is in a
//! better condition, since each change of endpoint may look like a change of the chain. A
//! preferred one is selected again once it has been sound for [`PROBATION`].

use std::time::Duration;

use http::Uri;
use serde::Serialize;
use tokio::sync::watch;

use super::Upstream;
use crate::sync::lock;

/// The condition of an endpoint, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// It is healthy.
    Sound,
    /// It lags behind another endpoint by too many blocks.
    Lagging,
    /// What it answers on its status path is no status: it fails, or is the wrong server.
    Wrong,
    /// It accepts none of the keys for longer than a request waits.
    Refusing,
    /// Its breaker is open.
    Broken,
}

impl Condition {
    /// The names in logs and metrics, in the order of the conditions.
    pub(crate) const NAMES: [&'static str; 5] = ["sound", "lagging", "wrong", "refusing", "broken"];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// How many blocks an endpoint may be behind another and still be used.
const MAX_LAG: u32 = 2;
/// How long a preferred endpoint must be sound before requests go to it again.
const PROBATION: Duration = Duration::from_secs(30);

/// The endpoint to select, by its number. `states` are the condition of each endpoint, and how
/// long it has been sound.
fn choose(selected: usize, states: &[(Condition, Duration)]) -> usize {
    let own = states[selected].0;
    let best = (0..states.len()).min_by_key(|at| (states[*at].0, *at));
    if let Some(better) = best.filter(|best| states[*best].0 < own) {
        return better;
    }
    let mut preferred = (0..selected).filter(|_| own == Condition::Sound);
    let returns = preferred.find(|at| states[*at].0 == own && states[*at].1 >= PROBATION);
    returns.unwrap_or(selected)
}

impl Upstream {
    /// The condition of each endpoint, and by how many blocks it lags.
    pub(super) fn conditions(&self) -> Vec<(Condition, u32)> {
        let settings = &self.settings;
        let states = self.endpoints.iter().map(|endpoint| endpoint.condition());
        let states: Vec<_> = states.collect();
        let best = |path: &str| {
            // One that cannot be used must not make the others seem to lag.
            let sound = states.iter().filter(|(own, _)| *own == Condition::Sound);
            sound.filter_map(|(_, heights)| heights.get(path)).max()
        };
        let each = self.endpoints.iter().zip(&states);
        let each = each.map(|(endpoint, (condition, heights))| {
            let behind = |(path, own): (_, &u32)| best(path)?.checked_sub(*own);
            let lag = heights.iter().filter_map(|(path, own)| behind((path, own)));
            let (lag, mut condition) = (lag.max().unwrap_or(0), *condition);
            if lag > MAX_LAG {
                condition = condition.max(Condition::Lagging);
            }
            // No request waits for a key for longer than that.
            let max_wait = settings.queue_timeout;
            if self.keys.all_unusable_at(&endpoint.host, max_wait) {
                condition = condition.max(Condition::Refusing);
            }
            (condition, lag)
        });
        each.collect()
    }

    /// The endpoint that requests go to, by its number; selected anew by the present
    /// conditions.
    pub(super) fn select_endpoint(&self) -> usize {
        if self.endpoints.len() == 1 {
            return 0;
        }
        let conditions = self.conditions();
        let states = conditions.iter().zip(&self.endpoints);
        let states =
            states.map(|((condition, _), endpoint)| (*condition, endpoint.sound_for(*condition)));
        let states: Vec<_> = states.collect();
        let mut selected = lock(&self.selected);
        let from = *selected;
        *selected = choose(from, &states);
        let to = *selected;
        drop(selected);
        if to != from {
            let name = |at: usize| self.endpoints[at].name.clone();
            let cause = if states[from].0 == Condition::Sound {
                "a preferred endpoint is sound again"
            } else {
                states[from].0.name()
            };
            tracing::warn!(
                upstream = self.name(),
                endpoint = &*name(to),
                before = &*name(from),
                cause,
                "requests go to another endpoint from now on"
            );
            self.counters.results.count("switches");
            self.doubted.send_replace(());
        }
        to
    }

    /// The best usable endpoint where a request has not `failed`.
    pub(super) fn other_endpoint(&self, failed: impl Fn(usize) -> bool) -> Option<usize> {
        let (selected, conditions) = (self.select_endpoint(), self.conditions());
        let others = (0..conditions.len()).filter(|at| !failed(*at));
        let usable = others.filter(|at| conditions[*at].0 < Condition::Refusing);
        usable.min_by_key(|at| (conditions[*at].0, *at != selected, *at))
    }

    /// Takes in what an endpoint has answered on a status path, to this replica or another
    /// one: the height, or `None` if it was no status.
    pub fn record_status(&self, at: usize, path: &str, height: Option<u32>) {
        if let Some(endpoint) = self.endpoints.get(at) {
            endpoint.record_status(path, height);
        }
        self.select_endpoint();
    }

    /// The endpoint that requests go to: its number, in the order of preference, and its
    /// URL.
    pub(crate) fn selected_endpoint(&self) -> (u16, &Uri) {
        let at = self.select_endpoint();
        (at as u16, &self.settings.urls[at])
    }

    /// The endpoints besides the selected one, by their numbers, and whether all of them are
    /// healthy.
    pub fn standbys(&self) -> (Vec<usize>, bool) {
        let (selected, conditions) = (self.select_endpoint(), self.conditions());
        let standbys = (0..conditions.len()).filter(|at| *at != selected);
        let standbys: Vec<_> = standbys.collect();
        let is_sound = |at: &usize| conditions[*at].0 == Condition::Sound;
        let are_sound = standbys.iter().all(is_sound);
        (standbys, are_sound)
    }

    /// Changes when the tip is to be asked for at once.
    pub fn doubts(&self) -> watch::Receiver<()> {
        self.doubted.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use Condition::{Broken, Lagging, Sound, Wrong};

    use super::*;

    #[test]
    fn the_best_endpoint_is_selected_and_a_preferred_one_returns_after_its_probation() {
        // the selected one, conditions, how long the first has been sound: the next one
        for (selected, conditions, sound_for, expected) in [
            (0, [Sound, Sound, Sound], 0, 0),
            (0, [Lagging, Sound, Sound], 0, 1),
            (1, [Sound, Sound, Sound], 29, 1),
            (1, [Sound, Sound, Sound], 30, 0),
            (1, [Sound, Broken, Sound], 0, 0),
            (1, [Lagging, Lagging, Broken], 99, 1),
            (0, [Broken, Broken, Wrong], 0, 2),
            (2, [Broken, Broken, Broken], 0, 2),
            (2, [Broken, Wrong, Broken], 0, 1),
        ] {
            let mut states = conditions.map(|condition| (condition, Duration::ZERO));
            states[0].1 = Duration::from_secs(sound_for);
            let found = choose(selected, &states);
            assert_eq!(found, expected, "{selected} {conditions:?}");
        }
    }
}
