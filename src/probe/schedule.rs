//! When a replica probes a tip that others probe as well. Pure: `now` is an argument.
//!
//! Whoever holds the lease probes at the tip's pace. The others follow its observations:
//! they probe if none comes for half a pace longer than usual, and if a new tip is suspected
//! and no observation shows it soon. All of them report what they find, and wait for a time
//! of their own: so the first one probes for all. Without an engine, each probes at the
//! tip's pace.

use std::time::Duration;

use super::{ProbeOutcome, SOONEST, failures_after, pause, soonest};
use crate::clock::Moment;

/// The longest time from one call to the engine to the next: so much later than the
/// holder, all know of a new tip.
pub(super) const LONGEST_ROUND: Duration = Duration::from_millis(500);
/// The shortest, while a probe is requested.
pub(super) const SHORTEST_ROUND: Duration = Duration::from_millis(100);

/// How a replica stands to the lease of a tip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeRole {
    /// It probes for itself: it holds the lease, nobody does, or the engine does not
    /// answer.
    Prober,
    /// Another replica holds the lease.
    Follower,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// Send a probe.
    Probe,
    /// Ask the engine again after this time, or sooner when a probe is requested.
    Wait(Duration),
}

/// When the next probe of one tip is due.
#[derive(Debug)]
pub(super) struct ProbeSchedule {
    every: Duration,
    /// From 0 to 1: which of the followers is first.
    rank: f64,
    /// When this replica sent its last probe, whether that has failed, and how many in a
    /// row have.
    attempted: Option<Moment>,
    has_failed: bool,
    failures: u32,
    /// When the request was sent whose answer confirmed the tip last, at the earliest.
    confirmed: Option<Moment>,
    /// When the last observation or answer came that confirmed it.
    arrived: Option<Moment>,
    /// When a probe was first requested that has not been sent, and when last.
    requested: Option<[Moment; 2]>,
    /// How many requested probes were sent in a row.
    early: u32,
}

impl ProbeSchedule {
    /// Nothing is known of the tip. `rank` is random, from 0 to 1.
    pub(super) fn new(every: Duration, rank: f64) -> Self {
        Self {
            every,
            rank: rank.clamp(0.0, 1.0),
            attempted: None,
            has_failed: false,
            failures: 0,
            confirmed: None,
            arrived: None,
            requested: None,
            early: 0,
        }
    }

    /// Whether this replica would hold the lease: not while its own probes fail, which
    /// may work elsewhere.
    pub(super) const fn claims(&self) -> bool {
        !self.has_failed
    }

    /// A new tip is suspected.
    pub(super) fn request(&mut self, now: Moment) {
        let [_, last] = self.requested.get_or_insert([now, now]);
        *last = now;
    }

    /// The answer to a request confirmed the tip, which was sent at this moment or later.
    pub(super) fn confirm(&mut self, sent: Moment, now: Moment) {
        if self.confirmed.is_some_and(|confirmed| sent <= confirmed) {
            return;
        }
        self.confirmed = Some(sent);
        self.arrived = Some(now);
        self.fulfil(sent);
        let is_long_ago = |at: Moment| now.since(at) >= self.every;
        if self.requested.is_none() && self.attempted.is_none_or(is_long_ago) {
            self.early = 0;
        }
    }

    /// A probe was sent at this moment, and has ended.
    pub(super) fn probed(&mut self, sent: Moment, outcome: ProbeOutcome) {
        self.attempted = Some(sent);
        self.has_failed = outcome != ProbeOutcome::Learned;
        self.failures = failures_after(self.failures, outcome);
        self.fulfil(sent);
    }

    /// The tip is known that was there at this moment.
    fn fulfil(&mut self, sent: Moment) {
        self.requested = match self.requested {
            Some([_, last]) if last <= sent => None,
            Some([first, last]) if first <= sent => Some([last, last]),
            requested => requested,
        };
    }

    /// What to do now.
    pub(super) fn next(&mut self, role: ProbeRole, now: Moment) -> ProbeStep {
        let usual = self.usual(role);
        let requested = self.requested.map(|[first, _]| self.early(role, first));
        if requested.is_some_and(|due| due <= now) {
            self.early = self.early.saturating_add(1);
            return ProbeStep::Probe;
        }
        if usual <= now {
            self.early = 0;
            return ProbeStep::Probe;
        }
        let due = requested.map_or(usual, |due| due.min(usual));
        let round = match self.requested {
            Some(_) => SHORTEST_ROUND,
            None => self.round(),
        };
        ProbeStep::Wait(due.since(now).min(round))
    }

    /// When a probe is due that nobody has requested.
    fn usual(&self, role: ProbeRole) -> Moment {
        let patience = match role {
            ProbeRole::Prober => Duration::ZERO,
            ProbeRole::Follower => self.every / 2 + self.every.mul_f64(self.rank / 4.0),
        };
        let after = |moment: Option<Moment>, time| moment.map_or(Moment::default(), |at| at + time);
        let own = after(self.attempted, pause(self.failures, self.every));
        own.max(after(self.confirmed, self.every + patience))
    }

    /// When a probe is due that was requested at this moment.
    fn early(&self, role: ProbeRole, requested: Moment) -> Moment {
        let last = self.attempted.max(self.arrived).unwrap_or_default();
        let own = last + soonest(self.early, self.every);
        match role {
            ProbeRole::Prober => own,
            ProbeRole::Follower => own.max(requested + SOONEST + SOONEST.mul_f64(self.rank)),
        }
    }

    /// The time from one call to the engine to the next.
    fn round(&self) -> Duration {
        (self.every / 2).min(LONGEST_ROUND).max(SHORTEST_ROUND)
    }
}

#[cfg(test)]
mod tests {
    use ProbeOutcome::{Failed, Learned, NotSent};
    use ProbeRole::{Follower, Prober};
    use ProbeStep::{Probe, Wait};

    use super::*;

    const EVERY: Duration = Duration::from_secs(4);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    fn wait(millis: u64) -> ProbeStep {
        Wait(Duration::from_millis(millis))
    }

    fn schedule() -> ProbeSchedule {
        ProbeSchedule::new(EVERY, 0.5)
    }

    #[test]
    fn a_prober_probes_at_the_pace_and_a_follower_when_nothing_is_heard() {
        let mut schedule = schedule();
        for role in [Prober, Follower] {
            assert_eq!(schedule.next(role, at(0)), Probe, "nothing is known");
        }
        schedule.probed(at(0), Learned);
        schedule.confirm(at(0), at(100));
        for (role, now, expected) in [
            (Prober, 100, wait(500)),
            (Prober, 3_900, wait(100)),
            (Prober, 4_000, Probe),
            // Half a pace later, and an eighth by its rank.
            (Follower, 4_000, wait(500)),
            (Follower, 6_499, wait(1)),
            (Follower, 6_500, Probe),
        ] {
            assert_eq!(schedule.next(role, at(now)), expected, "{role:?} {now}");
        }
        schedule.confirm(at(4_100), at(4_300));
        assert_eq!(schedule.next(Prober, at(8_099)), wait(1));
        assert_eq!(schedule.next(Follower, at(10_599)), wait(1));
        assert_eq!(schedule.next(Follower, at(10_600)), Probe);
        // An older observation changes nothing.
        schedule.confirm(at(3_000), at(10_600));
        assert_eq!(schedule.next(Follower, at(10_600)), Probe);
    }

    #[test]
    fn failed_probes_become_rarer_and_the_lease_is_left_to_others() {
        let mut schedule = schedule();
        schedule.probed(at(0), Failed);
        assert!(!schedule.claims());
        assert_eq!(schedule.next(Prober, at(3_999)), wait(1));
        schedule.probed(at(4_000), Failed);
        assert_eq!(schedule.next(Prober, at(11_999)), wait(1));
        assert_eq!(schedule.next(Prober, at(12_000)), Probe);
        schedule.probed(at(12_000), Learned);
        assert!(schedule.claims());
        assert_eq!(schedule.next(Prober, at(15_999)), wait(1));
        // One that was not sent is no sign of trouble with the indexer.
        schedule.probed(at(16_000), NotSent);
        assert!(!schedule.claims());
        assert_eq!(schedule.next(Prober, at(19_999)), wait(1));
        assert_eq!(schedule.next(Prober, at(20_000)), Probe);
    }

    #[test]
    fn a_requested_probe_is_sent_if_no_observation_comes_soon() {
        let begin = |requested| {
            let mut schedule = schedule();
            schedule.probed(at(0), Learned);
            schedule.confirm(at(0), at(0));
            schedule.request(at(requested));
            schedule
        };
        // The prober waits for a quarter of a second after its last one.
        let mut own = begin(100);
        assert_eq!(own.next(Prober, at(100)), wait(100));
        assert_eq!(own.next(Prober, at(249)), wait(1));
        assert_eq!(own.next(Prober, at(250)), Probe);
        // A follower, for that and its rank after the request.
        let mut other = begin(1_000);
        assert_eq!(other.next(Prober, at(1_000)), Probe);
        let mut other_again = begin(1_000);
        assert_eq!(other_again.next(Follower, at(1_000)), wait(100));
        assert_eq!(other_again.next(Follower, at(1_374)), wait(1));
        assert_eq!(other_again.next(Follower, at(1_375)), Probe);
        // An observation from before the request says nothing, a later one all.
        let mut followed = begin(1_000);
        followed.confirm(at(999), at(1_200));
        assert_eq!(followed.next(Follower, at(1_450)), Probe);
        let mut followed = begin(1_000);
        followed.confirm(at(1_000), at(1_200));
        assert_eq!(followed.next(Follower, at(1_450)), wait(500));
        // One that comes between two requests is not late enough for the second.
        let mut followed = begin(1_000);
        followed.request(at(1_300));
        followed.confirm(at(1_100), at(1_200));
        assert_eq!(followed.next(Follower, at(1_400)), wait(100));
        assert_eq!(followed.next(Follower, at(1_675)), Probe);
        other.probed(at(1_000), Learned);
        assert_eq!(other.next(Prober, at(1_001)), wait(500), "once");
    }

    #[test]
    fn requested_probes_become_rarer() {
        let mut schedule = schedule();
        let (mut now, mut pauses) = (0, Vec::new());
        schedule.probed(at(0), Learned);
        schedule.confirm(at(0), at(0));
        for _ in 0..6 {
            schedule.request(at(now));
            let begun = now;
            while schedule.next(Prober, at(now)) != Probe {
                now += 10;
            }
            pauses.push(now - begun);
            schedule.probed(at(now), Learned);
            schedule.confirm(at(now), at(now));
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 4000]);
    }

    /// While the holder is silent, the first follower probes for all.
    #[test]
    fn followers_wait_for_each_other() {
        let schedules = [0.0, 0.3, 0.9].map(|rank| ProbeSchedule::new(EVERY, rank));
        let due = schedules.map(|mut schedule| {
            schedule.confirm(at(0), at(0));
            let mut now = 0;
            while schedule.next(Follower, at(now)) != Probe {
                now += 1;
            }
            now
        });
        assert_eq!(due, [6_000, 6_300, 6_900]);
        assert!(
            due.iter()
                .all(|due| Duration::from_millis(*due) < EVERY * 2)
        );
    }
}
