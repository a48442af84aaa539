//! The pace of requests to an endpoint that answers 503 beyond a number of requests per
//! second, as nginx's `limit_req` does. Pure: `now` is an argument.
//!
//! Fewer requests in flight do not help there: they only follow each other sooner. If a
//! quarter of recent requests get 503 while others are answered, and the limit of
//! requests in flight (`concurrency`) does not deal with them, requests are spaced at
//! four fifths of the rate of the answers. The next outcomes show whether that helps: if
//! hardly any is rejected, the pace stays. If not, half of it is tried, twice. If
//! that does not help either, the rejections do not depend on the rate: for a minute, and
//! the next time for two, and so on, they are failures like others.
//!
//! A pace that has helped rises while requests wait for it: at first quickly, and after
//! the first rejection by a twentieth in a second at most. With each rejection it falls
//! by a fifth. It is forgotten when no request has waited for it for a minute.
//!
//! Invariants: without an answer within the last second or two no rejection is taken for
//! one beyond a rate, so that the breaker of a server that is down opens; a pace is
//! never slower than one request in five seconds; memory is constant.
//!
//! Deliberately absent: the queue in which requests wait for their time; the budget,
//! which the provider states (`admission`).

use std::time::Duration;

use crate::clock::Moment;

/// Recent outcomes are counted for this many parts of this length.
const PARTS: u64 = 10;
const PART: Duration = Duration::from_millis(200);
/// Fewer recent outcomes show no rate.
const LEAST_OUTCOMES: u32 = 8;
/// Nor do fewer answers.
const LEAST_ANSWERS: u32 = 4;
/// Nor do rejections of less than one in this many.
const LEAST_SHARE: u32 = 4;
/// The first pace, as a share of the rate of the answers before; it falls to this share
/// with each rejection.
const CUT: f64 = 0.8;
/// The share of a pace that does not help which is tried next.
const NEXT: f64 = 0.5;
/// By how much the pace, in requests per second, rises with each answer at most,
const RISE: f64 = 0.05;
/// and by which share of itself: few answers show little.
const RISE_SHARE: f64 = 0.01;
/// So many times faster it rises before the first rejection.
const QUICKLY: f64 = 10.0;
/// The slowest pace, in requests per second,
const SLOWEST: f64 = 0.2;
/// and the slowest that is tried: it would take too long to see whether it helps.
const SLOWEST_TRIED: f64 = 1.0;
/// The number of outcomes by which a pace is judged.
const ROUND: u32 = 24;
/// It does not help if so many of them are rejections: of a quarter, fewer would hardly
/// come by chance.
const TOO_MANY: u32 = 2;
/// A pace that has helped rises until requests are rejected, about one in a round.
const STILL_TOO_MANY: u32 = 3;
/// This many rounds in a row in which it does not help end it.
const IN_VAIN: u32 = 3;
/// For this time no other pace is tried then, and each time for twice as long,
const NO_PACE: Duration = Duration::from_mins(1);
/// but no longer than this.
const MOST_NO_PACE: Duration = Duration::from_mins(16);
/// The rate of the answers is measured over at least this time.
const LEAST_MEASURED: Duration = Duration::from_secs(1);
/// A pace for which no request has waited for this time is forgotten.
const UNUSED: Duration = Duration::from_mins(1);
/// It rises only if one has waited within this time.
const USED: Duration = Duration::from_secs(5);
/// How long ago an answer shows that others succeed, at least.
const RECENT: Duration = Duration::from_secs(1);

/// The pace of requests to an endpoint, if it needs one.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacing {
    /// For each part its number, answers and rejections.
    recent: [(u64, u32, u32); PARTS as usize],
    answered: Option<Moment>,
    pace: Option<Pace>,
    /// No pace is tried before.
    vain_until: Moment,
    /// How long that was the last time, if no pace has helped since.
    vain_for: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Pace {
    /// In requests per second.
    rate: f64,
    /// When the next request may be sent.
    next: Moment,
    /// When it last fell; outcomes of requests sent before do not count.
    fell: Moment,
    /// When a request last had to wait for it.
    used: Moment,
    /// Outcomes in this round, and the rejections among them.
    outcomes: u32,
    rejected: u32,
    /// Rounds in a row in which it did not help.
    in_vain: u32,
    /// Whether it has helped.
    is_confirmed: bool,
    /// Whether it has fallen since.
    has_fallen: bool,
}

impl Pacing {
    /// Takes a time to send a request now.
    ///
    /// # Errors
    /// The time until one may be sent.
    pub(super) fn take(&mut self, now: Moment) -> Result<(), Duration> {
        let Some(pace) = &mut self.pace else {
            return Ok(());
        };
        if pace.next > now {
            pace.used = now;
            return Err(pace.next.since(now));
        }
        if now.since(pace.used) >= UNUSED {
            self.pace = None;
            return Ok(());
        }
        pace.next = now + pace.interval();
        Ok(())
    }

    /// Takes the next time, for a request that does not wait.
    pub(super) fn take_early(&mut self, now: Moment) {
        if let Some(pace) = &mut self.pace {
            pace.next = pace.next.max(now) + pace.interval();
        }
    }

    /// Gives back the time of a request that was not sent.
    pub(super) fn give_back(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.next = pace.next.before(pace.interval());
        }
    }

    /// Whether requests are spaced, and at how many per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.pace.map(|pace| pace.rate)
    }

    /// Takes in that a request sent at this time was answered.
    pub(super) fn answered(&mut self, sent: Moment, now: Moment) {
        self.count(false, now);
        self.answered = Some(now);
        let Some(pace) = self.pace.as_mut().filter(|pace| sent >= pace.fell) else {
            return;
        };
        if pace.is_confirmed && now.since(pace.used) < USED {
            let quickly = if pace.has_fallen { 1.0 } else { QUICKLY };
            pace.rate += RISE.min(pace.rate * RISE_SHARE) * quickly;
        }
        self.judge(false, now);
    }

    /// Takes in that a request sent at this time got 503. Returns whether that is
    /// because of the rate, which deals with it.
    pub(super) fn rejected(&mut self, sent: Moment, now: Moment) -> bool {
        self.count(true, now);
        let Some(pace) = self.pace else {
            return false;
        };
        let recent = RECENT.max(pace.interval() * 3);
        if self.answered.is_none_or(|at| now.since(at) > recent) {
            return false;
        }
        if sent >= pace.fell {
            self.judge(true, now);
        }
        self.pace.is_some()
    }

    /// Forgets recent outcomes, and what is concluded from them: the server was down, or
    /// the breaker has held back requests.
    pub(super) fn restart(&mut self) {
        self.recent = Default::default();
        self.pace = self.pace.filter(|pace| pace.is_confirmed);
        self.vain_until = Moment::default();
    }

    /// Begins to space requests, after a 503 that nothing else explains, or will once the
    /// rate of the answers is known. Returns whether it does either.
    pub(super) fn begin(&mut self, now: Moment) -> bool {
        let (answered, rejected) = self.sums(now);
        let all = answered + rejected;
        if self.pace.is_some()
            || now < self.vain_until
            || self.answered.is_none_or(|at| now.since(at) > RECENT)
            || all < LEAST_OUTCOMES
            || rejected.saturating_mul(LEAST_SHARE) < all
        {
            return false;
        }
        let measured = self.measured(now);
        if measured < LEAST_MEASURED {
            return true;
        }
        if answered < LEAST_ANSWERS {
            return false;
        }
        let rate = f64::from(answered) / measured.as_secs_f64();
        let mut pace = Pace {
            rate: (rate * CUT).max(SLOWEST_TRIED),
            next: now,
            fell: now,
            used: now,
            outcomes: 0,
            rejected: 0,
            in_vain: 0,
            is_confirmed: false,
            has_fallen: false,
        };
        pace.next = now + pace.interval();
        self.pace = Some(pace);
        true
    }

    /// Judges the pace by another outcome.
    fn judge(&mut self, rejected: bool, now: Moment) {
        let Some(pace) = &mut self.pace else {
            return;
        };
        pace.outcomes += 1;
        pace.rejected += u32::from(rejected);
        let too_many = match pace.is_confirmed {
            true => STILL_TOO_MANY,
            false => TOO_MANY,
        };
        let fails = pace.rejected >= too_many;
        if rejected && pace.is_confirmed {
            pace.has_fallen = true;
            pace.lower(CUT, SLOWEST, now);
        }
        if !fails && pace.outcomes < ROUND {
            return;
        }
        (pace.outcomes, pace.rejected) = (0, 0);
        if !fails {
            (pace.in_vain, pace.is_confirmed) = (0, true);
            self.vain_for = Duration::ZERO;
            return;
        }
        pace.in_vain += 1;
        if pace.in_vain >= IN_VAIN {
            self.pace = None;
            self.vain_for = (self.vain_for * 2).clamp(NO_PACE, MOST_NO_PACE);
            self.vain_until = now + self.vain_for;
        } else if !pace.is_confirmed {
            pace.lower(NEXT, SLOWEST_TRIED, now);
        }
    }

    fn count(&mut self, rejected: bool, now: Moment) {
        let part = part(now);
        let cell = &mut self.recent[(part % PARTS) as usize];
        if cell.0 != part {
            *cell = (part, 0, 0);
        }
        let count = if rejected { &mut cell.2 } else { &mut cell.1 };
        *count = count.saturating_add(1);
    }

    /// The time in which the recent outcomes were counted.
    fn measured(&self, now: Moment) -> Duration {
        let last = part(now);
        let recent = self.recent.iter().filter(|cell| cell.0 + PARTS > last);
        let first = recent.map(|cell| cell.0).min().unwrap_or(last);
        let parts = u32::try_from(last - first).unwrap_or(u32::MAX);
        PART.saturating_mul(parts)
    }

    /// Recent answers and rejections.
    fn sums(&self, now: Moment) -> (u32, u32) {
        let part = part(now);
        let recent = self.recent.iter().filter(|cell| cell.0 + PARTS > part);
        recent.fold((0_u32, 0_u32), |(answered, rejected), cell| {
            (
                answered.saturating_add(cell.1),
                rejected.saturating_add(cell.2),
            )
        })
    }
}

impl Pace {
    fn interval(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.rate)
    }

    fn lower(&mut self, share: f64, slowest: f64, now: Moment) {
        self.rate = (self.rate * share).max(slowest);
        self.fell = now;
        self.next = self.next.max(now + self.interval());
    }
}

fn part(now: Moment) -> u64 {
    now.nanos() / u64::try_from(PART.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
