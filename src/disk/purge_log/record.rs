//! The records of the purge log.

use super::records::CarriedOut;
use crate::portable::bytes::Reader;
use crate::portable::digest::MeaningDigest;
use crate::portable::purge::LoggedPurge;

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
