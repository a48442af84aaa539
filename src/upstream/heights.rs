//! The heights that the endpoints of an upstream report: which is the best, and which
//! are implausible. Pure.
//!
//! An endpoint far above the others has a bug if the chain cannot be that high yet, and
//! is no reason to leave the others. If it can, the others lag, for example while they
//! rebuild their indexes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::Moment;

/// A height that an endpoint has reported.
#[derive(Clone, Debug)]
pub(crate) struct Height {
    /// The status path.
    pub(crate) path: Box<str>,
    pub(crate) height: u32,
    pub(crate) at: Moment,
}

/// The heights of all endpoints, compared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heights {
    /// The best one for each status path.
    pub(crate) best: Vec<(Box<str>, u32)>,
    /// For each endpoint an implausible height, if it has reported one.
    pub(crate) implausible: Vec<Option<u32>>,
}

/// A height up to this far above the others may be new blocks.
const FAR: u32 = 1000;
/// How long a reported height counts as the best.
const REMEMBERED: Duration = Duration::from_mins(5);
/// When Bitcoin's first block was mined, in seconds since 1970.
const FIRST_BLOCK: u64 = 1_231_006_505;
/// The shortest average time between blocks, in seconds. So far it was 575 s; this
/// leaves a margin.
const LEAST_BLOCK: u64 = 540;

/// The highest possible block of Bitcoin at this time.
pub(crate) fn highest_at(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let blocks = since.as_secs().saturating_sub(FIRST_BLOCK) / LEAST_BLOCK;
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

impl Heights {
    /// Compares the heights that each endpoint has reported; those of unusable endpoints
    /// are left out. `highest` is the highest possible block.
    pub(crate) fn compare(reported: &[Vec<Height>], highest: u32, now: Moment) -> Self {
        let implausible = reported.iter().enumerate().map(|(at, own)| {
            let others = || {
                reported
                    .iter()
                    .enumerate()
                    .filter(|(other, _)| *other != at)
            };
            let is_wrong = |own: &&Height| {
                let others = others().flat_map(|(_, heights)| heights);
                let others = others.filter(|other| other.path == own.path);
                // Several endpoints may have the same bug.
                let possible = others.map(|other| other.height).filter(|of| *of <= highest);
                let far_above = |other| own.height > FAR.saturating_add(other);
                own.height > highest && possible.max().is_some_and(far_above)
            };
            own.iter().find(is_wrong).map(|own| own.height)
        });
        let implausible: Vec<_> = implausible.collect();
        let mut best: Vec<(Box<str>, u32)> = Vec::new();
        let plausible = reported.iter().zip(&implausible);
        let plausible = plausible.filter(|(_, wrong)| wrong.is_none());
        for height in plausible.flat_map(|(heights, _)| heights) {
            if now.since(height.at) > REMEMBERED {
                continue;
            }
            match best.iter_mut().find(|(path, _)| *path == height.path) {
                Some((_, best)) => *best = (*best).max(height.height),
                None => best.push((height.path.clone(), height.height)),
            }
        }
        Self { best, implausible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn reports(path: &str, height: u32, second: u64) -> Height {
        Height {
            path: path.into(),
            height,
            at: at(second),
        }
    }

    #[test]
    fn a_height_that_the_chain_cannot_have_is_implausible() {
        const HIGHEST: u32 = 1_000_000;
        let wrong = 4_000_000_000;
        let rows: [(&[u32], u32, &[bool]); 10] = [
            (&[840_000, wrong], 840_000, &[false, true]),
            (&[wrong, 840_000], 840_000, &[true, false]),
            (
                &[840_000, u32::MAX, 840_001],
                840_001,
                &[false, true, false],
            ),
            (&[840_000, wrong, wrong], 840_000, &[false, true, true]),
            (&[999_990, 1_000_900], 1_000_900, &[false, false]),
            (&[999_990, 1_000_991], 999_990, &[false, true]),
            // An endpoint that rebuilds its index lags.
            (&[100_000, 840_000], 840_000, &[false, false]),
            (&[0, HIGHEST], HIGHEST, &[false, false]),
            // Another, higher chain.
            (&[4_500_000, 4_600_000], 4_600_000, &[false, false]),
            (&[wrong], wrong, &[false]),
        ];
        for (heights, best, implausible) in rows {
            let reported: Vec<_> = heights
                .iter()
                .map(|height| vec![reports("/a", *height, 0), reports("/b", 7, 0)])
                .collect();
            let compared = Heights::compare(&reported, HIGHEST, at(1));
            assert_eq!(compared.best[0], ("/a".into(), best), "{heights:?}");
            let is_wrong = |height: &Option<u32>| height.is_some();
            let found: Vec<_> = compared.implausible.iter().map(is_wrong).collect();
            assert_eq!(found, implausible, "{heights:?}");
        }
    }

    #[test]
    fn an_old_height_is_not_the_best_but_shows_what_is_plausible() {
        let reported = [
            vec![reports("/a", 840_000, 0)],
            vec![reports("/a", 4_000_000_000, 999)],
        ];
        let compared = Heights::compare(&reported, 1_000_000, at(1000));
        assert_eq!(compared.best, []);
        assert_eq!(compared.implausible, [None, Some(4_000_000_000)]);
    }

    #[test]
    fn blocks_of_known_times_are_plausible() {
        for (second, height) in [(1_713_571_767, 840_000), (1_231_469_665, 1), (0, 0)] {
            let time = UNIX_EPOCH + Duration::from_secs(second);
            let highest = highest_at(time);
            assert!(
                highest >= height && highest < height + 100_000,
                "{height}: {highest}"
            );
        }
        assert!(highest_at(UNIX_EPOCH + Duration::from_secs(4_000_000_000)) < 6_000_000);
    }
}
