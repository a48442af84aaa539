//! Probes of a tip that several replicas need: one probes, and the others follow what it
//! finds (`shared::tip`). [`ProbeSchedule`] says when.
//!
//! Each call to the engine comes before the probe that may follow it, so that a holder
//! whose lease may have ended does not probe. Without an answer, this replica probes for
//! itself.
//!
//! Deliberately absent: what is prefetched after a new tip, which the replica does that has
//! probed, since it costs the budget of all; and standbys, which each replica probes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::schedule::{LONGEST_ROUND, ProbeRole, ProbeSchedule, ProbeStep, SHORTEST_ROUND};
use super::starts::LastStarts;
use super::{ProbeOutcome, ReportedStatus, apply, reserve_budget, search_fork_point, send};
use crate::chain::TipSource;
use crate::clock::Moment;
use crate::fill::Fill;
use crate::shared::tip::{CallTime, TipLeases, TipName, TipObservation, TipProber};

/// Probes a tip or follows the observations of others, until the task is cancelled.
pub(super) async fn watch(fill: Arc<Fill>, tip: u16, tips: Vec<u16>, leases: Arc<TipLeases>) {
    let Some(source) = fill.chain.source(tip).cloned() else {
        return;
    };
    let Some(path) = source.path.clone() else {
        return;
    };
    let mut followed = FollowedTip {
        schedule: ProbeSchedule::new(source.every, fastrand::f64()),
        fill,
        tip,
        tips,
        path,
        source,
        leases,
        starts: LastStarts::default(),
        name: None,
        seen: None,
        answered: Moment::default(),
        is_answered: true,
        began: Instant::now(),
    };
    loop {
        let wait = followed.round().await;
        let jitter = wait.mul_f64(fastrand::f64() / 10.0);
        followed.wait(wait.saturating_sub(jitter)).await;
    }
}

/// A tip that several replicas need.
struct FollowedTip {
    fill: Arc<Fill>,
    tip: u16,
    /// All tips of its upstream.
    tips: Vec<u16>,
    path: Box<str>,
    source: TipSource,
    leases: Arc<TipLeases>,
    schedule: ProbeSchedule,
    starts: LastStarts,
    /// The lease that this replica asks for, and the last observation under it that was
    /// applied or that it reported.
    name: Option<TipName>,
    seen: Option<u64>,
    /// When the request was sent whose answer confirmed the tip last.
    answered: Moment,
    /// Whether the engine has answered the last call.
    is_answered: bool,
    /// Probes go by tokio's clock, as all timers do.
    began: Instant,
}

impl FollowedTip {
    fn now(&self) -> Moment {
        Moment::default() + LONG_AGO + self.began.elapsed()
    }

    /// The same moment by the clock of the schedule.
    fn schedule_time(&self, moment: Moment) -> Moment {
        self.now().before(self.fill.clock.now().since(moment))
    }

    /// Asks the engine, and probes if it is time. Returns how long to wait then.
    async fn round(&mut self) -> Duration {
        let (role, call) = self.ask().await;
        self.hear_answers();
        match self.schedule.next(role, self.now()) {
            ProbeStep::Wait(wait) => wait,
            ProbeStep::Probe => {
                self.probe(call.as_ref()).await;
                Duration::ZERO
            }
        }
    }

    /// Waits for the next round, which is sooner if a probe is requested. The engine is
    /// asked at most ten times a second, however many answers suggest a new tip.
    async fn wait(&mut self, wait: Duration) {
        let asked = Instant::now();
        let mut until = asked + wait;
        loop {
            tokio::select! {
                biased;
                () = self.fill.chain.probe_requested(self.tip) => {
                    let now = self.now();
                    self.schedule.request(now);
                    until = until.min(asked + SHORTEST_ROUND);
                }
                () = sleep_until(until) => return,
            }
        }
    }

    /// Asks who probes, and applies what was found last.
    async fn ask(&mut self) -> (ProbeRole, Option<CallTime>) {
        let (endpoint, name) = self.endpoint();
        if self.name.as_ref() != Some(&name) {
            if let Some(before) = self.name.replace(name.clone()) {
                self.leases.leave(&before).await;
            }
            self.seen = None;
        }
        let before = self.fill.clock.now();
        if let Some(start) = self.fill.chain.request_start(self.tip) {
            self.starts.note(before, start);
        }
        let news = self.leases.ask(&name, self.schedule.claims()).await;
        let prober = news.as_ref().ok().map(|news| news.prober);
        self.leases.note_prober(&self.source.name, prober);
        // Each time: another tip of the upstream may have set what it knew a moment before.
        let (fill, upstream) = (&self.fill, self.source.upstream);
        reserve_budget(fill, upstream, &self.tips, Some(&self.leases));
        let news = match news {
            Ok(news) => news,
            Err(error) => {
                if std::mem::take(&mut self.is_answered) {
                    let tip = &*self.source.name;
                    tracing::warn!(tip, %error, "the engine cannot be asked who probes this tip: this replica probes it for itself");
                }
                return (ProbeRole::Prober, None);
            }
        };
        if !std::mem::replace(&mut self.is_answered, true) {
            let tip = &*self.source.name;
            tracing::info!(tip, "the engine can be asked again who probes this tip");
        }
        if let Some(observation) = news.observation
            && self.seen != Some(observation.id)
        {
            self.follow(endpoint, &observation, before).await;
        }
        let holds = self.leases.holds(&name, self.fill.clock.now());
        let role = match news.prober {
            TipProber::Own if holds => ProbeRole::Prober,
            TipProber::Free => ProbeRole::Prober,
            TipProber::Own | TipProber::Other => ProbeRole::Follower,
        };
        (role, Some(news.call))
    }

    /// The endpoint that requests go to now, and the name of the lease for it.
    fn endpoint(&self) -> (u16, TipName) {
        let upstream = self.fill.upstreams.get(self.source.upstream);
        let (endpoint, url) = upstream.selected_endpoint();
        let member = &self.source.height;
        let name = TipName::new(self.leases.prefix(), &url.to_string(), &self.path, member);
        (endpoint, name)
    }

    /// Applies what another replica has found, which the engine returned to a call made at
    /// `before`.
    async fn follow(&mut self, endpoint: u16, observation: &TipObservation, before: Moment) {
        let sent = before.before(observation.age);
        let Some(start) = self.starts.before(sent) else {
            // It is from before this process began to follow. The next one is not.
            return;
        };
        self.seen = Some(observation.id);
        let (chain, tag) = (&self.fill.chain, observation.tag.as_deref());
        if chain.is_overtaken(self.tip, start, observation.height, tag) {
            // An answer has shown something else since. The next status decides.
            chain.request_probe(self.tip);
            return;
        }
        let upstream = self.fill.upstreams.get(self.source.upstream);
        if !upstream.record_followed_height(endpoint, &self.path, observation.height) {
            return;
        }
        let status = ReportedStatus {
            start,
            sent,
            endpoint,
            height: Some(observation.height),
            tag: observation.tag.clone(),
        };
        let outcome = apply(&self.fill, self.tip, &status, false).await;
        if outcome == ProbeOutcome::Learned {
            self.schedule.confirm(self.schedule_time(sent), self.now());
            self.leases.note_followed(&self.source.name);
            search_fork_point(&self.fill, self.tip);
        }
    }

    /// Answers with the tip's hash are as good as probes. (With a manual clock, the time
    /// until the next probe does not pass.)
    fn hear_answers(&mut self) {
        let clock = self.fill.clock.now();
        let until_due = self.fill.chain.until_next_probe(self.tip, clock);
        let sent = (clock + until_due).before(self.source.every);
        if !until_due.is_zero() && until_due < self.source.every && sent != self.answered {
            self.answered = sent;
            self.schedule.confirm(self.schedule_time(sent), self.now());
        }
    }

    /// Sends a probe, and renews the lease until it is answered.
    async fn send(&self, name: &TipName) -> (ProbeOutcome, Option<ReportedStatus>) {
        let mut sent = pin!(send(&self.fill, self.tip));
        loop {
            tokio::select! {
                biased;
                sent = &mut sent => return sent,
                () = sleep(LONGEST_ROUND) => {}
            }
            if self.leases.holds(name, self.fill.clock.now()) {
                // Without an answer, it ends.
                let _renewed = self.leases.ask(name, true).await;
            }
        }
    }

    /// Sends a probe, and reports what it finds. `call` is the engine's answer before it, if
    /// there was one.
    async fn probe(&mut self, call: Option<&CallTime>) {
        let sent = self.now();
        let Some(name) = self.name.clone() else {
            return;
        };
        let (outcome, status) = self.send(&name).await;
        self.schedule.probed(sent, outcome);
        if outcome != ProbeOutcome::Learned {
            // It may work elsewhere.
            self.leases.leave(&name).await;
            return;
        }
        self.schedule.confirm(sent, self.now());
        search_fork_point(&self.fill, self.tip);
        let (Some(call), Some(status)) = (call, status) else {
            return;
        };
        let is_of_lease = self.endpoint() == (status.endpoint, name.clone());
        if let (true, Some(height)) = (is_of_lease, status.height) {
            self.seen = Some(call.id());
            // Without an answer, the others probe for themselves.
            let tag = status.tag.as_deref();
            let _known = self.leases.report(&name, call, height, tag).await;
        }
    }
}

/// Moments before the beginning can be named.
const LONG_AGO: Duration = Duration::from_secs(3650 * 86_400);
