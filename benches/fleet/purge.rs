//! How long a purge takes to reach the last replica, under loss and pauses.
//!
//! The purge is one record of the journal. The engine writes it to all blocked readers
//! in turn. A segment that is lost is sent again after TCP's time-out, doubled each
//! time. A replica that is paused applies it when it goes on.

use fastrand::Rng;

use crate::timeline::wait;

/// CPU time of the engine for one reader (`load`).
const EACH_READER: f64 = 25e-6;
/// One-way times from the engine to the regions.
const ONE_WAY: [f64; 3] = [0.000_25, 0.02, 0.07];
/// TCP's shortest retransmission time-out on Linux, beside the round trip.
const RETRANSMISSION: f64 = 0.2;
/// Pauses of a replica: one in so many seconds, and their length.
const PAUSE_EVERY: f64 = 600.0;
const PAUSES: (f64, f64) = (0.01, 3.0);
/// A replica that has not applied it by then is named as not reached.
pub(crate) const PATIENCE: f64 = 2.0;

/// What came of some purges.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reach {
    /// Time until the last replica has applied it.
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
    /// Part of the purges whose answer names some replica.
    pub(crate) named: f64,
}

/// Plays some purges with so many replicas, where some of the segments are lost.
pub(crate) fn reach(replicas: usize, loss: f64, pauses: bool, seed: u64) -> Reach {
    const PURGES: usize = 2_000;
    let mut rng = Rng::with_seed(seed);
    let mut last = Vec::with_capacity(PURGES);
    let mut named = 0;
    for _ in 0..PURGES {
        let mut slowest = 0.0_f64;
        for replica in 0..replicas {
            let arrived = (replica + 1) as f64 * EACH_READER + delivery(&mut rng, replica, loss);
            let pause = if pauses {
                paused_for(&mut rng, arrived)
            } else {
                0.0
            };
            slowest = slowest.max(arrived + pause);
        }
        named += usize::from(slowest > PATIENCE);
        last.push(slowest);
    }
    last.sort_by(f64::total_cmp);
    let at = |part: f64| last[((PURGES - 1) as f64 * part) as usize];
    Reach {
        median: at(0.5),
        p99: at(0.99),
        most: at(1.0),
        named: named as f64 / PURGES as f64,
    }
}

fn delivery(rng: &mut Rng, replica: usize, loss: f64) -> f64 {
    let way = ONE_WAY[replica % ONE_WAY.len()];
    let mut time = way * (1.0 + 0.2 * rng.f64());
    let mut again = RETRANSMISSION + 2.0 * way;
    while rng.f64() < loss {
        time += again;
        again *= 2.0;
    }
    time
}

/// How long a replica is still paused at a moment after the purge.
fn paused_for(rng: &mut Rng, arrived: f64) -> f64 {
    // The pause that began last before that moment.
    let began = arrived - wait(rng, 1.0 / PAUSE_EVERY);
    let (shortest, longest) = PAUSES;
    let length = shortest * (longest / shortest).powf(rng.f64());
    (began + length - arrived).max(0.0)
}
