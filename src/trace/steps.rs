//! How long a client's request spends in each step on the way to an answer of the
//! upstream, whether its trace is recorded or not: for `server-timing` and the access log.
//!
//! Requests to the upstream that run beside each other for one client, such as those for
//! the windows of a page, are measured together: a step takes the time in which
//! at least one of them is in it. A request that waits for another one's fetch takes over
//! how long each step of that one took during the wait; of several waits, and of its own
//! requests, the longest counts. So no step is longer than the client has waited.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// A step of a request to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamStep {
    /// Looking the response up in the engine that replicas share, and waiting while another
    /// replica fetches it.
    Shared,
    /// Waiting for its turn: for a slot of the endpoint, or for budget.
    Queue,
    /// From sending to the end of the answer, or of its head where the body is streamed.
    Upstream,
}

impl UpstreamStep {
    /// Their names in `server-timing`, in the order of a request.
    pub(crate) const NAMES: [&'static str; 3] = ["shared", "queue", "upstream"];
}

/// How long each step took, in the order of [`UpstreamStep::NAMES`].
pub(crate) type StepDurations = [Duration; 3];

/// The steps of one client's request so far.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    steps: [StepState; 3],
    /// Whether any step has begun.
    has_begun: bool,
}

#[derive(Debug, Default)]
struct StepState {
    /// Requests to the upstream that are in this step.
    under_way: u32,
    /// Since when there is one, and the clock that says so.
    since: Option<(Moment, Clock)>,
    /// How long there was one before.
    total: Duration,
}

/// A step under way. It ends when it is dropped.
#[must_use]
pub(crate) struct StepTimer {
    times: Option<Arc<StepTimes>>,
    step: UpstreamStep,
}

impl StepState {
    /// How long the step has been under way without a break.
    fn running(&self) -> Duration {
        let since = self.since.as_ref();
        since.map_or(Duration::ZERO, |(since, clock)| clock.now().since(*since))
    }
}

impl StepTimes {
    /// How long each step has taken until now; `None` if no step has begun.
    pub(crate) fn so_far(&self) -> Option<StepDurations> {
        let measured = lock(&self.0);
        let so_far = |state: &StepState| state.total + state.running();
        measured
            .has_begun
            .then(|| std::array::from_fn(|at| so_far(&measured.steps[at])))
    }

    /// Takes over the steps of the request that this one has waited for, as far as they
    /// took place during the wait: `before` is how long they had taken when it began.
    pub(super) fn take_over(&self, leader: &Self, before: StepDurations) {
        if std::ptr::eq(self, leader) {
            return;
        }
        let Some(taken) = leader.so_far() else {
            return;
        };
        let mut measured = lock(&self.0);
        measured.has_begun = true;
        for ((state, taken), before) in measured.steps.iter_mut().zip(taken).zip(before) {
            let during = taken.saturating_sub(before);
            // What is under way here is added at its end.
            state.total = state.total.max(during.saturating_sub(state.running()));
        }
    }

    fn begin(&self, step: UpstreamStep, clock: &Clock) {
        let mut measured = lock(&self.0);
        measured.has_begun = true;
        let state = &mut measured.steps[step as usize];
        state.under_way += 1;
        if state.since.is_none() {
            state.since = Some((clock.now(), clock.clone()));
        }
    }

    fn end(&self, step: UpstreamStep) {
        let state = &mut lock(&self.0).steps[step as usize];
        state.under_way -= 1;
        if state.under_way == 0
            && let Some((since, clock)) = state.since.take()
        {
            state.total += clock.now().since(since);
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
