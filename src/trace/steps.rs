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
    /// Waiting for its turn, or for a slot of the endpoint.
    Queue,
    /// Waiting for budget, and until its use is recorded.
    Budget,
    /// From sending to the end of the answer, or of its head where the body is streamed.
    Upstream,
}

impl UpstreamStep {
    /// Their names in `server-timing`, in the order of a request.
    pub(crate) const NAMES: [&'static str; 4] = ["shared", "queue", "budget", "upstream"];
}

/// How long each step took, in the order of [`UpstreamStep::NAMES`].
pub(crate) type StepDurations = [Duration; 4];

/// The steps of one client's request so far.
#[derive(Debug, Default)]
pub(crate) struct StepTimes(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    steps: [StepState; 4],
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
    clock: Clock,
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
        Self {
            times,
            step,
            clock: clock.clone(),
        }
    }

    /// Ends the step, and begins another one.
    pub(crate) fn change(&mut self, step: UpstreamStep) {
        if step != self.step
            && let Some(times) = &self.times
        {
            times.end(self.step);
            times.begin(step, &self.clock);
            self.step = step;
        }
    }
}

impl Drop for StepTimer {
    fn drop(&mut self) {
        if let Some(times) = &self.times {
            times.end(self.step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: StepDurations = [Duration::ZERO; 4];

    fn timer(times: &Arc<StepTimes>, step: UpstreamStep, clock: &Clock) -> StepTimer {
        times.begin(step, clock);
        StepTimer {
            times: Some(times.clone()),
            step,
            clock: clock.clone(),
        }
    }

    fn seconds(times: &StepTimes) -> [u64; 4] {
        times.so_far().unwrap_or(NONE).map(|took| took.as_secs())
    }

    #[test]
    fn steps_beside_each_other_are_measured_together() {
        let clock = Clock::manual();
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        let times = Arc::<StepTimes>::default();
        assert_eq!(times.so_far(), None);
        let mut first = timer(&times, UpstreamStep::Queue, &clock);
        pass(2);
        let second = timer(&times, UpstreamStep::Queue, &clock);
        pass(1);
        first.change(UpstreamStep::Budget);
        pass(4);
        assert_eq!(seconds(&times), [0, 7, 4, 0], "both are under way");
        first.change(UpstreamStep::Upstream);
        drop(second);
        pass(8);
        drop(first);
        pass(16);
        assert_eq!(seconds(&times), [0, 7, 4, 8]);
    }

    #[test]
    fn a_request_that_waits_for_another_has_the_others_steps_during_the_wait() {
        let clock = Clock::manual();
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        let [leader, follower, idle] = std::array::from_fn(|_| Arc::<StepTimes>::default());
        let mut sent = timer(&leader, UpstreamStep::Queue, &clock);
        pass(20);
        sent.change(UpstreamStep::Upstream);
        pass(3);
        // Now the follower begins to wait.
        let before = leader.so_far().unwrap_or(NONE);
        pass(2);
        drop(sent);
        follower.take_over(&idle, NONE);
        assert_eq!(follower.so_far(), None);
        follower.take_over(&leader, before);
        leader.take_over(&leader, NONE);
        assert_eq!(seconds(&follower), [0, 0, 0, 2], "as long as it has waited");
        follower.take_over(&leader, before);
        assert_eq!(seconds(&follower), [0, 0, 0, 2], "it is the same wait");
        assert_eq!(seconds(&leader), [0, 20, 0, 5]);
    }

    #[test]
    fn a_wait_beside_an_own_request_is_measured_once() {
        let clock = Clock::manual();
        let pass = |seconds| clock.advance(Duration::from_secs(seconds));
        let [leader, own] = std::array::from_fn(|_| Arc::<StepTimes>::default());
        let theirs = timer(&leader, UpstreamStep::Upstream, &clock);
        pass(1);
        let mine = timer(&own, UpstreamStep::Upstream, &clock);
        pass(4);
        drop(theirs);
        own.take_over(&leader, NONE);
        assert_eq!(seconds(&own), [0, 0, 0, 5]);
        pass(6);
        drop(mine);
        assert_eq!(seconds(&own), [0, 0, 0, 11]);
    }
}
