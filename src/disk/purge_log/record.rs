//! The records of the purge log.

use super::records::CarriedOut;
use crate::cache::purge::{Purge, PurgeSubject};
use crate::disk::bytes::{Reader, put_bytes};
use crate::disk::digest::MeaningDigest;

/// A purge, with digests in place of the numbers of its route and its tip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::disk) struct LoggedPurge {
    /// The route whose responses it matches; `None` for any.
    pub(in crate::disk) route: Option<MeaningDigest>,
    /// The tip whose blocks it matches; `None` for any.
    pub(in crate::disk) tip: Option<MeaningDigest>,
    /// The purge, with 0 for its route and no tip.
    purge: Purge,
}

impl LoggedPurge {
    /// A purge of a route and a tip, as far as it has them.
    pub(in crate::disk) fn new(
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
    pub(super) fn matches(
        &self,
        route: MeaningDigest,
        tip: Option<MeaningDigest>,
        subject: &PurgeSubject<'_>,
    ) -> bool {
        let is_of_tip = self.tip.is_none() || tip.is_none() || self.tip == tip;
        self.route.is_none_or(|own| own == route) && is_of_tip && self.purge.matches(subject)
    }

    /// The key under which all that it matches is kept, if that is one.
    pub(super) fn key(&self) -> Option<[u8; 16]> {
        match (&self.purge, self.route) {
            (Purge::Target { target, .. }, Some(route)) => Some(route.key_of(target)),
            _ => None,
        }
    }

    /// The lowest height of a tip that it matches, if it is a purge of heights.
    pub(super) fn lowest_of(&self, tip: MeaningDigest) -> Option<u32> {
        let Purge::Heights { from, .. } = self.purge else {
            return None;
        };
        let is_of_tip = self.tip.is_none_or(|own| own == tip);
        is_of_tip.then_some(from)
    }

    /// The bytes that it takes, in memory and in the file.
    pub(super) fn weight(&self) -> usize {
        let text = match &self.purge {
            Purge::All | Purge::Route(_) | Purge::Heights { .. } => 0,
            Purge::Target { target: text, .. }
            | Purge::Segment { value: text, .. }
            | Purge::Path { path: text, .. }
            | Purge::Text(text) => text.len(),
        };
        text + size_of::<Self>()
    }

    fn write(&self, out: &mut Vec<u8>) {
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

    fn read(from: &mut Reader<'_>) -> Option<Self> {
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

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A purge and its number.
    Purge(u64, LoggedPurge),
    /// The removal of a key and its number.
    Removal(u64, [u8; 16]),
    /// The routes that there are from now on.
    Routes(Vec<MeaningDigest>),
    /// What is carried out.
    CarriedOut(CarriedOut),
}

const PURGE: u8 = 1;
const REMOVAL: u8 = 2;
const ROUTES: u8 = 3;
const CARRIED_OUT: u8 = 4;

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Purge(number, purge) => {
                out.push(PURGE);
                out.extend_from_slice(&number.to_le_bytes());
                purge.write(&mut out);
            }
            Self::Removal(number, key) => {
                out.push(REMOVAL);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(key);
            }
            Self::Routes(routes) => {
                out.push(ROUTES);
                out.extend_from_slice(&(routes.len() as u64).to_le_bytes());
                routes
                    .iter()
                    .for_each(|route| out.extend_from_slice(&route.0));
            }
            Self::CarriedOut(done) => {
                out.push(CARRIED_OUT);
                out.extend_from_slice(&done.purge.to_le_bytes());
                out.extend_from_slice(&done.removal.to_le_bytes());
            }
        }
        out
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let (kind, number) = (from.u8()?, from.u64()?);
        let record = match kind {
            PURGE => Self::Purge(number, LoggedPurge::read(&mut from)?),
            REMOVAL => Self::Removal(number, from.array()?),
            ROUTES => {
                // There are no more routes than numbers for them.
                let count = u16::try_from(number).ok()?;
                let routes = (0..count).map(|_| from.array().map(MeaningDigest));
                Self::Routes(routes.collect::<Option<_>>()?)
            }
            CARRIED_OUT => Self::CarriedOut(CarriedOut {
                purge: number,
                removal: from.u64()?,
            }),
            _ => return None,
        };
        from.is_at_end().then_some(record)
    }
}
