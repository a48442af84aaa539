//! How much of one key's budget many replicas can use: floors and grants are whole
//! numbers of requests.
//!
//! The division of the pool is that of `shared::allowance`; its rules for faults, which
//! make it exact, are left out, since nothing fails here.

use std::collections::VecDeque;

use fastrand::Rng;

use crate::settings::Settings;

/// Ticks of the play, and of one report to the next.
const TICK: f64 = 0.1;
const ROUND: usize = 10;
const MINUTES: usize = 12;
/// The first minutes are not counted.
const WARM: usize = 4;

/// Requests a minute and a second.
type Pair = [i64; 2];

/// The floor of each of some replicas: half of the budget.
pub(crate) fn floor(settings: &Settings, replicas: usize) -> Pair {
    total(settings).map(|all| all / 2 / replicas as i64)
}

/// The part of the budget that is usable without the engine.
pub(crate) fn usable_alone(settings: &Settings, replicas: usize) -> f64 {
    let [minute, second] = floor(settings, replicas);
    let each = minute.min(second * 60);
    (each * replicas as i64) as f64 / settings.per_minute as f64
}

fn total(settings: &Settings) -> Pair {
    [settings.per_minute, settings.per_second]
}

#[derive(Clone, Default)]
struct Replica {
    sent: VecDeque<f64>,
    waiting: i64,
    /// Requests sent while all is counted.
    counted_sends: i64,
    granted: Pair,
    want: Pair,
}

impl Replica {
    fn counted(&self, now: f64) -> Pair {
        let since = |time: f64| self.sent.iter().filter(|at| **at > now - time).count() as i64;
        [since(60.0), since(1.0)]
    }

    /// The requests of the busiest of the last ten seconds.
    fn busiest(&self, now: f64) -> i64 {
        let of_second = |second: i32| {
            let end = now - f64::from(second);
            self.sent
                .iter()
                .filter(|at| **at > end - 1.0 && **at <= end)
                .count() as i64
        };
        (0..10).map(of_second).max().unwrap_or_default()
    }
}

/// What replicas make of the budget.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// The part of the budget that was sent.
    pub(crate) part: f64,
    /// The replicas that had waiting clients and sent nothing in all the time.
    pub(crate) starved: usize,
}

/// Plays replicas whose clients want twice the budget, the same everywhere or all of
/// it at one in ten of them.
pub(crate) fn used(
    settings: &Settings,
    replicas: usize,
    floor: Pair,
    skewed: bool,
    seed: u64,
) -> Used {
    let mut rng = Rng::with_seed(seed);
    let mut all = vec![Replica::default(); replicas];
    let busy = if skewed {
        replicas.div_ceil(10)
    } else {
        replicas
    };
    let pool = [0, 1].map(|at| total(settings)[at] - floor[at] * replicas as i64);
    let mut sums = [[0; 2]; 2];
    let wanted = 2.0 * settings.per_minute as f64 / 60.0 * TICK;
    let mut used = 0_u32;
    for tick in 0..MINUTES * 600 {
        let now = tick as f64 * TICK;
        let arrivals = wanted as i64 + i64::from(rng.f64() < wanted.fract());
        for _ in 0..arrivals {
            let one = &mut all[rng.usize(..busy)];
            // Clients wait for seconds at most.
            one.waiting = (one.waiting + 1).min(20);
        }
        for (number, one) in all.iter_mut().enumerate() {
            while one.sent.front().is_some_and(|at| *at <= now - 60.0) {
                one.sent.pop_front();
            }
            if (tick + number).is_multiple_of(ROUND) {
                report(one, now, floor, pool, &mut sums, replicas);
            }
            if one.waiting == 0 {
                continue;
            }
            let counted = one.counted(now);
            let free = [0, 1].map(|at| floor[at] + one.granted[at] - counted[at]);
            let sends = one.waiting.min(free[0]).min(free[1]).max(0);
            one.waiting -= sends;
            one.sent.extend((0..sends).map(|_| now));
            if tick >= WARM * 600 {
                used += sends as u32;
                one.counted_sends += sends;
            }
        }
    }
    let starved = |one: &&Replica| one.waiting > 0 && one.counted_sends == 0;
    Used {
        part: f64::from(used) / ((MINUTES - WARM) as f64 * settings.per_minute as f64),
        starved: all.iter().filter(starved).count(),
    }
}

/// A report: what is lowered, and what the engine grants. `sums` are of all grants and
/// wants.
fn report(
    one: &mut Replica,
    now: f64,
    floor: Pair,
    pool: Pair,
    sums: &mut [Pair; 2],
    replicas: usize,
) {
    let counted = one.counted(now);
    let basis = [counted[0], one.busiest(now)];
    for at in [0, 1] {
        let need = (basis[at] + (basis[at] + 3) / 4 + one.waiting - floor[at]).max(0);
        let least = pool[at] / (4 * replicas as i64);
        let want = need.max(least).min(pool[at]);
        sums[1][at] += want - one.want[at];
        one.want[at] = want;
        let sum = sums[1][at];
        let ask = match sum > pool[at] {
            true => (want * pool[at] + sum - 1) / sum,
            false => want,
        };
        let held = one.granted[at];
        let keep = (counted[at] - floor[at]).max(held.min(ask)).max(0);
        let free = pool[at] - (sums[0][at] - held);
        let granted = keep.max(ask.min(free));
        sums[0][at] += granted - held;
        one.granted[at] = granted;
    }
}
