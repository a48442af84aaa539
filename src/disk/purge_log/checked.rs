//! What something was checked against.

use std::io;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};

use crate::portable::bytes::Reader;
use crate::portable::codec::CheckedPosition;

/// The id of a log. Another log knows nothing of the purges of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct LogId(pub(in crate::disk) [u8; 16]);

/// Stands for a key that nothing is kept under.
pub(in crate::disk) const NO_KEY: [u8; 16] = [0; 16];

impl LogId {
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_unspecified| io::Error::other("no source of randomness"))?;
        Ok(Self(bytes))
    }
}

/// The purges and removals that something was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::disk) struct Checked {
    pub(in crate::disk) log: LogId,
    /// The number of the last purge.
    pub(in crate::disk) purge: u64,
    /// The number of the next removal.
    pub(in crate::disk) removal: u64,
}

impl CheckedPosition for Checked {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.log.0);
        out.extend_from_slice(&self.purge.to_le_bytes());
        out.extend_from_slice(&self.removal.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            log: LogId(from.array()?),
            purge: from.u64()?,
            removal: from.u64()?,
        })
    }
}
