//! Purges by what their routes and tips mean, so that another process can apply them.

use super::bytes::{Reader, put_bytes};
use super::digest::MeaningDigest;
use crate::cache::purge::{Purge, PurgeSubject};

/// A purge, with digests in place of the numbers of its route and its tip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoggedPurge {
    /// The route whose responses it matches; `None` for any.
    pub(crate) route: Option<MeaningDigest>,
    /// The tip whose blocks it matches; `None` for any.
    pub(crate) tip: Option<MeaningDigest>,
    /// The purge, with 0 for its route and no tip.
    purge: Purge,
}

impl LoggedPurge {
    /// A purge of a route and a tip, as far as it has them.
    pub(crate) fn new(
        purge: &Purge,
        route: Option<MeaningDigest>,
        tip: Option<MeaningDigest>,
    ) -> Self {
        let mut purge = purge.clone();
        match &mut purge {
            Purge::All | Purge::Text(_) => {}
            Purge::Heights { tip, .. } => *tip = None,
            Purge::Route(route)
            | Purge::Target { route, .. }
            | Purge::Segment { route, .. }
            | Purge::Path { route, .. } => *route = 0,
        }
        Self { route, tip, purge }
    }

    /// Whether it matches a response of a route and its tip. The subject's key has 0 for
    /// its route.
    pub(crate) fn matches(
        &self,
        route: MeaningDigest,
        tip: Option<MeaningDigest>,
        subject: &PurgeSubject<'_>,
    ) -> bool {
        let is_of_tip = self.tip.is_none() || tip.is_none() || self.tip == tip;
        self.route.is_none_or(|own| own == route) && is_of_tip && self.purge.matches(subject)
    }

    /// A purge of its whole route, or of everything where it has none: it matches more, and
    /// is short.
    pub(crate) fn of_whole_route(&self) -> Self {
        let purge = match self.route {
            Some(_) => Purge::Route(0),
            None => Purge::All,
        };
        Self::new(&purge, self.route, None)
    }

    /// The purge in this process, where its route and its tip have these numbers.
    pub(crate) fn with_numbers(&self, route: u16, tip: Option<u16>) -> Purge {
        let mut purge = self.purge.clone();
        match &mut purge {
            Purge::All | Purge::Text(_) => {}
            Purge::Heights { tip: own, .. } => *own = tip,
            Purge::Route(own)
            | Purge::Target { route: own, .. }
            | Purge::Segment { route: own, .. }
            | Purge::Path { route: own, .. } => *own = route,
        }
        purge
    }

    /// Whether it is a purge of heights.
    pub(crate) fn is_of_heights(&self) -> bool {
        matches!(self.purge, Purge::Heights { .. })
    }

    /// The key under which all that it matches is kept, if that is one.
    pub(crate) fn key(&self) -> Option<[u8; 16]> {
        match (&self.purge, self.route) {
            (Purge::Target { target, .. }, Some(route)) => Some(route.key_of(target)),
            _ => None,
        }
    }

    /// The lowest height of a tip that it matches, if it is a purge of heights.
    pub(crate) fn lowest_of(&self, tip: MeaningDigest) -> Option<u32> {
        let Purge::Heights { from, .. } = self.purge else {
            return None;
        };
        let is_of_tip = self.tip.is_none_or(|own| own == tip);
        is_of_tip.then_some(from)
    }

    /// The bytes that it takes, in memory and in the file.
    pub(crate) fn weight(&self) -> usize {
        let text = match &self.purge {
            Purge::All | Purge::Route(_) | Purge::Heights { .. } => 0,
            Purge::Target { target: text, .. }
            | Purge::Segment { value: text, .. }
            | Purge::Path { path: text, .. }
            | Purge::Text(text) => text.len(),
        };
        text + size_of::<Self>()
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for digest in [self.route, self.tip] {
            out.push(u8::from(digest.is_some()));
            out.extend_from_slice(&digest.map_or([0; 32], |digest| digest.0));
        }
        let mut text = |kind: u8, number: usize, text: &str| {
            out.push(kind);
            let number = u64::try_from(number).unwrap_or(u64::MAX);
            out.extend_from_slice(&number.to_le_bytes());
            put_bytes(out, text.as_bytes());
        };
        match &self.purge {
            Purge::All => text(0, 0, ""),
            Purge::Route(_) => text(1, 0, ""),
            Purge::Target { target, .. } => text(2, 0, target),
            Purge::Segment { at, value, .. } => text(3, *at, value),
            Purge::Path { path, .. } => text(4, 0, path),
            Purge::Text(needle) => text(5, 0, needle),
            Purge::Heights { from, to, .. } => {
                out.push(6);
                out.extend_from_slice(&from.to_le_bytes());
                out.extend_from_slice(&to.to_le_bytes());
            }
        }
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut digest = || {
            let (is_there, digest) = (from.bool()?, MeaningDigest(from.array()?));
            Some(is_there.then_some(digest))
        };
        let (route, tip) = (digest()?, digest()?);
        let kind = from.u8()?;
        if kind == 6 {
            let heights = Purge::Heights {
                tip: None,
                from: from.u32()?,
                to: from.u32()?,
            };
            return Some(Self {
                route,
                tip,
                purge: heights,
            });
        }
        let number = usize::try_from(from.u64()?).ok()?;
        let text: Box<str> = from.text()?.into();
        let purge = match kind {
            0 => Purge::All,
            1 => Purge::Route(0),
            2 => Purge::Target {
                route: 0,
                target: text,
            },
            3 => Purge::Segment {
                route: 0,
                at: number,
                value: text,
            },
            4 => Purge::Path {
                route: 0,
                path: text,
            },
            5 => Purge::Text(text),
            _ => return None,
        };
        Some(Self { route, tip, purge })
    }
}
