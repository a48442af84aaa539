//! Failures of late, by key: what has failed four times in a row is not asked
//! for again for a while, which is twice as long after each failure more. So a dead
//! upstream, or a target that it cannot answer, gets a request now and then and
//! not one for each client.
//!
//! Invariants: nothing is remembered for longer than the settings say; the
//! number of keys is bounded.
//!
//! Deliberately absent: the upstream's health as a whole (`upstream::breaker`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use serde::Serialize;

use crate::cache::key::Key;
use crate::clock::Moment;
use crate::upstream::Failure;
use crate::upstream::endpoint::breaker::RequestOutcome;

/// For how long a failure is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// After the fourth in a row.
    #[serde(serialize_with = "crate::units::serialize")]
    pub error_ttl: Duration,
    /// After any number of them.
    #[serde(serialize_with = "crate::units::serialize")]
    pub max_error_ttl: Duration,
}

/// What has failed lately.
pub(super) struct Lapses {
    settings: Settings,
    keys: Mutex<HashMap<Box<[u8]>, Lapse, RandomState>>,
}

#[derive(Clone)]
struct Lapse {
    failure: Failure,
    /// How often in a row.
    row: u32,
    at: Moment,
    until: Moment,
}

/// So many times in a row a key is asked for again at once.
const AT_ONCE: u32 = 3;
/// So many keys are remembered. Where there are more, those go that failed the
/// longest ago: one that fails again and again is remembered, however many others
/// fail once.
const MOST: usize = 4096;

impl Lapses {
    /// Nothing has failed.
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            keys: Mutex::default(),
        }
    }

    /// What failed, to be remembered by other settings.
    pub(super) fn after(&self, settings: Settings) -> Self {
        Self {
            settings,
            keys: Mutex::new(self.keys().clone()),
        }
    }

    /// How a key failed, if it need not be tried again now.
    pub(super) fn remembered(&self, key: &Key, now: Moment) -> Option<Failure> {
        let keys = self.keys();
        let lapse = keys.get(key.as_bytes())?;
        (lapse.until > now).then(|| lapse.failure.clone())
    }

    /// A key has failed.
    pub(super) fn fail(&self, key: &Key, failure: &Failure, now: Moment) {
        if !is_remembered(failure) {
            return;
        }
        let mut keys = self.keys();
        let row = match keys.get(key.as_bytes()) {
            Some(lapse) if !self.is_over(lapse, now) => lapse.row.saturating_add(1),
            Some(_) | None => 1,
        };
        // A target that is refused, or unknown, stays so for a while: that is
        // known at once.
        let is_lasting = matches!(
            failure,
            Failure::TargetRefused(_) | Failure::NoSuchRoute { .. }
        );
        let least = match is_lasting {
            true => AT_ONCE + 1,
            false => 1,
        };
        let row = row.max(least);
        if keys.len() >= MOST && !keys.contains_key(key.as_bytes()) {
            self.make_room(&mut keys, now);
        }
        let until = match row.checked_sub(AT_ONCE + 1) {
            // A few failures are nothing yet.
            None => now,
            Some(doubled) => {
                let pause = self.settings.error_ttl;
                let pause = pause.saturating_mul(2_u32.saturating_pow(doubled));
                now + pause.min(self.settings.max_error_ttl)
            }
        };
        let lapse = Lapse {
            failure: failure.clone(),
            row,
            at: now,
            until,
        };
        keys.insert(key.as_bytes().into(), lapse);
    }

    /// A key has been answered.
    pub(super) fn forget(&self, key: &Key) {
        let mut keys = self.keys();
        if !keys.is_empty() {
            keys.remove(key.as_bytes());
        }
    }

    /// How many keys are remembered.
    pub(super) fn len(&self) -> usize {
        self.keys().len()
    }

    /// Forgets what is over; if that is nothing, the quarter that failed the
    /// longest ago, so that this is seldom needed.
    fn make_room(&self, keys: &mut HashMap<Box<[u8]>, Lapse, RandomState>, now: Moment) {
        keys.retain(|_, lapse| !self.is_over(lapse, now));
        if keys.len() < MOST {
            return;
        }
        let mut surplus = MOST / 4;
        let mut times: Vec<_> = keys.values().map(|lapse| lapse.at).collect();
        let (_, last, _) = times.select_nth_unstable(surplus);
        let last = *last;
        keys.retain(|_, lapse| {
            let goes = surplus > 0 && lapse.at <= last;
            surplus -= usize::from(goes);
            !goes
        });
    }

    /// Whether a failure is too long ago for the next to be one in a row.
    fn is_over(&self, lapse: &Lapse, now: Moment) -> bool {
        let longest = self.settings.max_error_ttl * 2;
        lapse.until <= now && now.since(lapse.at) > longest
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Lapse, RandomState>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it cost the upstream something that the next would cost as well.
/// What is ours, and what a key has to do with, has its own times.
fn is_remembered(failure: &Failure) -> bool {
    let is_of_target = matches!(
        failure,
        Failure::TooLarge | Failure::TargetRefused(_) | Failure::NoSuchRoute { .. }
    );
    is_of_target || failure.health() == RequestOutcome::Failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::TimedOut;

    fn key(target: &str) -> Key {
        let mut key = Key::begin(0);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    fn lapses() -> Lapses {
        Lapses::new(Settings {
            error_ttl: Duration::from_secs(1),
            max_error_ttl: Duration::from_secs(8),
        })
    }

    const SLOW: Failure = Failure::TimedOut(TimedOut::FirstByte);

    #[test]
    fn each_failure_more_is_remembered_twice_as_long() {
        let lapses = lapses();
        let mut now = 0;
        for seconds in [0, 0, 0, 1, 2, 4, 8, 8] {
            lapses.fail(&key("/a"), &SLOW, at(now));
            let until = now + seconds * 1000;
            if seconds > 0 {
                let last = lapses.remembered(&key("/a"), at(until - 1));
                assert_eq!(last, Some(SLOW), "{seconds}");
            }
            assert_eq!(lapses.remembered(&key("/a"), at(until)), None, "{seconds}");
            assert_eq!(lapses.remembered(&key("/b"), at(now)), None);
            now = until;
        }
        lapses.forget(&key("/a"));
        lapses.fail(&key("/a"), &SLOW, at(now));
        assert_eq!(
            lapses.remembered(&key("/a"), at(now)),
            None,
            "the first again"
        );
        lapses.fail(&key("/a"), &SLOW, at(now + 16_001));
        assert_eq!(
            lapses.remembered(&key("/a"), at(now + 16_001)),
            None,
            "long ago"
        );
    }

    #[test]
    fn what_has_its_own_times_is_not_remembered() {
        let lapses = lapses();
        let retry_after = Duration::from_secs(9);
        for failure in [
            Failure::Spent { retry_after },
            Failure::Throttled { retry_after },
            Failure::BreakerOpen { retry_after },
            Failure::KeyRefused(http::StatusCode::FORBIDDEN),
            Failure::TooManyInFlight,
            Failure::Excess {
                status: None,
                retry_after: None,
            },
            Failure::KeyEchoed,
            Failure::Abandoned,
        ] {
            for _ in 0..9 {
                lapses.fail(&key("/a"), &failure, at(0));
            }
            assert_eq!(lapses.remembered(&key("/a"), at(0)), None, "{failure:?}");
        }
    }

    #[test]
    fn a_target_that_is_refused_or_unknown_is_remembered_at_once() {
        let unknown = Failure::NoSuchRoute {
            endpoint: "http://a".into(),
        };
        let refused = Failure::TargetRefused(http::StatusCode::FORBIDDEN);
        for failure in [refused, unknown] {
            let lapses = lapses();
            let mut now = 0;
            for seconds in [1, 2, 4, 8, 8] {
                lapses.fail(&key("/a"), &failure, at(now));
                now += seconds * 1000;
                let last = lapses.remembered(&key("/a"), at(now - 1));
                assert_eq!(last, Some(failure.clone()), "{seconds}");
                assert_eq!(lapses.remembered(&key("/a"), at(now)), None, "{seconds}");
            }
            lapses.forget(&key("/a"));
            assert_eq!(lapses.len(), 0);
        }
    }

    #[test]
    fn their_number_is_bounded() {
        let lapses = lapses();
        for n in 0..MOST * 2 {
            lapses.fail(&key(&format!("/{n}")), &SLOW, at(0));
        }
        assert!((MOST / 2..=MOST).contains(&lapses.len()));
        lapses.fail(&key("/late"), &SLOW, at(60_000));
        assert_eq!(lapses.len(), 1);
    }

    #[test]
    fn a_flood_of_others_does_not_keep_a_key_from_being_remembered() {
        let lapses = lapses();
        let unknown = Failure::NoSuchRoute {
            endpoint: "http://a".into(),
        };
        // A thousand others fail each second, once each.
        let (mut asked, mut now) = (0, 0);
        for n in 0..20_000 {
            lapses.fail(&key(&format!("/{n}")), &unknown, at(now));
            if lapses.remembered(&key("/hot"), at(now)).is_none() {
                lapses.fail(&key("/hot"), &unknown, at(now));
                asked += 1;
            }
            assert!(lapses.len() <= MOST);
            now += 1;
        }
        assert!(asked < 20, "in 20 s: {asked}");
    }
}
