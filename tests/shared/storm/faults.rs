//! What fails, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::fleet::Fleet;

/// Everything that can fail.
const FAULTS: [&str; 10] = [
    "a replica killed",
    "a replica stopped",
    "a replica cut off",
    "a replica held off",
    "the engine paused",
    "the engine stopped",
    "the engine flushed",
    "the engine killed",
    "an old dump loaded",
    "the copy promoted",
];

/// Faults, at random and one after the other.
pub(super) struct Weather {
    random: fastrand::Rng,
    /// In which order they come next: each of them once before any comes again.
    next: Vec<usize>,
    counts: BTreeMap<&'static str, usize>,
}

impl Weather {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            next: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    /// How often each has happened.
    pub(super) fn said(&self) -> String {
        let counts = self.counts.iter();
        let counts: Vec<_> = counts
            .map(|(name, count)| format!("{name} {count}×"))
            .collect();
        counts.join(", ")
    }

    /// One fault, and a while without one.
    pub(super) async fn strike(&mut self, fleet: &Fleet) {
        let fault = match self.next.pop() {
            Some(fault) => fault,
            None => {
                self.next = (0..FAULTS.len()).collect();
                self.random.shuffle(&mut self.next);
                self.next.pop().unwrap_or_default()
            }
        };
        *self.counts.entry(FAULTS[fault]).or_default() += 1;
        let replica = self.random.usize(..fleet.len());
        let long = Duration::from_millis(self.random.u64(100..2_500));
        match fault {
            0 => fleet.replace(replica).await,
            1 => {
                fleet.signal(replica, Signal::STOP);
                sleep(long).await;
                fleet.signal(replica, Signal::CONT);
            }
            2 => {
                fleet.front(replica).cut();
                sleep(long).await;
                fleet.front(replica).open();
            }
            3 => {
                fleet.front(replica).hold();
                sleep(long).await;
                fleet.front(replica).open();
            }
            4 => {
                let millis = long.as_millis().to_string();
                fleet.engine().pause(&millis);
                sleep(long).await;
            }
            5 => {
                fleet.engine().stop();
                sleep(long).await;
                fleet.engine().proceed();
            }
            6 => fleet.engine().flush(),
            7 => {
                fleet.engine().kill();
                sleep(long).await;
                fleet.engine().start_again();
            }
            8 => {
                fleet.engine().save();
                sleep(long).await;
                fleet.engine().kill();
                fleet.engine().start_again();
            }
            _ => fleet.promote(),
        }
        let calm = Duration::from_millis(self.random.u64(100..1_500));
        sleep(calm).await;
    }

    /// Nothing fails any more.
    pub(super) async fn calm_down(&mut self, fleet: &Fleet) {
        for replica in 0..fleet.len() {
            fleet.front(replica).open();
        }
        fleet.have_calm();
        sleep(Duration::from_millis(100)).await;
    }
}
