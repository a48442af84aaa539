//! The allowance of one process for one key: how much of the budget that all replicas
//! share it may use. Pure: `now` is an argument, and no message is sent here.
//!
//! The allowance is a floor, which needs nobody, and a grant from the pool (the budget
//! less all floors), which the engine keeps account of in one row for each process. The
//! process enforces its allowance with the same exact windows as a budget of its own.
//! So it suffices that at every instant the requests that all processes count are at
//! most the budget. No two clocks are compared.
//!
//! Why no window has more requests than the budget. Let a process *hold* its grant
//! while its lease lasts, and the requests that it counts beyond its floor:
//!
//! 1. A row is never less than its process holds. An allowance is raised after the row
//!    and lowered before it, a report is never less than what the windows count, and
//!    an old report changes nothing.
//! 2. A lease ends `LEASE` after the *send* of the last report that was answered by an
//!    engine with a majority of its copies. After that the process holds only what it
//!    counts, and nothing once its requests have ended and left the window. All this is
//!    over within Q. A row is removed only if it has not changed for Q.
//! 3. The engine grants only what no row and no floor takes. It raises an allowance
//!    only for a process that has followed this generation of rows for Q, with a
//!    majority at each reply and no longer silence than `GAP`. Two engines never have a
//!    majority at once, except for the few seconds that an engine needs to notice that
//!    its copies have gone (`MARGIN`). So no other engine, and no earlier generation,
//!    has extended a lease within that time, unless a row of this generation says so.
//! 4. The floors need no engine: at most the configured number of processes run at
//!    once, and a new one sends nothing before it knows what its predecessor's requests
//!    count, or they count no more.
//!
//! `proof` simulates this with the failures that are expected, and shows for each
//! [`rules::Rule`] that the budget is exceeded without it.
//!
//! `now` must be read from a clock that runs while the machine is suspended
//! (`Clock::since_boot`). Otherwise a lease would survive the suspension.
//!
//! Not covered: more processes than configured, of which the engine does not see all;
//! an engine that loses its rows while most of its copies follow another primary; and
//! an upstream that receives a request later than Q after it was sent.

pub mod report;
pub mod rules;
mod want;

#[cfg(test)]
mod proof;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use report::{CountedReport, ListedRow, ProcessId, Reply, Report, RequestCounts};
use rules::{Rule, has};
pub use want::Demand;

/// How long a grant lasts after the send of the report that it answers.
pub const LEASE: Duration = Duration::from_secs(3);

/// A process that the engine has not answered for longer than this begins to follow anew.
pub const GAP: Duration = Duration::from_secs(10);

/// What Q adds for an engine that does not notice yet that its copies have gone (3 s),
/// for clocks of different rates, and for the delay of a reply.
pub const MARGIN: Duration = Duration::from_secs(8);

/// How old a permit may be when its request is sent.
pub const PERMIT_AGE: Duration = Duration::from_secs(2);

/// How often a process asks for all rows, and how much more seldom for each row: a list
/// of 1,000 rows takes the engine 8 ms, another report 0.05 ms.
const LIST_EVERY: Duration = Duration::from_secs(5);
const LIST_EVERY_ROW: Duration = Duration::from_millis(50);

/// Q: after this time without a report a process holds nothing. `window` is how long an
/// ended request may count, `longest` how long a request can be in flight.
pub fn silence(window: Duration, longest: Duration) -> Duration {
    let longest = match has(Rule::LongestRequestInQ) {
        true => longest + PERMIT_AGE,
        false => Duration::ZERO,
    };
    LEASE + GAP + window + longest + MARGIN
}

/// What does not change while a process runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The identity of the process.
    pub process: ProcessId,
    /// Its name, for people.
    pub name: Arc<str>,
    /// What it may use without the engine.
    pub floor: RequestCounts,
    /// The budget of the key.
    pub total: RequestCounts,
    /// The floors of all configured replicas.
    pub reserve: RequestCounts,
    /// Q.
    pub silence: Duration,
}

/// The allowance of this process for one key.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    sequence: u64,
    granted: RequestCounts,
    lease_until: Duration,
    pending: Option<Pending>,
    followed: Option<Followed>,
    /// The most copies that the engine has had.
    copies: i64,
    /// What this process wanted in its last report that was counted.
    own_want: RequestCounts,
    last: Option<CountedReport>,
    /// For each row, its last sequence number and since when it is known.
    seen: HashMap<ProcessId, Seen>,
    listed_at: Option<Duration>,
}

/// A report that was not answered yet.
#[derive(Debug)]
struct Pending {
    sequence: u64,
    sent: Duration,
    /// What may be used of the grant: what was asked for, or held in a mere claim.
    usable: RequestCounts,
    want: RequestCounts,
}

/// The generation that the process follows.
#[derive(Debug)]
struct Followed {
    generation: Arc<str>,
    since: Duration,
    /// When the last report was sent that was answered with a majority.
    contact: Duration,
}

#[derive(Debug)]
struct Seen {
    sequence: u64,
    since: Duration,
    stay: Duration,
}

impl Machine {
    /// The allowance of a process that starts now: its floor.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            sequence: 0,
            granted: RequestCounts::ZERO,
            lease_until: Duration::ZERO,
            pending: None,
            followed: None,
            copies: 0,
            own_want: RequestCounts::ZERO,
            last: None,
            seen: HashMap::new(),
            listed_at: None,
        }
    }

    /// Applies other numbers of the configuration. What is granted stays so.
    pub fn configure(
        &mut self,
        floor: RequestCounts,
        total: RequestCounts,
        reserve: RequestCounts,
        silence: Duration,
    ) {
        self.settings = Settings {
            floor,
            total,
            reserve,
            silence,
            process: self.settings.process,
            name: Arc::clone(&self.settings.name),
        };
    }

    /// What may be used beside the floor, and until when.
    pub fn granted(&self) -> (RequestCounts, Duration) {
        (self.granted, self.lease_until)
    }

    /// How long the process has followed the engine's rows. After Q it may be granted
    /// more.
    pub fn followed(&self, now: Duration) -> Option<Duration> {
        let followed = self.followed.as_ref()?;
        is_without_gap(followed, now).then(|| now.saturating_sub(followed.since))
    }

    /// How many requests the windows may count now. Must be called whenever a request is
    /// taken: after a pause of the process, no timer has noticed yet that the lease is
    /// over.
    pub fn limits(&self, now: Duration) -> RequestCounts {
        let granted = match has(Rule::LeaseCheckedAtTake) {
            true => self.grant(now),
            false => self.granted,
        };
        self.settings.floor + granted
    }

    fn grant(&self, now: Duration) -> RequestCounts {
        match now < self.lease_until {
            true => self.granted,
            false => RequestCounts::ZERO,
        }
    }

    /// The next report. Until it is answered or [`lost`](Self::lost), there must be no
    /// other. No request may be taken between the count in `demand` and this call.
    pub fn report(&mut self, now: Duration, demand: &Demand, nonce: u64) -> Report {
        let floor = self.settings.floor;
        let (want, ask) = want::want(demand, floor, self.own_want, self.last.as_ref());
        let held = self.grant(now);
        let followed = self.followed_long_enough(now);
        // While this process cannot raise its allowance, it gives nothing back: after an
        // engine has lost its rows, nobody else could have it.
        let most = if followed.is_some() { ask } else { held };
        let mut keep = held.min(most);
        if has(Rule::ReportWhatCounts) {
            keep = keep.max(demand.counted - floor);
        }
        // From now on others may be granted what is not kept.
        self.granted = match has(Rule::LowerFirst) {
            true => held.min(most),
            false => held,
        };
        let usable = match has(Rule::ClaimsRaiseNothing) {
            true => most,
            false => ask,
        };
        self.sequence += 1;
        self.pending = Some(Pending {
            sequence: self.sequence,
            sent: now,
            usable,
            want,
        });
        let list = self.is_time_to_list(now);
        Report {
            process: self.settings.process,
            sequence: self.sequence,
            followed,
            nonce,
            keep,
            ask,
            want,
            floor,
            total: self.settings.total,
            reserve: self.settings.reserve,
            copies: match has(Rule::CopiesRemembered) {
                true => self.copies,
                false => 0,
            },
            stay_ms: self.settings.silence.as_millis() as u64,
            name: Arc::clone(&self.settings.name),
            list,
            remove: self.silent_rows(now),
        }
    }

    /// The generation that has been followed for Q without a gap.
    fn followed_long_enough(&self, now: Duration) -> Option<Arc<str>> {
        let followed = self.followed.as_ref()?;
        let is_long = !has(Rule::FollowBeforeRaise)
            || now.saturating_sub(followed.since) >= self.settings.silence;
        let is_current = is_without_gap(followed, now);
        (is_long && is_current).then(|| Arc::clone(&followed.generation))
    }

    /// Each process has a second of its own, so that not all ask at once.
    fn is_time_to_list(&mut self, now: Duration) -> bool {
        let own = Duration::from_millis(self.settings.process.0 as u64 % 1000);
        let rows = self
            .last
            .as_ref()
            .map_or(0, |last| last.processes.max(0) as u32);
        let every = LIST_EVERY.max(LIST_EVERY_ROW * rows.min(100_000));
        let is_time = self
            .listed_at
            .is_none_or(|last| now.saturating_sub(last) >= every + own);
        if is_time {
            self.listed_at = Some(now);
        }
        is_time
    }

    fn silent_rows(&self, now: Duration) -> Vec<(ProcessId, u64)> {
        let is_silent = |seen: &Seen| match has(Rule::SilentRowsStay) {
            true => now.saturating_sub(seen.since) >= seen.stay,
            false => now.saturating_sub(seen.since) >= LEASE,
        };
        let silent = self
            .seen
            .iter()
            .filter(|(process, seen)| **process != self.settings.process && is_silent(seen));
        let mut silent: Vec<_> = silent
            .map(|(process, seen)| (*process, seen.sequence))
            .collect();
        silent.sort_unstable();
        silent
    }

    /// Applies the reply to the report with this number. A reply that comes too late
    /// changes nothing.
    pub fn reply(&mut self, now: Duration, sequence: u64, reply: Reply) {
        let Some(pending) = self.pending.take_if(|sent| sent.sequence == sequence) else {
            return;
        };
        let Reply::Counted(counted) = reply else {
            return;
        };
        self.follow(now, &pending, &counted);
        if counted.majority || !has(Rule::MajorityExtends) {
            self.extend(now, &pending, &counted);
        }
        if let Some(rows) = &counted.rows {
            self.see(now, rows);
        }
        self.copies = self.copies.max(counted.copies);
        self.own_want = pending.want;
        self.last = Some(counted);
    }

    /// Notes that a report was not answered in time. The engine may have counted it, so
    /// nothing is assumed.
    pub fn lost(&mut self, sequence: u64) {
        self.pending.take_if(|sent| sent.sequence == sequence);
    }

    fn follow(&mut self, now: Duration, pending: &Pending, counted: &CountedReport) {
        if !counted.majority {
            self.followed = None;
            return;
        }
        let is_same = self.followed.as_ref().is_some_and(|followed| {
            followed.generation == counted.generation && is_without_gap(followed, now)
        });
        match &mut self.followed {
            Some(followed) if is_same => followed.contact = pending.sent,
            followed => {
                *followed = Some(Followed {
                    generation: Arc::clone(&counted.generation),
                    since: now,
                    contact: pending.sent,
                });
                self.seen.clear();
            }
        }
    }

    fn extend(&mut self, now: Duration, pending: &Pending, counted: &CountedReport) {
        let from = match has(Rule::LeaseFromSend) {
            true => pending.sent,
            false => now,
        };
        let until = from + LEASE;
        if until > now {
            // What is granted beyond this only covers requests that count still.
            self.granted = counted.grant.min(pending.usable);
            self.lease_until = until;
        }
    }

    fn see(&mut self, now: Duration, rows: &[ListedRow]) {
        let mut seen = HashMap::with_capacity(rows.len());
        for row in rows {
            let before = self.seen.remove(&row.process);
            let since = before.filter(|before| before.sequence == row.sequence);
            let new = Seen {
                sequence: row.sequence,
                since: since.map_or(now, |before| before.since),
                stay: Duration::from_millis(row.stay_ms),
            };
            seen.insert(row.process, new);
        }
        self.seen = seen;
    }

    /// The last reply, for status and metrics.
    pub fn last(&self) -> Option<&CountedReport> {
        self.last.as_ref()
    }
}

fn is_without_gap(followed: &Followed, now: Duration) -> bool {
    now.saturating_sub(followed.contact) <= GAP || !has(Rule::GapEndsFollowing)
}
