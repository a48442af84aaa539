//! What happens in a simulation.

/// How often what happens: each number is the mean time between two events, in steps of
/// 10 ms; 0 for never.
#[derive(Clone, Debug)]
pub(super) struct JournalWeather {
    /// What a fault is reported with.
    pub(super) name: &'static str,
    /// How many steps it lasts. After that, all is well for a while.
    pub(super) steps: u64,
    pub(super) purge: u64,
    pub(super) fetch: u64,
    /// The engine has lost everything.
    pub(super) flush: u64,
    /// A copy takes over, which lacks the last writes.
    pub(super) failover: u64,
    /// The same server has older rows again.
    pub(super) older: u64,
    /// The oldest records are removed.
    pub(super) trim: u64,
    /// A replica is cut off.
    pub(super) cut: u64,
    pub(super) shortest_cut: u64,
    pub(super) longest_cut: u64,
    /// Shortly before a replica is no longer cut off, the engine loses everything and all
    /// others are replaced. No two are cut off at once.
    pub(super) outage: bool,
    /// A replica is stopped, and goes on later.
    pub(super) pause: u64,
    pub(super) kill: u64,
    /// How many of 100 messages are lost, and how many arrive twice.
    pub(super) lost: u64,
    pub(super) twice: u64,
}

impl JournalWeather {
    /// Everything fails.
    pub(super) fn storm() -> Self {
        Self {
            name: "everything",
            steps: 6_000,
            purge: 60,
            fetch: 20,
            flush: 1500,
            failover: 700,
            older: 0,
            trim: 1500,
            cut: 250,
            shortest_cut: 1,
            longest_cut: 300,
            outage: false,
            pause: 400,
            kill: 800,
            lost: 5,
            twice: 5,
        }
    }

    /// Somebody restores older rows while the engine runs. What was stored elsewhere is
    /// not compared: a position may be one of records that were lost.
    pub(super) fn restored() -> Self {
        Self {
            name: "older rows",
            fetch: 0,
            older: 700,
            ..Self::storm()
        }
    }

    /// The engine loses nothing.
    pub(super) fn lasting_engine() -> Self {
        Self {
            name: "a lasting engine",
            flush: 0,
            failover: 0,
            older: 0,
            trim: 0,
            ..Self::storm()
        }
    }

    /// The engine loses its keys, and all replicas last.
    pub(super) fn lost_keys() -> Self {
        Self {
            name: "lost keys",
            flush: 400,
            longest_cut: 150,
            kill: 0,
            ..Self::storm()
        }
    }

    /// While a replica is cut off, the engine and all others end.
    pub(super) fn lost_hosts() -> Self {
        Self {
            name: "lost hosts",
            cut: 400,
            shortest_cut: 100,
            outage: true,
            kill: 3_000,
            ..Self::lasting_engine()
        }
    }

    /// A replica is cut off for long, and nobody is left who remembers what it has missed.
    pub(super) fn absence() -> Self {
        Self {
            name: "long absence",
            steps: 150_000,
            purge: 2_000,
            fetch: 0,
            cut: 10_000,
            shortest_cut: 65_000,
            longest_cut: 70_000,
            outage: true,
            pause: 0,
            kill: 0,
            lost: 0,
            twice: 0,
            ..Self::lasting_engine()
        }
    }
}
