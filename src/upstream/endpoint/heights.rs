//! Which height of the chain is the best that the endpoints of an upstream say,
//! and which of them says one that cannot be. Pure.
//!
//! An endpoint that is far above the others is no reason to leave them if the
//! chain cannot be that high yet: it has a bug. Where it can be, the others lag,
//! such as one that builds its index anew.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::Moment;

/// What an endpoint has said of a tip.
#[derive(Clone, Debug)]
pub(crate) struct Height {
    /// The status path that says it.
    pub(crate) path: Box<str>,
    pub(crate) height: u32,
    pub(crate) at: Moment,
}

/// The heights of all endpoints in comparison.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heights {
    /// The best for each status path.
    pub(crate) best: Vec<(Box<str>, u32)>,
    /// For each endpoint the height that is not believed, if there is one.
    pub(crate) unbelieved: Vec<Option<u32>>,
}

/// A height that is not so far above another's may be news.
const FAR: u32 = 1000;
/// For how long a height that was said counts in comparison with others.
const REMEMBERED: Duration = Duration::from_mins(5);
/// When Bitcoin's first block was mined, in seconds since 1970.
const FIRST_BLOCK: u64 = 1_231_006_505;
/// Blocks have come every 575 s on average. In seconds, with a margin.
const LEAST_BLOCK: u64 = 540;

/// No block of Bitcoin's is higher at this time.
pub(crate) fn highest_at(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let blocks = since.as_secs().saturating_sub(FIRST_BLOCK) / LEAST_BLOCK;
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

impl Heights {
    /// Compares what each endpoint has said; what one has said that is not asked
    /// is not among it. No block is higher than `highest`.
    pub(crate) fn compare(said: &[Vec<Height>], highest: u32, now: Moment) -> Self {
        let unbelieved = said.iter().enumerate().map(|(at, own)| {
            let others = || said.iter().enumerate().filter(|(other, _)| *other != at);
            let is_wrong = |said: &&Height| {
                let others = others().flat_map(|(_, heights)| heights);
                let others = others.filter(|other| other.path == said.path);
                // Two of them may have the same bug.
                let possible = others.map(|other| other.height).filter(|of| *of <= highest);
                let far_above = |other| said.height > FAR.saturating_add(other);
                said.height > highest && possible.max().is_some_and(far_above)
            };
            own.iter().find(is_wrong).map(|said| said.height)
        });
        let unbelieved: Vec<_> = unbelieved.collect();
        let mut best: Vec<(Box<str>, u32)> = Vec::new();
        let believed = said.iter().zip(&unbelieved);
        let believed = believed.filter(|(_, wrong)| wrong.is_none());
        for said in believed.flat_map(|(heights, _)| heights) {
            if now.since(said.at) > REMEMBERED {
                continue;
            }
            match best.iter_mut().find(|(path, _)| *path == said.path) {
                Some((_, height)) => *height = (*height).max(said.height),
                None => best.push((said.path.clone(), said.height)),
            }
        }
        Self { best, unbelieved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn says(path: &str, height: u32, second: u64) -> Height {
        Height {
            path: path.into(),
            height,
            at: at(second),
        }
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
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
            // One that builds its index anew lags.
            (&[100_000, 840_000], 840_000, &[false, false]),
            (&[0, HIGHEST], HIGHEST, &[false, false]),
            // Another chain, which is higher.
            (&[4_500_000, 4_600_000], 4_600_000, &[false, false]),
            (&[wrong], wrong, &[false]),
        ];
        for (heights, best, unbelieved) in rows {
            let said: Vec<_> = heights
                .iter()
                .map(|height| vec![says("/a", *height, 0), says("/b", 7, 0)])
                .collect();
            let compared = Heights::compare(&said, HIGHEST, at(1));
            assert_eq!(compared.best[0], ("/a".into(), best), "{heights:?}");
            let is_wrong = |height: &Option<u32>| height.is_some();
            let found: Vec<_> = compared.unbelieved.iter().map(is_wrong).collect();
            assert_eq!(found, unbelieved, "{heights:?}");
        }
    }

    #[test]
    fn what_was_said_long_ago_is_no_best_but_shows_what_can_be() {
        let said = [
            vec![says("/a", 840_000, 0)],
            vec![says("/a", 4_000_000_000, 999)],
        ];
        let compared = Heights::compare(&said, 1_000_000, at(1000));
        assert_eq!(compared.best, []);
        assert_eq!(compared.unbelieved, [None, Some(4_000_000_000)]);
    }

    #[test]
    fn blocks_of_known_times_are_possible() {
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
