//! What providers have asked for that outlasts the process: cooldowns of a key at a host
//! (429), quotas that are spent, and limits that were reported. Pure: times are arguments.
//!
//! They are a part of a budget's page ([`spending`](super::spending)), as the time that is
//! left of each. After the machine was restarted, how much of it has passed is not known:
//! they then begin anew, and none lasts longer than an hour.

use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use http::StatusCode;

use super::limit_report::{LimitWindow, MAX_WAIT};
use crate::clock::Moment;

/// The most cooldowns in a page. Of more, those that last longest are kept.
pub(super) const COOLDOWNS: usize = 32;
/// The most limits in a page, which is how many are in force.
pub(super) const LIMITS: usize = 8;
/// The bytes of one of them.
const ENTRY: usize = 32;
/// The bytes of all.
pub(super) const BYTES: usize = (COOLDOWNS + LIMITS) * ENTRY;
/// Stands for "never".
const NEVER: u64 = u64::MAX;

/// All that applies to one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    pub(crate) cooldowns: Vec<HostCooldown>,
    pub(crate) limits: Vec<LimitInForce>,
}

/// Until when a host accepts no requests with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostCooldown {
    pub(crate) host: HostName,
    pub(crate) until: Moment,
    /// Where a long-term quota is spent, until when; then one request tries the key.
    pub(crate) quota_spent_until: Option<Moment>,
}

/// The name of an upstream's host: the same in each process with this upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostName(pub(crate) [u8; 16]);

/// For how long a host accepts no requests with a key, for other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CooldownLeft {
    pub(crate) host: HostName,
    /// After 429; zero if there was none.
    pub(crate) cooldown: Duration,
    /// Until a request tries the key again, where a long-term quota is spent.
    pub(crate) quota: Option<Duration>,
    /// The same where the host has refused the key, and with which status.
    pub(crate) refused: Option<(StatusCode, Duration)>,
}

impl CooldownLeft {
    /// What is left after some more time.
    #[must_use]
    pub(crate) fn after(self, time: Duration) -> Self {
        let less = |left: Duration| left.saturating_sub(time);
        Self {
            cooldown: less(self.cooldown),
            quota: self.quota.map(less),
            refused: self.refused.map(|(status, left)| (status, less(left))),
            ..self
        }
    }

    /// For each part, the one that lasts longer.
    #[must_use]
    pub(crate) fn or_longer(self, other: Self) -> Self {
        Self {
            cooldown: self.cooldown.max(other.cooldown),
            quota: self.quota.max(other.quota),
            refused: match (self.refused, other.refused) {
                (Some(own), Some(other)) if other.1 > own.1 => Some(other),
                (own, other) => own.or(other),
            },
            ..self
        }
    }

    /// What is left of the part that lasts longest.
    pub(crate) fn longest(&self) -> Duration {
        let ends = [self.quota, self.refused.map(|(_, left)| left)];
        let ends = ends.into_iter().flatten().chain([self.cooldown]);
        ends.max().unwrap_or_default()
    }

    /// Whether the key cannot be used now.
    pub(crate) fn is_in_force(&self) -> bool {
        !self.longest().is_zero()
    }
}

/// A limit that the upstream has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitInForce {
    pub(crate) window: LimitWindow,
    pub(crate) remaining: u64,
    /// What was left when the window was first reported; reserves are parts of it.
    pub(crate) initial: u64,
    pub(crate) until: Moment,
    pub(crate) end_is_known: bool,
    /// Requests sent when it was reported.
    pub(crate) sent_when_reported: u64,
}

/// The windows, by their numbers in a page less one.
const WINDOWS: [LimitWindow; 6] = [
    LimitWindow::Unnamed,
    LimitWindow::Second,
    LimitWindow::Minute,
    LimitWindow::Hour,
    LimitWindow::Day,
    LimitWindow::Month,
];

impl HostName {
    pub(crate) fn new(upstream: &str, host: &str) -> Self {
        let whole = format!("{}:{upstream}{host}", upstream.len());
        let mut name = [0; 16];
        name.copy_from_slice(&digest(&SHA256, whole.as_bytes()).as_ref()[..16]);
        Self(name)
    }
}

impl HostCooldown {
    fn end(&self) -> Moment {
        self.until.max(self.quota_spent_until.unwrap_or_default())
    }

    /// Whether it has any effect still. After a spent quota, one request tries the key.
    fn is_in_force(&self, now: Moment) -> bool {
        self.until > now || self.quota_spent_until.is_some()
    }
}

impl Restrictions {
    /// The cooldown at a host, if there is one.
    pub(crate) fn at(&self, host: HostName) -> Option<&HostCooldown> {
        self.cooldowns.iter().find(|known| known.host == host)
    }

    /// Replaces the cooldown at a host.
    pub(crate) fn set(&mut self, new: HostCooldown, now: Moment) {
        self.cooldowns
            .retain(|known| known.host != new.host && known.is_in_force(now));
        if new.is_in_force(now) {
            self.cooldowns.push(new);
        }
    }

    /// Adds those that an earlier process has had: where both have one, it lasts as long as
    /// either.
    pub(crate) fn add_earlier(&mut self, earlier: &Self, now: Moment) {
        for cooldown in &earlier.cooldowns {
            let mut longest = *cooldown;
            if let Some(own) = self.at(cooldown.host) {
                longest.until = longest.until.max(own.until);
                longest.quota_spent_until = longest.quota_spent_until.max(own.quota_spent_until);
            }
            self.set(longest, now);
        }
    }

    /// Writes them to their part of a page.
    ///
    /// ```text
    /// limits:     0  window, 0 for none    1  whether its end is known    8  remaining
    ///            16  initial              24  time left
    /// cooldowns:  0  host, 0 for none     16  time left                  24  time left of
    ///                                                                      the quota, or never
    /// ```
    pub(super) fn write(&self, to: &mut [u8], now: Moment) {
        let (limits, cooldowns) = to.split_at_mut(LIMITS * ENTRY);
        let in_force = self.limits.iter().filter(|limit| limit.until > now);
        for (place, limit) in limits.chunks_exact_mut(ENTRY).zip(in_force) {
            let window = WINDOWS.iter().position(|window| *window == limit.window);
            place[0] = window.map_or(0, |at| at as u8 + 1);
            place[1] = u8::from(limit.end_is_known);
            put(place, 8, limit.remaining);
            put(place, 16, limit.initial);
            put(place, 24, left(limit.until, now));
        }
        let mut longest: Vec<_> = self.cooldowns.iter().collect();
        longest.retain(|cooldown| cooldown.is_in_force(now));
        longest.sort_unstable_by_key(|cooldown| std::cmp::Reverse(cooldown.end()));
        for (place, cooldown) in cooldowns.chunks_exact_mut(ENTRY).zip(longest) {
            place[..16].copy_from_slice(&cooldown.host.0);
            put(place, 16, left(cooldown.until, now));
            let quota = cooldown.quota_spent_until;
            put(place, 24, quota.map_or(NEVER, |until| left(until, now)));
        }
    }

    /// Reads them from their part of a page, which was written some time ago.
    pub(super) fn read(part: &[u8], since_written: Duration, now: Moment) -> Self {
        let until = |left: u64| {
            let left = Duration::from_nanos(left).min(MAX_WAIT);
            now + left.saturating_sub(since_written)
        };
        let (limits, cooldowns) = part.split_at(LIMITS * ENTRY);
        let limit = |entry: &[u8]| {
            let window = usize::from(entry[0]).checked_sub(1)?;
            Some(LimitInForce {
                window: *WINDOWS.get(window)?,
                remaining: get(entry, 8),
                initial: get(entry, 16),
                until: until(get(entry, 24)),
                end_is_known: entry[1] != 0,
                sent_when_reported: 0,
            })
        };
        let cooldown = |entry: &[u8]| {
            let mut host = [0; 16];
            host.copy_from_slice(&entry[..16]);
            let quota = Some(get(entry, 24)).filter(|left| *left != NEVER);
            (host != [0; 16]).then(|| HostCooldown {
                host: HostName(host),
                until: until(get(entry, 16)),
                quota_spent_until: quota.map(until),
            })
        };
        let mut read = Self {
            limits: limits.chunks_exact(ENTRY).filter_map(limit).collect(),
            cooldowns: cooldowns.chunks_exact(ENTRY).filter_map(cooldown).collect(),
        };
        read.limits.retain(|limit| limit.until > now);
        read.cooldowns.retain(|cooldown| cooldown.is_in_force(now));
        read
    }
}

fn left(until: Moment, now: Moment) -> u64 {
    u64::try_from(until.since(now).as_nanos()).unwrap_or(NEVER - 1)
}

fn put(entry: &mut [u8], at: usize, number: u64) {
    entry[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn get(entry: &[u8], at: usize) -> u64 {
    let bytes = entry[at..at + 8].iter().rev();
    bytes.fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_secs(seconds)
    }

    fn cooldown(host: &str, until: u64, quota_spent_until: Option<u64>) -> HostCooldown {
        HostCooldown {
            host: HostName::new("an-upstream", host),
            until: at(until),
            quota_spent_until: quota_spent_until.map(at),
        }
    }

    fn limit(window: LimitWindow, until: u64) -> LimitInForce {
        LimitInForce {
            window,
            remaining: 3,
            initial: 7,
            until: at(until),
            end_is_known: true,
            sent_when_reported: 0,
        }
    }

    #[test]
    fn what_is_left_of_them_is_read_as_written() {
        let mut all = Restrictions {
            limits: WINDOWS.map(|window| limit(window, 60)).to_vec(),
            ..Restrictions::default()
        };
        all.limits.push(limit(LimitWindow::Minute, 5));
        for (host, until, quota) in [
            ("a", 30, None),
            ("b", 0, Some(600)),
            ("c", 40, Some(3)),
            ("over", 5, None),
        ] {
            all.set(cooldown(host, until, quota), at(0));
        }
        let mut part = [0; BYTES];
        all.write(&mut part, at(0));
        let read = Restrictions::read(&part, Duration::from_secs(10), at(10));
        assert_eq!(read.limits, WINDOWS.map(|window| limit(window, 60)));
        let host = |name| read.at(HostName::new("an-upstream", name)).copied();
        assert_eq!(host("a"), Some(cooldown("a", 30, None)));
        assert_eq!(host("b"), Some(cooldown("b", 10, Some(600))));
        // One request tries the key.
        assert_eq!(host("c"), Some(cooldown("c", 40, Some(10))));
        assert_eq!(host("over"), None);
        assert_eq!(read.at(HostName::new("an-upstreama", "")), None);
        // How much has passed is not known: they begin anew.
        let read = Restrictions::read(&part, Duration::ZERO, at(5000));
        assert_eq!(
            read.at(all.cooldowns[0].host),
            Some(&cooldown("a", 5030, None))
        );
        assert_eq!(
            Restrictions::read(&[0; BYTES], Duration::ZERO, at(0)),
            Restrictions::default()
        );
    }

    #[test]
    fn none_lasts_longer_than_an_hour_and_the_longest_are_kept() {
        let mut all = Restrictions::default();
        for host in 0..100 {
            all.set(cooldown(&host.to_string(), 100 + host, None), at(0));
        }
        all.set(cooldown("long", 1 << 20, Some(1 << 21)), at(0));
        let mut part = [0; BYTES];
        all.write(&mut part, at(0));
        let read = Restrictions::read(&part, Duration::ZERO, at(0));
        assert_eq!(read.cooldowns[0], cooldown("long", 3600, Some(3600)));
        assert_eq!(read.cooldowns.len(), COOLDOWNS);
        assert!(read.cooldowns.iter().all(|kept| kept.until >= at(169)));
    }

    #[test]
    fn the_longer_of_two_cooldowns_counts() {
        let mut own = Restrictions::default();
        own.set(cooldown("a", 30, Some(50)), at(0));
        let mut earlier = Restrictions::default();
        earlier.set(cooldown("a", 40, None), at(0));
        earlier.set(cooldown("b", 10, None), at(0));
        own.add_earlier(&earlier, at(0));
        let expected = [cooldown("a", 40, Some(50)), cooldown("b", 10, None)];
        assert_eq!(own.cooldowns, expected);
        own.set(cooldown("a", 0, None), at(20));
        assert_eq!(own.cooldowns, [], "what has ended is forgotten");
    }
}
