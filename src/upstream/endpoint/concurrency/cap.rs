//! The limit if the server rejects requests: it has a cap on connections or requests, or,
//! if a lower limit does not help, fails for another reason.

use std::time::Duration;

use super::Concurrency;
use crate::clock::Moment;

/// A rejection after this many responses, and this many times the limit, does not show a
/// cap.
const ALONE: u64 = 20;
const ALONE_ROUNDS: u64 = 2;
/// How long the limit stays at a cap, at first and at most.
const HOLD: Duration = Duration::from_millis(500);
const MOST_HOLD: Duration = Duration::from_secs(16);
/// A cap that is not met again is forgotten after twice that and this time.
const GONE: Duration = Duration::from_secs(5);
/// This many rejections in a row, each of a request sent after the limit had fallen for
/// the one before and not risen since, show that a lower limit does not help.
const IN_VAIN: u32 = 4;
/// Then rejections are failures like others for this time,
const NO_CAP: Duration = Duration::from_mins(1);
/// unless this many accumulate,
const CAP_FAILURES: u64 = 6;
/// where this many responses cancel one.
const CAP_ANSWERS: u64 = 2;

/// The server's cap, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cap {
    /// When the limit last fell for it; requests sent before met a higher limit.
    fell: Moment,
    /// How long the limit stays then.
    hold: Duration,
    /// The next rise.
    step: f64,
    /// The limit before the last rise, which the server has accepted for as long as it
    /// stayed there.
    held: f64,
    /// The limit before the cap was met.
    before: f64,
    /// Rejections in a row although the limit had fallen.
    in_vain: u32,
}

/// The period in which rejections are not taken for a cap, because they do not depend on
/// the requests in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoCap {
    until: Moment,
    /// Rejections since then, less those that responses have cancelled.
    failures: u64,
}

impl Concurrency {
    /// Takes in that a request sent at this time was rejected while the server answered
    /// others, of which `others` hold a slot. Returns whether the limit deals with it: it
    /// has fallen, or need not fall. If it cannot fall, the server fails for another reason.
    pub(in crate::upstream::endpoint) fn rejected(
        &mut self,
        others: u32,
        sent: Moment,
        now: Moment,
    ) -> bool {
        let answers = std::mem::take(&mut self.answers);
        if self.is_fixed() || self.has_no_cap(answers, now) {
            return false;
        }
        let met_another = self.cap.is_some_and(|cap| sent <= cap.fell);
        if !met_another && answers > 0 && self.is_in_vain(now) {
            return false;
        }
        // Slots of requests that have just been answered may be free for a moment.
        let held = match self.cap {
            Some(cap) if met_another || cap.step > 1.0 => cap.held,
            _ => 0.0,
        };
        if self.limit() == 1 && !met_another {
            return false;
        }
        let limit = self.limit.min(f64::from(others.max(1)).max(held));
        let alone = ALONE.max(u64::from(self.limit()) * ALONE_ROUNDS);
        if answers >= alone || (met_another && limit >= self.limit) {
            return true;
        }
        let hold = match self.cap {
            None => HOLD,
            Some(cap) if met_another => cap.hold,
            Some(cap) => (cap.hold * 2).min(MOST_HOLD),
        };
        self.cap = Some(Cap {
            fell: now,
            hold,
            step: 1.0,
            held,
            before: self.cap.map_or(self.limit, |cap| cap.before),
            in_vain: self.cap.map_or(0, |cap| cap.in_vain),
        });
        self.cut = None;
        self.set(limit, now);
        true
    }

    /// Whether a rejection after this many responses is a failure like others, because
    /// lower limits have not helped.
    fn has_no_cap(&mut self, answers: u64, now: Moment) -> bool {
        let Some(no_cap) = &mut self.no_cap else {
            return false;
        };
        no_cap.failures = no_cap.failures.saturating_sub(answers / CAP_ANSWERS) + 1;
        if now >= no_cap.until || no_cap.failures >= CAP_FAILURES {
            self.no_cap = None;
        }
        self.no_cap.is_some()
    }

    /// Takes in a rejection of a request sent after the limit had fallen. Returns whether
    /// that has happened too often: then the limit is restored.
    fn is_in_vain(&mut self, now: Moment) -> bool {
        let Some(cap) = &mut self.cap else {
            return false;
        };
        match cap.step > 1.0 {
            true => cap.in_vain = 0,
            false => cap.in_vain += 1,
        }
        if cap.in_vain < IN_VAIN {
            return false;
        }
        let before = cap.before;
        self.cap = None;
        self.no_cap = Some(NoCap {
            until: now + NO_CAP,
            failures: 0,
        });
        self.change(before, now);
        true
    }

    /// Takes in that a request waits because of the limit. If the limit has stayed at a
    /// cap for long enough, it rises by one: the responses in flight may never end.
    pub(in crate::upstream::endpoint) fn wanted(&mut self, now: Moment) {
        if self.cap.is_some_and(|cap| cap.step <= 1.0) {
            self.rise_towards_cap(now);
        }
    }

    /// Raises the limit if it has stayed at a cap for long enough; returns whether it
    /// has.
    pub(super) fn rise_towards_cap(&mut self, now: Moment) -> bool {
        let Some(cap) = &mut self.cap else {
            return false;
        };
        if now.since(cap.fell) < cap.hold {
            return false;
        }
        if self.limit >= cap.before {
            if now.since(cap.fell) >= cap.hold * 2 + GONE {
                self.cap = None;
            }
            return false;
        }
        if cap.step <= 1.0 {
            cap.held = self.limit;
        }
        let limit = (self.limit + cap.step).min(cap.before);
        cap.step *= 2.0;
        self.set(limit, now);
        true
    }
}
