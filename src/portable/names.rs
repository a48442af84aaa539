//! What the numbers of routes and tips mean. Their numbers are valid in this process alone.

use std::collections::HashMap;

use super::digest::MeaningDigest;
use super::purge::LoggedPurge;
use crate::cache::purge::Purge;

/// What the numbers of routes and tips mean.
#[derive(Default)]
pub(crate) struct Names {
    /// A number means the same for as long as the process runs.
    pub(crate) routes: HashMap<u16, MeaningDigest>,
    /// `None` where a number has meant several tips.
    pub(crate) tips: Vec<Option<MeaningDigest>>,
}

impl Names {
    /// A purge in the form that another process can apply.
    pub(crate) fn logged(&self, purge: &Purge) -> LoggedPurge {
        let (route, tip) = match purge {
            Purge::All | Purge::Text(_) => (None, None),
            Purge::Heights { tip, .. } => {
                let tip = tip.and_then(|tip| self.tips.get(usize::from(tip)).copied());
                (None, tip.flatten())
            }
            Purge::Route(route)
            | Purge::Target { route, .. }
            | Purge::Segment { route, .. }
            | Purge::Path { route, .. } => match self.routes.get(route) {
                Some(digest) => (Some(*digest), None),
                // No route of the process has it.
                None => return LoggedPurge::new(&Purge::All, None, None),
            },
        };
        LoggedPurge::new(purge, route, tip)
    }
    /// The purges of another process, in numbers of this one: none if no route here has
    /// ever had the meaning that it names.
    pub(crate) fn local(&self, logged: &LoggedPurge) -> Vec<Purge> {
        if logged.is_of_heights() {
            return self.of_heights(logged);
        }
        let Some(digest) = logged.route else {
            return vec![logged.with_numbers(0, None)];
        };
        let mut routes: Vec<_> = self.routes.iter().collect();
        routes.sort_unstable_by_key(|(number, _)| **number);
        let routes = routes.into_iter().filter(|(_, known)| **known == digest);
        let purges = routes.map(|(number, _)| logged.with_numbers(*number, None));
        purges.collect()
    }

    /// Purges of heights: of any tip, unless it is known for each number which tip it means.
    fn of_heights(&self, logged: &LoggedPurge) -> Vec<Purge> {
        let tips = self.tips.iter().zip(0..);
        let tips = tips.filter(|(known, _)| **known == logged.tip && logged.tip.is_some());
        let purges: Vec<_> = tips
            .map(|(_, number)| logged.with_numbers(0, Some(number)))
            .collect();
        match purges.is_empty() || self.tips.contains(&None) {
            true => vec![logged.with_numbers(0, None)],
            false => purges,
        }
    }

    /// Learns what numbers mean that a configuration uses.
    pub(crate) fn learn(
        &mut self,
        routes: impl IntoIterator<Item = (u16, MeaningDigest)>,
        tips: &[MeaningDigest],
    ) {
        self.routes.extend(routes);
        for (at, tip) in tips.iter().enumerate() {
            match self.tips.get_mut(at) {
                Some(known) if *known != Some(*tip) => *known = None,
                Some(_) => {}
                None => self.tips.push(Some(*tip)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: u8) -> MeaningDigest {
        MeaningDigest([byte; 32])
    }

    #[test]
    fn a_purge_means_the_same_in_numbers_of_another_process() {
        let mut here = Names::default();
        here.learn([(1, digest(1)), (2, digest(2))], &[digest(8), digest(9)]);
        let mut there = Names::default();
        let routes = [(4, digest(2)), (5, digest(3)), (7, digest(2))];
        there.learn(routes, &[digest(9), digest(8)]);
        let path = |route| Purge::Path {
            route,
            path: "/a".into(),
        };
        let heights = |tip| Purge::Heights {
            tip,
            from: 5,
            to: 9,
        };
        for (purge, expected) in [
            (Purge::All, vec![Purge::All]),
            (Purge::Text("ab".into()), vec![Purge::Text("ab".into())]),
            (path(2), vec![path(4), path(7)]),
            (path(1), vec![]),
            // No route of the process has this number.
            (path(6), vec![Purge::All]),
            (heights(Some(0)), vec![heights(Some(1))]),
            (heights(None), vec![heights(None)]),
        ] {
            let local = there.local(&here.logged(&purge));
            assert_eq!(local, expected, "{purge:?}");
        }
        there.learn([], &[digest(9), digest(7)]);
        let local = there.local(&here.logged(&heights(Some(1))));
        assert_eq!(local, [heights(None)], "a number has meant several tips");
    }
}
