//! A cooldown of a key at a host, as the journal has it: after 429, 401 or 403.
//!
//! Each end is a time of the engine's clock, so that nothing depends on when a record is
//! sent or read; and none lasts longer than it did when it was written, so that a clock
//! that was set does no harm.

use std::time::Duration;

use http::StatusCode;

use crate::portable::bytes::Reader;
use crate::upstream::admission::restrictions::{CooldownLeft, HostName};

/// The bytes of a budget's name.
const NAME: usize = 16;

/// The most records that wait for the engine while cooldowns are added to them. Purges have
/// the rest of the room: where they have none, one purge of everything takes the place of
/// all records.
pub(super) const MOST_WAITING_COOLDOWNS: usize = 512;

/// Those that last longest, as many as there is room for, and how many are left out.
pub(super) fn longest<N>(
    mut cooldowns: Vec<(N, CooldownLeft)>,
    room: usize,
) -> (Vec<(N, CooldownLeft)>, usize) {
    cooldowns.sort_by_key(|(_, left)| std::cmp::Reverse(left.longest()));
    let left_out = cooldowns.len().saturating_sub(room);
    cooldowns.truncate(room);
    (cooldowns, left_out)
}

/// A cooldown of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CooldownRecord {
    /// The name of the key's budget, which nothing can be learned of the key from.
    budget: [u8; NAME],
    host: HostName,
    cooldown: CooldownEnd,
    quota: CooldownEnd,
    refused: CooldownEnd,
    /// With which status, or 0.
    status: u16,
}

/// When something ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CooldownEnd {
    /// By the engine's clock, in milliseconds.
    at_ms: u64,
    /// How long it lasted when it was written, in milliseconds.
    lasts_ms: u64,
}

impl CooldownEnd {
    fn new(left: Duration, now_ms: u64) -> Self {
        let lasts_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        Self {
            at_ms: now_ms.saturating_add(lasts_ms),
            lasts_ms,
        }
    }

    fn left(self, now_ms: u64) -> Duration {
        Duration::from_millis(self.at_ms.saturating_sub(now_ms).min(self.lasts_ms))
    }

    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        out.extend_from_slice(&self.lasts_ms.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (at_ms, lasts_ms) = (from.u64()?, from.u64()?);
        Some(Self { at_ms, lasts_ms })
    }
}

impl CooldownRecord {
    /// What is left of a cooldown of a key, whose budget has this name, at a time of the
    /// engine; `None` if it is no name.
    pub(crate) fn new(budget: &str, left: CooldownLeft, now_ms: u64) -> Option<Self> {
        let is_name = budget.len() == 2 * NAME && budget.bytes().all(|b| b.is_ascii_hexdigit());
        let budget = u128::from_str_radix(budget, 16).ok().filter(|_| is_name)?;
        let end = |left: Option<Duration>| {
            let left = left.filter(|left| !left.is_zero());
            left.map_or(CooldownEnd::default(), |left| {
                CooldownEnd::new(left, now_ms)
            })
        };
        Some(Self {
            budget: budget.to_be_bytes(),
            host: left.host,
            cooldown: end(Some(left.cooldown)),
            quota: end(left.quota),
            refused: end(left.refused.map(|(_, left)| left)),
            status: left.refused.map_or(0, |(status, _)| status.as_u16()),
        })
    }

    /// The name of the key's budget, and what is left of the cooldown at a time of the
    /// engine; `None` if it has ended.
    pub(crate) fn left(&self, now_ms: u64) -> Option<(String, CooldownLeft)> {
        let left = |end: CooldownEnd| Some(end.left(now_ms)).filter(|left| !left.is_zero());
        let status = StatusCode::from_u16(self.status).ok();
        let found = CooldownLeft {
            host: self.host,
            cooldown: self.cooldown.left(now_ms),
            quota: left(self.quota),
            refused: status.zip(left(self.refused)),
        };
        let name = format!("{:032x}", u128::from_be_bytes(self.budget));
        found.is_in_force().then_some((name, found))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.budget);
        out.extend_from_slice(&self.host.0);
        for end in [self.cooldown, self.quota, self.refused] {
            end.write(out);
        }
        out.extend_from_slice(&self.status.to_le_bytes());
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            budget: from.array()?,
            host: HostName(from.array()?),
            cooldown: CooldownEnd::read(from)?,
            quota: CooldownEnd::read(from)?,
            refused: CooldownEnd::read(from)?,
            status: from.u16()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::allowance::ProcessId;
    use crate::shared::journal::machine::{JournalMachine, MOST_WAITING};
    use crate::shared::journal::record::JournalRecord;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_left_follows_from_the_engines_clock_and_is_never_longer() {
        let name = "0f".repeat(16);
        let left = CooldownLeft {
            host: HostName([7; 16]),
            cooldown: seconds(30),
            quota: Some(seconds(90)),
            refused: Some((StatusCode::FORBIDDEN, seconds(60))),
        };
        let now = 1_700_000_000_000;
        let record = CooldownRecord::new(&name, left, now).unwrap();
        let read = JournalRecord::decode(&JournalRecord::Cooldown(record).encode());
        assert_eq!(read, JournalRecord::Cooldown(record));
        // Milliseconds later; cooldown, quota, refusal.
        for (later, expected) in [
            (0, Some((30, 90, 60))),
            (20_000, Some((10, 70, 40))),
            (70_000, Some((0, 20, 0))),
            (90_000, None),
            // The engine's clock was set back.
            (-3_600_000, Some((30, 90, 60))),
        ] {
            let read = record.left(now.saturating_add_signed(later));
            let of = |left: Option<Duration>| left.map_or(0, |left| left.as_secs());
            let found = read.map(|(read, left)| {
                assert_eq!(read, name);
                assert_eq!(left.host, HostName([7; 16]));
                let refused = left.refused.map(|(_, left)| left);
                (left.cooldown.as_secs(), of(left.quota), of(refused))
            });
            assert_eq!(found, expected, "{later}");
        }
        for wrong in ["", "+f", &"0g".repeat(16), &"0".repeat(33)] {
            assert_eq!(CooldownRecord::new(wrong, left, now), None, "{wrong}");
        }
    }

    /// Purges have room beside them.
    #[test]
    fn of_too_many_cooldowns_those_that_last_longest_are_kept() {
        const { assert!(MOST_WAITING_COOLDOWNS * 2 <= MOST_WAITING) };
        let of = |seconds| CooldownLeft {
            host: HostName([7; 16]),
            cooldown: Duration::from_secs(seconds),
            quota: None,
            refused: None,
        };
        let all = || (0..2_000).map(|nth| (nth, of(nth * 7 % 2_000)));
        let (kept, left_out) = longest(all().collect(), MOST_WAITING_COOLDOWNS);
        assert_eq!((kept.len(), left_out), (512, 1_488));
        assert!(
            kept.iter()
                .all(|(_, left)| left.cooldown.as_secs() >= 1_488)
        );
        let (kept, left_out) = longest(all().collect(), 0);
        assert_eq!((kept.len(), left_out), (0, 2_000));
        let (kept, left_out) = longest(all().take(5).collect(), 512);
        assert_eq!((kept.len(), left_out), (5, 0));
        // None of them makes a purge of everything.
        let mut machine = JournalMachine::new(ProcessId(1), "a".into(), None, Duration::ZERO);
        let name = "0123456789abcdef".repeat(2);
        for (_, left) in longest(all().collect(), MOST_WAITING_COOLDOWNS).0 {
            let record = CooldownRecord::new(&name, left, 1).unwrap();
            machine.append(JournalRecord::Cooldown(record));
        }
        for _ in 0..512 {
            machine.append(JournalRecord::Unknown);
        }
        assert_eq!(machine.lengths().1, 1_024);
    }
}
