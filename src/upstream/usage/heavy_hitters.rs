//! The items that occur most often, counted in bounded memory: the space-saving
//! algorithm (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and
//! top-k elements in data streams", 2005).
//!
//! Invariants: no count is too low, and none is too high by more than its error; an item
//! that is more than 1/[`ROWS`] of all has a row, whatever the others are.

/// How many items have a row.
pub(crate) const ROWS: usize = 64;

/// Counts of the most frequent items.
#[derive(Clone, Debug)]
pub(crate) struct HeavyHitters<T> {
    rows: Vec<HeavyHitter<T>>,
}

/// An item and how often it occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeavyHitter<T> {
    pub(crate) item: T,
    /// How often it occurred, at most.
    pub(crate) count: u64,
    /// By how much that may be too high.
    pub(crate) error: u64,
}

impl<T> Default for HeavyHitters<T> {
    fn default() -> Self {
        Self { rows: Vec::new() }
    }
}

impl<T: PartialEq + Clone> HeavyHitters<T> {
    /// Counts an item: the one that `is_it` recognizes, which `make` makes if it has no row.
    pub(crate) fn count(&mut self, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) {
        if let Some(row) = self.rows.iter_mut().find(|row| is_it(&row.item)) {
            row.count += 1;
            return;
        }
        if self.rows.len() < ROWS {
            self.rows.push(HeavyHitter {
                item: make(),
                count: 1,
                error: 0,
            });
            return;
        }
        // The rarest loses its row. The new one may have occurred as often before.
        if let Some(rarest) = self.rows.iter_mut().min_by_key(|row| row.count) {
            *rarest = HeavyHitter {
                item: make(),
                count: rarest.count + 1,
                error: rarest.count,
            };
        }
    }

    /// The items of both, the most frequent first, at most [`ROWS`].
    pub(crate) fn merged(&self, other: &Self) -> Vec<HeavyHitter<T>> {
        let row_of = |of: &Self, item: &T| {
            let row = of.rows.iter().find(|row| row.item == *item);
            // Without a row it may have occurred as often as the rarest that has one.
            row.map_or((of.most_without_row(), of.most_without_row()), |row| {
                (row.count, row.error)
            })
        };
        let is_only_in_other = |row: &&HeavyHitter<T>| {
            let mut own = self.rows.iter();
            own.all(|known| known.item != row.item)
        };
        let all = self.rows.iter();
        let all = all.chain(other.rows.iter().filter(is_only_in_other));
        let sums = all.map(|row| {
            let (one, two) = (row_of(self, &row.item), row_of(other, &row.item));
            HeavyHitter {
                item: row.item.clone(),
                count: one.0 + two.0,
                error: one.1 + two.1,
            }
        });
        let mut sums: Vec<_> = sums.collect();
        sums.sort_by_key(|row| std::cmp::Reverse((row.count - row.error, row.count)));
        sums.truncate(ROWS);
        sums
    }

    /// How often an item without a row may have occurred.
    fn most_without_row(&self) -> u64 {
        match self.rows.len() < ROWS {
            true => 0,
            false => self.rows.iter().map(|row| row.count).min().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn count(hitters: &mut HeavyHitters<u32>, item: u32) {
        hitters.count(|known| *known == item, || item);
    }

    fn row(hitters: &HeavyHitters<u32>, item: u32) -> Option<HeavyHitter<u32>> {
        let all = hitters.merged(&HeavyHitters::default());
        all.into_iter().find(|row| row.item == item)
    }

    #[test]
    fn few_items_are_counted_exactly() {
        let mut hitters = HeavyHitters::default();
        for item in 0..ROWS as u32 {
            for _ in 0..=item {
                count(&mut hitters, item);
            }
        }
        let rows = hitters.merged(&HeavyHitters::default());
        assert_eq!(rows.len(), ROWS);
        for (row, item) in rows.iter().zip((0..ROWS as u32).rev()) {
            assert_eq!(
                (row.item, row.count, row.error),
                (item, u64::from(item) + 1, 0)
            );
        }
    }

    #[test]
    fn one_client_with_many_addresses_does_not_displace_the_heaviest() {
        let mut hitters = HeavyHitters::default();
        // Three clients with 5 % each, and one with 10,000 addresses.
        for round in 0..10_000_u32 {
            count(&mut hitters, 1_000_000 + round);
            if round % 17 == 0 {
                for client in 1..=3 {
                    count(&mut hitters, client);
                }
            }
        }
        for client in 1..=3 {
            let row = row(&hitters, client).expect("it has a row");
            assert!(row.count >= 589 && row.count - row.error <= 589, "{row:?}");
            assert!(row.error <= 12_000 / ROWS as u64, "{row:?}");
        }
        let first = hitters.merged(&HeavyHitters::default());
        assert!(first[..3].iter().all(|row| row.item <= 3), "{first:?}");
    }

    proptest! {
        /// No count is too low, nor too high by more than its error, and whatever is more
        /// than one in `ROWS` has a row; also after two are merged.
        #[test]
        fn counts_are_within_their_errors(
            items in proptest::collection::vec((proptest::bool::ANY, 0_u32..300, 1_u32..8), 0..800),
        ) {
            let mut halves = [HeavyHitters::default(), HeavyHitters::default()];
            let (mut exact, mut sums) = ([[0_u64; 300]; 2], [0_u64; 2]);
            for (half, item, skew) in items {
                let (half, item) = (usize::from(half), item / skew.pow(3));
                count(&mut halves[half], item);
                exact[half][item as usize] += 1;
                sums[half] += 1;
            }
            let empty = HeavyHitters::default();
            let merged = halves[0].merged(&halves[1]);
            let of = |half: usize, item: u32| exact[half][item as usize];
            for row in &merged {
                let true_count = of(0, row.item) + of(1, row.item);
                prop_assert!(row.count >= true_count && row.count - row.error <= true_count);
            }
            for half in 0..2 {
                let rows = halves[half].merged(&empty);
                prop_assert!(rows.len() <= ROWS);
                for item in 0..300_u32 {
                    let is_heavy = of(half, item) * ROWS as u64 > sums[half];
                    let row = rows.iter().find(|row| row.item == item);
                    prop_assert!(row.is_some() || !is_heavy, "{item}");
                }
            }
        }
    }
}
