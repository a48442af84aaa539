//! What a process reports about one key, and what the engine replies. Both are written
//! as strings, as the script needs them (`engine/scripts/report.lua`).

use std::ops::{Add, Sub};
use std::sync::Arc;

/// A number of requests for the minute and one for the second. Differences may be
/// negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests a minute.
    pub minute: i64,
    /// Requests a second.
    pub second: i64,
}

impl RequestCounts {
    /// No request.
    pub const ZERO: Self = Self::new(0, 0);

    /// Requests a minute and a second.
    pub const fn new(minute: i64, second: i64) -> Self {
        Self { minute, second }
    }

    /// The same function of both numbers of two pairs.
    pub fn zip(self, other: Self, of: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            minute: of(self.minute, other.minute),
            second: of(self.second, other.second),
        }
    }

    /// The lower ones.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.zip(other, i64::min)
    }

    /// The higher ones.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, i64::max)
    }
}

impl Add for RequestCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, |one, more| one + more)
    }
}

impl Sub for RequestCounts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |one, less| one - less)
    }
}

/// The identity of a process: random, made at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u128);

impl ProcessId {
    /// Its 32 hexadecimal digits.
    pub fn hex(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// One report. The engine replies to it with a [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The process.
    pub process: ProcessId,
    /// Its number among the reports of this process.
    pub sequence: u64,
    /// The generation that the process has followed for Q. Only this one may raise its
    /// allowance.
    pub followed: Option<Arc<str>>,
    /// A random number, which names a new generation if this report begins one.
    pub nonce: u64,
    /// What the process holds beside its floor, or its windows still count. It is
    /// always accepted.
    pub keep: RequestCounts,
    /// What the process asks for beside its floor.
    pub ask: RequestCounts,
    /// What the process could use if nobody else needed it.
    pub want: RequestCounts,
    /// What the process may use without the engine.
    pub floor: RequestCounts,
    /// The budget of the key, as this process is configured.
    pub total: RequestCounts,
    /// The floors of all configured replicas.
    pub reserve: RequestCounts,
    /// The most copies that the process has known the engine to have.
    pub copies: i64,
    /// How long this row must stay after its last report, in milliseconds.
    pub stay_ms: u64,
    /// The name of the process, for people.
    pub name: Arc<str>,
    /// Whether the reply is to list all rows.
    pub list: bool,
    /// Rows of silent processes to remove, each with the last sequence number seen.
    pub remove: Vec<(ProcessId, u64)>,
}

impl Report {
    /// The arguments of the script.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            self.process.hex(),
            self.sequence.to_string(),
            self.followed.as_deref().unwrap_or_default().to_owned(),
            format!("{:016x}", self.nonce),
        ];
        let counts = [
            self.keep,
            self.ask,
            self.want,
            self.floor,
            self.total,
            self.reserve,
        ];
        for counts in counts {
            all.push(counts.minute.to_string());
            all.push(counts.second.to_string());
        }
        all.push(self.copies.to_string());
        all.push(self.stay_ms.to_string());
        all.push(self.name.to_string());
        all.push(u8::from(self.list).to_string());
        for (process, sequence) in &self.remove {
            all.push(process.hex());
            all.push(sequence.to_string());
        }
        all
    }
}

/// The row of a process, as far as others need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRow {
    /// The process.
    pub process: ProcessId,
    /// The number of its last report.
    pub sequence: u64,
    /// How long its row must stay after that, in milliseconds.
    pub stay_ms: u64,
    /// Its name.
    pub name: Arc<str>,
}

/// The engine's reply to a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A later report of this process had arrived before: nothing was changed.
    Stale,
    /// The report was counted.
    Counted(CountedReport),
}

/// The reply to a report that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedReport {
    /// The generation of the engine's rows.
    pub generation: Arc<str>,
    /// Whether most of the engine's copies follow it.
    pub majority: bool,
    /// What is now reserved for the process beside its floor.
    pub grant: RequestCounts,
    /// How many rows there are.
    pub processes: i64,
    /// The sum of what all processes could use.
    pub wants: RequestCounts,
    /// What can be granted to all processes together; negative where the floors are
    /// more than the budget.
    pub pool: RequestCounts,
    /// The most copies that the engine is known to have had.
    pub copies: i64,
    /// The copies that follow now.
    pub online: i64,
    /// All rows, where the report asked for them.
    pub rows: Option<Vec<ListedRow>>,
}

impl Reply {
    /// Reads the reply of the script; `None` if it is not one.
    pub fn read(fields: &[impl AsRef<str>]) -> Option<Self> {
        let mut fields = fields.iter().map(AsRef::as_ref);
        match fields.next()? {
            "stale" => return Some(Self::Stale),
            "counted" => {}
            _ => return None,
        }
        let generation = fields.next()?.into();
        let mut numbers = [0_i64; 11];
        for number in &mut numbers {
            *number = fields.next()?.parse().ok()?;
        }
        let [
            majority,
            gm,
            gs,
            processes,
            wm,
            ws,
            pm,
            ps,
            copies,
            online,
            listed,
        ] = numbers;
        let rows = match listed {
            0 => None,
            _ => Some(read_rows(fields)?),
        };
        Some(Self::Counted(CountedReport {
            generation,
            majority: majority == 1,
            grant: RequestCounts::new(gm, gs),
            processes,
            wants: RequestCounts::new(wm, ws),
            pool: RequestCounts::new(pm, ps),
            copies,
            online,
            rows,
        }))
    }
}

fn read_rows<'t>(mut fields: impl Iterator<Item = &'t str>) -> Option<Vec<ListedRow>> {
    let mut rows = Vec::new();
    while let Some(process) = fields.next() {
        rows.push(ListedRow {
            process: ProcessId(u128::from_str_radix(process, 16).ok()?),
            sequence: fields.next()?.parse().ok()?,
            stay_ms: fields.next()?.parse().ok()?,
            name: fields.next()?.into(),
        });
    }
    Some(rows)
}
