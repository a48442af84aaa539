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
}
