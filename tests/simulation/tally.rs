//! What is counted over all plays.

use std::collections::BTreeMap;
use std::fmt;

/// Counts of a play, or of many.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) hits: u64,
    pub(crate) stale: u64,
    pub(crate) unchanged: u64,
    pub(crate) refused: u64,
    /// Refused because whatever came had been overtaken.
    pub(crate) unsettled: u64,
    pub(crate) immutable: u64,
    pub(crate) probes: u64,
    /// Requests to the upstream, without probes.
    pub(crate) asked: u64,
    /// Of these, those that a perfect cache would not have made, by why ordgate
    /// has made them.
    pub(crate) wasted: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.hits += other.hits;
        self.stale += other.stale;
        self.unchanged += other.unchanged;
        self.refused += other.refused;
        self.unsettled += other.unsettled;
        self.immutable += other.immutable;
        self.probes += other.probes;
        self.asked += other.asked;
        for (why, count) in &other.wasted {
            *self.wasted.entry(why).or_default() += count;
        }
    }

    pub(crate) fn waste(&self) -> u64 {
        self.wasted.values().sum()
    }

    /// Of all requests to the upstream, in thousandths.
    pub(crate) fn share(&self, count: u64) -> f64 {
        (count * 1000 / self.asked.max(1)) as f64 / 10.0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            answers,
            hits,
            stale,
            unchanged,
            refused,
            unsettled,
            immutable,
            probes,
            asked,
            ..
        } = self;
        writeln!(
            f,
            "{answers} answers: {hits} from memory, {stale} stale, {unchanged} unchanged, {immutable} immutable, {refused} refused, {unsettled} overtaken"
        )?;
        writeln!(f, "{asked} requests to the upstream and {probes} probes")?;
        let waste = self.waste();
        writeln!(
            f,
            "{waste} ({} %) that a perfect cache would not have made:",
            self.share(waste)
        )?;
        for (why, count) in &self.wasted {
            writeln!(f, "  {count} ({} %) {why}", self.share(*count))?;
        }
        Ok(())
    }
}
