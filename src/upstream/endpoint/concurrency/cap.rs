//! The limit of requests under way where the server turns requests away: it takes so
//! many connections or requests at once and no more, or, where a lower limit does not
//! help, fails for another reason.

use std::time::Duration;

use super::Concurrency;
use crate::clock::Moment;

/// One that is turned away after so many answers is none of a cap, nor after so
/// many times the limit.
const ALONE: u64 = 20;
const ALONE_ROUNDS: u64 = 2;
/// How long the limit stays where a cap has put it, at first and at the most.
const HOLD: Duration = Duration::from_millis(500);
const MOST_HOLD: Duration = Duration::from_secs(16);
/// So long after twice that a cap is forgotten which was not met again.
const GONE: Duration = Duration::from_secs(5);
/// So many that are turned away in a row, each of which was sent after the limit
/// had fallen for the one before and not risen since, show that a lower limit does
/// not help.
const IN_VAIN: u32 = 4;
/// How long those that are turned away are failures like others then,
const NO_CAP: Duration = Duration::from_mins(1);
/// unless there are so many of them together,
const CAP_FAILURES: u64 = 6;
/// of which each so many answers make up for one.
const CAP_ANSWERS: u64 = 2;

/// That the server takes no more than so many, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cap {
    /// When the limit last fell for it: what was sent before met another limit.
    fell: Moment,
    /// How long the limit then stays.
    hold: Duration,
    /// By how much it rises next.
    step: f64,
    /// The limit from which it rose last: the server has taken so many for as long
    /// as the limit stayed there.
    held: f64,
    /// Where it was before.
    before: f64,
    /// How many were turned away in a row for all that the limit had fallen.
    in_vain: u32,
}

/// That requests are turned away however few are under way: the server takes some
/// and not others for a reason of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoCap {
    until: Moment,
    /// Those that were turned away since, less those that answers make up for.
    failures: u64,
}

impl Concurrency {
    /// A request that was sent at that moment was turned away while the server
    /// answered others; of those, so many are under way that hold a place.
    /// Answers whether the limit is the remedy: it has fallen, or need not. Where
    /// it cannot fall, something else is wrong with the server.
    pub fn turned_away(&mut self, others: u32, sent: Moment, now: Moment) -> bool {
        let answers = std::mem::take(&mut self.answers);
        if self.is_fixed() || self.has_no_cap(answers, now) {
            return false;
        }
        let met_another = self.cap.is_some_and(|cap| sent <= cap.fell);
        if !met_another && answers > 0 && self.is_in_vain(now) {
            return false;
        }
        // Others may just have been answered, whose places are not taken again yet.
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

    /// Whether one that is turned away after so many answers is a failure like
    /// others, since lower limits have not helped.
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

    /// One was turned away that was sent after the limit had fallen, while the
    /// server answered others. Answers whether that was in vain too often: then
    /// the limit is back where it was.
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

    /// One more request could go but for the limit. Where a cap has put it there,
    /// and it has stayed for long enough, it rises by one: those under way may
    /// have answers that never end.
    pub fn wanted(&mut self, now: Moment) {
        if self.cap.is_some_and(|cap| cap.step <= 1.0) {
            self.rise_towards_cap(now);
        }
    }

    /// Rises where a cap has put it, if it has stayed there for long enough;
    /// answers whether it has.
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
