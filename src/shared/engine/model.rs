//! The script `report.lua` in Rust, for simulations. A differential test runs both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Allowances, EngineFuture, SharedError};
use crate::clock::Clock;
use crate::shared::allowance::rules::{Rule, has};
use crate::shared::allowance::{CountedReport, ListedRow, ProcessId, Reply, Report, RequestCounts};
use crate::sync::lock;

/// The rows of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The generation of the rows.
    pub generation: Arc<str>,
    /// The run id and replication id of the server that began it.
    pub life: Arc<str>,
    /// The most copies that the engine is known to have had.
    pub copies: i64,
    /// One row for each process.
    pub rows: BTreeMap<ProcessId, Row>,
    /// The sums over all rows.
    pub sums: Sums,
}

/// What one process has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of its last report.
    pub sequence: u64,
    /// What is reserved for it beside its floor.
    pub grant: RequestCounts,
    /// Its floor.
    pub floor: RequestCounts,
    /// What it could use.
    pub want: RequestCounts,
    /// The budget, as it is configured there.
    pub total: RequestCounts,
    /// How long the row must stay after its last change, in milliseconds.
    pub stay_ms: u64,
    /// Its name.
    pub name: Arc<str>,
}

/// Sums over all rows, kept up to date so that a report costs the same with any number
/// of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// How many rows there are.
    pub processes: i64,
    /// The sum of their grants.
    pub grant: RequestCounts,
    /// The sum of their floors.
    pub floor: RequestCounts,
    /// The sum of what they want.
    pub want: RequestCounts,
    /// The lowest budget of all.
    pub total: RequestCounts,
}

impl Sums {
    fn add(&mut self, row: &Row) {
        self.total = match self.processes {
            0 => row.total,
            _ => self.total.min(row.total),
        };
        self.processes += 1;
        self.grant = self.grant + row.grant;
        self.floor = self.floor + row.floor;
        self.want = self.want + row.want;
    }

    fn remove(&mut self, row: &Row) {
        self.processes -= 1;
        self.grant = self.grant - row.grant;
        self.floor = self.floor - row.floor;
        self.want = self.want - row.want;
    }
}

/// What the script reads from `INFO`.
#[derive(Clone, Copy, Debug)]
pub struct ServerState<'t> {
    /// Run id and replication id.
    pub life: &'t str,
    /// How many copies have acknowledged within the last two seconds.
    pub online: i64,
    /// The time of day. It is part of the name of a new generation.
    pub time: Duration,
}

/// RequestCounts a report.
pub fn report(stored: &mut Option<Rows>, server: ServerState<'_>, report: &Report) -> Reply {
    let rows = current(stored, server, report);
    rows.copies = rows.copies.max(server.online).max(report.copies);
    let majority = (1 + server.online) * 2 > 1 + rows.copies || !has(Rule::MajorityRaises);
    let old = rows.rows.get(&report.process);
    if old.is_some_and(|old| report.sequence <= old.sequence) && has(Rule::SequenceNumbers) {
        return Reply::Stale;
    }
    let is_new = old.is_none();
    remove_silent(rows, report);
    if let Some(old) = rows.rows.remove(&report.process) {
        rows.sums.remove(&old);
    }
    if report.list {
        rows.sums = Sums::default();
        for row in rows.rows.values() {
            rows.sums.add(row);
        }
    }
    let pool = pool(&rows.sums, report);
    let free = pool - rows.sums.grant;
    let mut grant = report.keep;
    if majority && report.followed.as_ref() == Some(&rows.generation) {
        grant = grant.max(report.ask.min(free));
    } else if is_new && !has(Rule::ClaimsAccepted) {
        grant = RequestCounts::ZERO;
    }
    let row = Row {
        sequence: report.sequence,
        grant,
        floor: report.floor,
        want: report.want,
        total: report.total,
        stay_ms: report.stay_ms,
        name: Arc::clone(&report.name),
    };
    rows.sums.add(&row);
    rows.rows.insert(report.process, row);
    Reply::Counted(CountedReport {
        generation: Arc::clone(&rows.generation),
        majority,
        grant,
        processes: rows.sums.processes,
        wants: rows.sums.want,
        pool,
        copies: rows.copies,
        online: server.online,
        rows: report.list.then(|| list(rows)),
    })
}

/// A server of the engine in this process, without copies.
pub struct ModelEngine {
    clock: Clock,
    state: Mutex<ModelState>,
}

#[derive(Default)]
struct ModelState {
    is_gone: bool,
    starts: u64,
    budgets: BTreeMap<String, Option<Rows>>,
}

impl ModelEngine {
    /// A server without rows.
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            state: Mutex::default(),
        })
    }

    /// Deletes all rows.
    pub fn flush(&self) {
        lock(&self.state).budgets.clear();
    }

    /// Starts the server anew, with the rows that it has.
    pub fn restart(&self) {
        lock(&self.state).starts += 1;
    }

    /// From now on it answers, or does not.
    pub fn set_gone(&self, is_gone: bool) {
        lock(&self.state).is_gone = is_gone;
    }

    /// The rows of a budget.
    pub fn rows(&self, budget: &str) -> Option<Rows> {
        lock(&self.state).budgets.get(budget)?.clone()
    }

    /// The names of all budgets.
    pub fn budgets(&self) -> Vec<String> {
        lock(&self.state).budgets.keys().cloned().collect()
    }
}

impl Allowances for ModelEngine {
    fn report<'t>(&'t self, budget: &'t str, report: &'t Report) -> EngineFuture<'t, Reply> {
        Box::pin(async move {
            let mut state = lock(&self.state);
            if state.is_gone {
                return Err(SharedError::Late);
            }
            let life = format!("start-{}", state.starts);
            let server = ServerState {
                life: &life,
                online: 0,
                time: self.clock.since_boot(),
            };
            let rows = state.budgets.entry(budget.to_owned()).or_default();
            Ok(self::report(rows, server, report))
        })
    }
}

/// The rows of this life of the server; empty ones of a new generation if there are
/// none, or they are of another life.
fn current<'t>(
    stored: &'t mut Option<Rows>,
    server: ServerState<'_>,
    report: &Report,
) -> &'t mut Rows {
    let is_of = |rows: &Rows| *rows.life == *server.life || !has(Rule::LifeOfEngine);
    let (earlier, current) = match stored.take() {
        Some(rows) if is_of(&rows) => (0, Some(rows)),
        Some(rows) if has(Rule::CopiesInherited) => (rows.copies, None),
        _ => (0, None),
    };
    let time = server.time;
    let begin = || Rows {
        generation: format!(
            "{:016x}-{}.{}",
            report.nonce,
            time.as_secs(),
            time.subsec_micros()
        )
        .into(),
        life: server.life.into(),
        copies: earlier,
        rows: BTreeMap::new(),
        sums: Sums::default(),
    };
    stored.insert(current.unwrap_or_else(begin))
}

fn remove_silent(rows: &mut Rows, report: &Report) {
    for (process, sequence) in &report.remove {
        let is_unchanged = rows
            .rows
            .get(process)
            .is_some_and(|row| row.sequence == *sequence || !has(Rule::RemovalComparesSequence));
        if is_unchanged && let Some(row) = rows.rows.remove(process) {
            rows.sums.remove(&row);
        }
    }
}

/// The budget less all floors. `others` are the sums without the process's own row.
fn pool(others: &Sums, report: &Report) -> RequestCounts {
    let total = match others.processes {
        0 => report.total,
        _ => others.total.min(report.total),
    };
    let seen = others.floor + report.floor;
    let floors = match (has(Rule::FloorsReserved), has(Rule::FloorsOfAllSeen)) {
        (true, true) => seen.max(report.reserve),
        (false, _) => seen,
        (true, false) => report.reserve,
    };
    total - floors
}

fn list(rows: &Rows) -> Vec<ListedRow> {
    let listed = rows.rows.iter().map(|(process, row)| ListedRow {
        process: *process,
        sequence: row.sequence,
        stay_ms: row.stay_ms,
        name: Arc::clone(&row.name),
    });
    listed.collect()
}
