//! How much of the pool a process asks for. Nothing here matters to exactness: the
//! engine grants only what is free.

use super::report::{CountedReport, RequestCounts};

/// More processes than there can be: a reply that has more is wrong.
const MOST_PROCESSES: i64 = 100_000;

/// What the process knows about its own requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    /// The requests that its windows count now, those in flight included.
    pub counted: RequestCounts,
    /// The requests that wait for admission.
    pub waiting: usize,
    /// The requests taken in the busiest of the last ten seconds.
    pub busiest_second: usize,
    /// Whether too little of the minute was left for a request in the last ten seconds.
    pub is_minute_short: bool,
    /// The same of the second.
    pub is_second_short: bool,
}

impl Demand {
    /// What the process wants of a pool: all of it where it had to deny requests, since
    /// how many more there will be is not known. It gets an even part where others want
    /// as much.
    fn of_pool(&self, need: RequestCounts, pool: RequestCounts) -> RequestCounts {
        let of = |is_short: bool, need: i64, all: i64| if is_short { all } else { need };
        RequestCounts {
            minute: of(self.is_minute_short, need.minute, pool.minute),
            second: of(self.is_second_short, need.second, pool.second),
        }
    }
}

/// What the process could use beside its floor: a quarter more than it has used, and
/// all that wait. What it has used in the last minute is reserved for it in any case.
fn need(demand: &Demand, floor: RequestCounts) -> RequestCounts {
    let more = |used: i64| used + (used + 3) / 4 + demand.waiting as i64;
    let used = RequestCounts::new(
        more(demand.counted.minute),
        more(demand.busiest_second as i64),
    );
    (used - floor).max(RequestCounts::ZERO)
}

/// What the process wants, and what it asks for. Without a reply it wants all it needs.
pub(super) fn want(
    demand: &Demand,
    floor: RequestCounts,
    own: RequestCounts,
    last: Option<&CountedReport>,
) -> (RequestCounts, RequestCounts) {
    let need = need(demand, floor);
    let Some(last) = last else {
        return (need, need);
    };
    let pool = last.pool.max(RequestCounts::ZERO);
    // A process without requests keeps a little, so that its first ones need not wait
    // for a round trip.
    let least = pool.zip(pool, |all, _| {
        all / (4 * last.processes.clamp(1, MOST_PROCESSES))
    });
    let want = demand.of_pool(need, pool).max(least).min(pool);
    let sum = last.wants - own + want;
    let processes = last.processes.clamp(1, MOST_PROCESSES);
    // Rounded up, so that nothing is left over. The engine grants the rest to whoever
    // asks first. What a process needs within an even part it always asks for: others may
    // want all they can get.
    let share = |want: i64, pool: i64, sum: i64| {
        let even = divided(pool, processes);
        scaled(want, pool, sum).max(want.min(even))
    };
    let share = RequestCounts {
        minute: share(want.minute, pool.minute, sum.minute),
        second: share(want.second, pool.second, sum.second),
    };
    (want, share)
}

/// The part of the pool where the sum of all wants exceeds it.
fn scaled(want: i64, pool: i64, sum: i64) -> i64 {
    match sum > pool {
        true => divided(want * pool, sum),
        false => want,
    }
}

/// A quotient of numbers that are not negative, rounded up.
fn divided(number: i64, by: i64) -> i64 {
    number.div_euclid(by) + i64::from(number % by != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(processes: i64, wants: i64, pool: i64) -> CountedReport {
        CountedReport {
            generation: "one".into(),
            majority: true,
            grant: RequestCounts::ZERO,
            processes,
            wants: RequestCounts::new(wants, wants),
            pool: RequestCounts::new(pool, pool),
            copies: 0,
            online: 0,
            rows: None,
        }
    }

    #[test]
    fn a_scarce_pool_is_divided_by_need_and_rounded_up() {
        let floor = RequestCounts::new(10, 2);
        let busy = Demand {
            waiting: 100,
            ..Demand::default()
        };
        let idle = Demand::default();
        let modest = Demand {
            counted: RequestCounts::new(20, 0),
            ..Demand::default()
        };
        let short = Demand {
            is_minute_short: true,
            ..Demand::default()
        };
        let own = RequestCounts::new(60, 60);
        let table = [
            // (demand, processes, wants of all, pool) -> (want, ask)
            (busy, 4, 240, 60, 60, 15),
            (busy, 4, 240, 61, 61, 16),
            (busy, 4, 60, 60, 60, 60),
            (idle, 4, 60, 60, 3, 3),
            (idle, 4, 240, 60, 3, 3),
            (busy, 4, 240, -5, 0, 0),
            // Requests were denied. How many will be is not known.
            (short, 4, 60, 60, 60, 60),
            (short, 4, 240, 60, 60, 15),
            (short, 4, 61, 60, 60, 60),
            (short, 2, 120, 60, 60, 30),
            (short, 1, 0, -5, 0, 0),
            // What is needed within an even part is not shared with those that want all.
            (modest, 4, 200, 60, 15, 15),
            (modest, 5, 200, 60, 15, 12),
        ];
        for (demand, processes, wants, pool, want_minute, ask) in table {
            let own = own.min(RequestCounts::new(wants, wants));
            let (got, asked) = want(&demand, floor, own, Some(&reply(processes, wants, pool)));
            assert_eq!((got.minute, asked.minute), (want_minute, ask), "{pool}");
        }
    }
}
