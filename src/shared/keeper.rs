//! Reports to the engine what this process uses of each budget, and applies what it may
//! use. One task does this for all budgets, a round each second, and sooner for a budget
//! when the first request waits for it or is denied.
//!
//! A budget is locked while it is counted and the allowance changes, so that no request
//! is taken in between; it is not locked while the engine is asked.

mod longest;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use longest::LongestRequest;

use super::allowance::{
    CountedReport, Demand, Machine, ProcessId, Reply, Report, RequestCounts, Settings, silence,
};
use super::engine::{Allowances, SharedError};
use crate::clock::{Clock, Moment};
use crate::sync::lock;
use crate::upstream::admission::allowance::{BudgetUse, Grant, Limits};
use crate::upstream::admission::budget::LONGEST_WAIT;
use crate::upstream::admission::budgets::Budgets;
use crate::upstream::admission::shared_budget::SharedBudget;

/// The time between two reports about a budget, and the least.
const ROUND: Duration = Duration::from_secs(1);
const SHORTEST_ROUND: Duration = Duration::from_millis(100);

/// Reports about the budgets of this process.
pub(crate) struct Keeper {
    prefix: Box<str>,
    name: Arc<str>,
    process: ProcessId,
    budgets: Arc<Budgets>,
    clock: Clock,
    /// How long a request can be in flight.
    longest: Mutex<LongestRequest>,
    /// By the budget's digest. None is removed: a process never begins its sequence
    /// numbers again.
    kept: Mutex<BTreeMap<String, Arc<Mutex<KeptBudget>>>>,
}

/// What is known of one budget.
struct KeptBudget {
    machine: Machine,
    silence: Duration,
    /// When the last report was sent.
    sent: Option<Moment>,
    /// Whether the process could use more when that was looked at last.
    was_short: bool,
    /// Whether the budget has limits.
    is_limited: bool,
    generation: Option<Arc<str>>,
    generations: u64,
    /// The names of all processes in the last list.
    names: Vec<Arc<str>>,
    is_answered: bool,
}

/// What people should know of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Better(&'static str),
    Worse(String),
}

/// A budget as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub struct KeptSnapshot {
    /// The digest of its key.
    pub digest: String,
    /// Whether this process uses its floor only: the engine does not answer, or nothing is
    /// granted yet.
    pub is_floor_only: bool,
    /// How long the engine's rows were followed. Nothing is raised before `silence`.
    pub followed: Option<Duration>,
    /// How long a process must be silent until it holds nothing.
    pub silence: Duration,
    /// How often the engine's rows were found to have begun anew.
    pub generations: u64,
    /// Whether most of the engine's copies follow it; `None` before the first answer.
    pub majority: Option<bool>,
    /// The copies that follow the engine, and the most that have.
    pub copies: [i64; 2],
    /// What all processes want beside their floors.
    pub wants: RequestCounts,
    /// What can be granted to all of them.
    pub pool: RequestCounts,
    /// The names of all processes that report.
    pub names: Vec<Arc<str>>,
}

impl KeptSnapshot {
    /// Whether two processes have the same name.
    pub fn has_name_twice(&self) -> bool {
        self.names.windows(2).any(|pair| pair[0] == pair[1])
    }
}

impl Keeper {
    pub(crate) fn new(
        prefix: &str,
        name: &str,
        process: ProcessId,
        budgets: Arc<Budgets>,
        clock: Clock,
    ) -> Self {
        Self {
            prefix: prefix.into(),
            name: name.into(),
            process,
            budgets,
            clock,
            longest: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Sets how long a request that begins from now on can be in flight.
    pub(crate) fn set_longest(&self, longest: Duration) {
        lock(&self.longest).set(longest, self.clock.now());
    }

    /// Reports until it is dropped.
    pub(crate) async fn run(&self, engine: &dyn Allowances) {
        loop {
            self.round(engine).await;
            tokio::time::sleep(SHORTEST_ROUND).await;
        }
    }

    /// Reports about all budgets for which it is time.
    pub(crate) async fn round(&self, engine: &dyn Allowances) {
        let now = self.clock.now();
        let budgets = self.budgets.all_named(&self.prefix).into_iter();
        let due: Vec<_> = budgets
            .map(|(digest, budget)| {
                let kept = self.kept(&digest);
                (digest, budget, kept)
            })
            .filter(|(_, budget, kept)| lock(kept).is_due(now, budget.is_short()))
            .collect();
        let exchanges = due.iter().map(|(digest, budget, kept)| async move {
            let key = format!("{{{}:b:{digest}}}", self.prefix);
            self.exchange(engine, &key, budget, kept).await;
        });
        join_all(exchanges).await;
    }

    fn kept(&self, digest: &str) -> Arc<Mutex<KeptBudget>> {
        let mut all = lock(&self.kept);
        let kept = all.entry(digest.to_owned()).or_insert_with(|| {
            let settings = Settings {
                process: self.process,
                name: self.name.clone(),
                floor: RequestCounts::ZERO,
                total: RequestCounts::ZERO,
                reserve: RequestCounts::ZERO,
                silence: Duration::ZERO,
            };
            Arc::new(Mutex::new(KeptBudget::new(settings)))
        });
        kept.clone()
    }

    /// One report and its answer.
    async fn exchange(
        &self,
        engine: &dyn Allowances,
        key: &str,
        budget: &SharedBudget,
        kept: &Mutex<KeptBudget>,
    ) {
        let longest = lock(&self.longest).at(self.clock.now());
        let silence = silence(LONGEST_WAIT, longest);
        let report = budget.update_grant(self.clock.now(), |in_use, since_boot| {
            let mut kept = lock(kept);
            let report = kept.report(in_use, silence, since_boot);
            (kept.grant(), report)
        });
        let Some(Some(report)) = report else {
            // No upstream has joined the budget, or it has no limits.
            return;
        };
        let answer = engine.report(key, &report).await;
        let changed = budget.update_grant(self.clock.now(), |_, since_boot| {
            let mut kept = lock(kept);
            let changed = kept.apply(report.sequence, answer, since_boot);
            (kept.grant(), changed)
        });
        match changed.flatten() {
            None => {}
            Some(Change::Better(change)) => tracing::info!(budget = key, "{change}"),
            Some(Change::Worse(change)) => tracing::warn!(budget = key, "{change}"),
        }
    }

    /// The state of all budgets that were reported.
    pub(crate) fn snapshot(&self) -> Vec<KeptSnapshot> {
        let since_boot = self.clock.since_boot();
        let all: Vec<_> = {
            let all = lock(&self.kept);
            let all = all.iter();
            all.map(|(digest, kept)| (digest.clone(), kept.clone()))
                .collect()
        };
        let all = all.into_iter();
        let reported = all.filter(|(_, kept)| lock(kept).is_limited);
        reported
            .map(|(digest, kept)| lock(&kept).snapshot(digest, since_boot))
            .collect()
    }
}

impl KeptBudget {
    fn new(settings: Settings) -> Self {
        Self {
            machine: Machine::new(settings),
            silence: Duration::ZERO,
            sent: None,
            was_short: false,
            is_limited: false,
            generation: None,
            generations: 0,
            names: Vec::new(),
            // So that the first failure is said too.
            is_answered: true,
        }
    }

    /// Whether it is time for a report. To be called regularly.
    fn is_due(&mut self, now: Moment, is_short: bool) -> bool {
        let was_short = std::mem::replace(&mut self.was_short, is_short);
        let becomes_short = is_short && !was_short;
        let is_due = self
            .sent
            .is_none_or(|sent| becomes_short || now.since(sent) >= ROUND);
        if is_due {
            self.sent = Some(now);
        }
        is_due
    }

    /// The next report; `None` for a budget without limits.
    fn report(
        &mut self,
        in_use: &BudgetUse,
        silence: Duration,
        since_boot: Duration,
    ) -> Option<Report> {
        self.is_limited = in_use.total != Limits::default();
        if !self.is_limited {
            return None;
        }
        self.silence = silence;
        let [floor, total, reserve] = [in_use.floor, in_use.total, in_use.reserve].map(counts);
        self.machine.configure(floor, total, reserve, silence);
        let demand = Demand {
            // A window without a limit is no part of the account.
            counted: RequestCounts::new(
                counted(in_use.total.per_minute, in_use.counted.minute),
                counted(in_use.total.per_second, in_use.counted.second),
            ),
            waiting: in_use.waiting,
            busiest_second: in_use.busiest_second,
            is_minute_short: in_use.short.minute,
            is_second_short: in_use.short.second,
        };
        Some(self.machine.report(since_boot, &demand, fastrand::u64(..)))
    }

    /// Applies the answer to a report. Returns what people should know of it.
    fn apply(
        &mut self,
        sequence: u64,
        answer: Result<Reply, SharedError>,
        since_boot: Duration,
    ) -> Option<Change> {
        let was_answered = std::mem::replace(&mut self.is_answered, answer.is_ok());
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => {
                self.machine.lost(sequence);
                let change = "the engine cannot be used; this replica uses its floor only when \
                              its grant ends";
                return was_answered.then(|| Change::Worse(format!("{change}: {error}")));
            }
        };
        let had_majority = self.machine.last().is_none_or(|last| last.majority);
        let mut change = (!was_answered).then_some(Change::Better("the engine answers again"));
        let worse = |text: &str| Some(Change::Worse(text.to_owned()));
        if let Reply::Counted(counted) = &reply {
            if had_majority && !counted.majority {
                change = worse("most of the engine's copies do not follow it: nothing is granted");
            }
            if self.generation.as_ref() != Some(&counted.generation) {
                if self.generation.is_some() {
                    self.generations += 1;
                    change = worse(
                        "the engine has begun anew: nothing more is granted until this replica \
                         has followed it for long enough",
                    );
                }
                self.generation = Some(counted.generation.clone());
            }
            if let Some(rows) = &counted.rows {
                self.names = rows.iter().map(|row| row.name.clone()).collect();
                self.names.sort_unstable();
            }
        }
        self.machine.reply(since_boot, sequence, reply);
        change
    }

    fn grant(&self) -> Grant {
        let (granted, until) = self.machine.granted();
        let requests = |number: i64| usize::try_from(number).unwrap_or(0);
        Grant {
            per_minute: requests(granted.minute),
            per_second: requests(granted.second),
            until,
        }
    }

    fn snapshot(&self, digest: String, since_boot: Duration) -> KeptSnapshot {
        let followed = self.machine.followed(since_boot);
        let has_lease = self.machine.granted().1 > since_boot;
        let may_be_granted = followed.is_some_and(|followed| followed >= self.silence);
        let has_grant = self.machine.granted().0 != RequestCounts::ZERO;
        let last = self.machine.last();
        let of_last =
            |of: fn(&CountedReport) -> RequestCounts| last.map_or(RequestCounts::ZERO, of);
        KeptSnapshot {
            digest,
            is_floor_only: !(has_lease && (has_grant || may_be_granted)),
            followed,
            silence: self.silence,
            generations: self.generations,
            majority: last.map(|last| last.majority),
            copies: last.map_or([0, 0], |last| [last.online, last.copies]),
            wants: of_last(|last| last.wants),
            pool: of_last(|last| last.pool),
            names: self.names.clone(),
        }
    }
}

/// The numbers of the windows that have a limit.
fn counts(limits: Limits) -> RequestCounts {
    let number = |limit: Option<usize>| limit.map_or(0, whole);
    RequestCounts::new(number(limits.per_minute), number(limits.per_second))
}

fn counted(limit: Option<usize>, requests: usize) -> i64 {
    limit.map_or(0, |_| whole(requests))
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod crowd_tests;
#[cfg(test)]
mod tests;
