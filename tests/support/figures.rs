//! Percentiles of times, and printed tables.

use std::fmt::Display;
use std::time::Duration;

/// Times, and their percentiles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Such as `0.4 / 3.1 / 12.0 ms`: the half, 99 of a hundred, and all took no
    /// longer.
    pub(crate) fn ranks(&self) -> String {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = |share: f64| {
            let place = (sorted.len() as f64 * share) as usize;
            let time = sorted.get(place.min(sorted.len().saturating_sub(1)));
            time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        format!("{:.1} / {:.1} / {:.1} ms", rank(0.5), rank(0.99), rank(1.0))
    }
}

/// A table of two columns.
pub(crate) struct Table(String);

impl Table {
    pub(crate) fn new(title: impl Display) -> Self {
        Self(format!("\n{title}\n"))
    }

    pub(crate) fn row(&mut self, name: impl Display, value: impl Display) {
        self.0.push_str(&format!("  {name:<44} {value}\n"));
    }

    /// Prints it in one piece: other tests print as well.
    pub(crate) fn print(&self) {
        eprint!("{}", self.0);
    }
}
