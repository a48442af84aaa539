//! How long a client's request spends in each step on the way to an answer of the
//! upstream, whether its trace is recorded or not: for `server-timing` and the access log.
//!
//! Requests to the upstream that run beside each other for one client, such as those for
//! the windows of a page, are measured together: a step takes the time in which
//! at least one of them is in it. So no step is longer than the client has waited.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// A step of a request on the way to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamStep {
    /// Waiting for its turn: for a slot of the endpoint, or for budget.
    Queue,
    /// From sending to the end of the answer, or of its head where the body is streamed.
    Upstream,
    /// Waiting for what another request fetches.
    Collapsed,
}

impl UpstreamStep {
    /// Their names in `server-timing`.
    pub(crate) const NAMES: [&'static str; 3] = ["queue", "upstream", "collapsed"];
}

/// How long each step took, in the order of [`UpstreamStep::NAMES`]; `None` for one that has
/// not begun.
pub(crate) type StepDurations = [Option<Duration>; 3];

/// The steps of one client's request so far.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(Mutex<[StepState; 3]>);

#[derive(Debug, Default)]
struct StepState {
    /// Requests that are in this step.
    under_way: u32,
    /// Since when there is one, and the clock that says so.
    since: Option<(Moment, Clock)>,
    /// How long there was one before; `None` if there was none yet.
    total: Option<Duration>,
}

/// A step under way. It ends when it is dropped.
#[must_use]
pub(crate) struct StepTimer {
    times: Option<Arc<StepTimes>>,
    step: UpstreamStep,
}

impl StepTimes {
    /// How long each step has taken until now.
    pub(crate) fn so_far(&self) -> StepDurations {
        let steps = lock(&self.0);
        std::array::from_fn(|at| {
            let since = steps[at].since.as_ref();
            let running = since.map(|(since, clock)| clock.now().since(*since));
            Some(steps[at].total? + running.unwrap_or_default())
        })
    }

    fn begin(&self, step: UpstreamStep, clock: &Clock) {
        let state = &mut lock(&self.0)[step as usize];
        state.under_way += 1;
        state.total.get_or_insert_default();
        state
            .since
            .get_or_insert_with(|| (clock.now(), clock.clone()));
    }

    fn end(&self, step: UpstreamStep) {
        let state = &mut lock(&self.0)[step as usize];
        state.under_way -= 1;
        if state.under_way == 0
            && let Some((since, clock)) = state.since.take()
        {
            *state.total.get_or_insert_default() += clock.now().since(since);
        }
    }
}

impl StepTimer {
    /// Begins a step of the present request. What no client has caused is not measured.
    pub(crate) fn begin(step: UpstreamStep, clock: &Clock) -> Self {
        let times = super::step_times();
        if let Some(times) = &times {
            times.begin(step, clock);
        }
        Self { times, step }
    }
}

impl Drop for StepTimer {
    fn drop(&mut self) {
        if let Some(times) = &self.times {
            times.end(self.step);
        }
    }
}
