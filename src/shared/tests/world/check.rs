//! What must be so at the end of a run.

use super::{BUSY, Sent, TWO_PRIMARIES, UPSTREAM_WINDOWS, World, limits};

impl World {
    /// No window over the budget, and after the faults the budget is used.
    pub(super) fn check(self) -> Result<(), String> {
        let is_covered = self.kinds != TWO_PRIMARIES;
        if is_covered {
            self.check_windows("all", |_| true, |sent| sent.budget)?;
            let pool = |sent: &Sent| limits(self.split(sent.budget).pool);
            self.check_windows("the pool", |sent| sent.is_pool, pool)?;
        }
        // What is not covered is bounded for each replica.
        for at in 0..self.replicas.len() {
            self.check_windows("a replica", |sent| sent.replica == at, |sent| sent.budget)?;
        }
        let used = self.sent_in_minute(BUSY);
        let budgets = self.replicas.iter().map(|of| of.budget[0]);
        let budget = budgets.min().unwrap_or(0) as usize;
        if used * 4 < budget * 3 && is_covered {
            return Err(format!("used: only {used} of {budget}, {:?}", self.kinds));
        }
        // Of a life that is over, or without one.
        let members = self.server.members("permits");
        let opened = members.iter().find(|(name, _)| name.starts_with("life"));
        let is_old = |at: &&f64| opened.is_none_or(|(_, opened)| *at < opened);
        let old = members.values().filter(is_old).count();
        let kept = format!("kept: {old} permits of a life before, {:?}", self.kinds);
        if old == 0 { Ok(()) } else { Err(kept) }
    }

    pub(super) fn sent_in_minute(&self, from: u64) -> usize {
        let minute = from..from + 60_000;
        let sent = self.sent.iter().map(|sent| sent.from);
        sent.filter(|at| minute.contains(at)).count()
    }

    fn check_windows(
        &self,
        whose: &str,
        is_counted: impl Fn(&Sent) -> bool,
        limit: impl Fn(&Sent) -> [u32; 2],
    ) -> Result<(), String> {
        let sent: Vec<_> = self.sent.iter().filter(|sent| is_counted(sent)).collect();
        let limits: Vec<_> = sent.iter().map(|sent| limit(sent)).collect();
        let mut ends: Vec<_> = sent.iter().map(|sent| sent.to).collect();
        ends.sort_unstable();
        for (nth, span) in UPSTREAM_WINDOWS.into_iter().enumerate() {
            let least = limits.iter().map(|limit| limit[nth]).min().unwrap_or(0);
            for since in &ends {
                let until = since + span;
                let begun = sent.partition_point(|sent| sent.from < until);
                let count = begun - ends.partition_point(|end| end < since);
                if count <= least as usize {
                    continue;
                }
                // While a reload goes round, the larger budget.
                let counted = (0..begun).filter(|at| sent[*at].to >= *since);
                let limit = counted.map(|at| limits[at][nth]).max().unwrap_or(0);
                if count > limit as usize {
                    let kinds = &self.kinds;
                    return Err(format!(
                        "over: {whose} {count} of {limit} in {span} ms from {since}, {kinds:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
