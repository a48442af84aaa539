//! Failure backoff: a key that has failed four times in a row is not requested again
//! for a while, which doubles with each further failure. So an upstream that is down,
//! or a target that it cannot answer, gets few requests, however many clients send
//! theirs.
//!
//! Invariants: no pause is longer than half a minute; the number of keys is bounded.
//!
//! Deliberately absent: the health of the upstream as a whole (`upstream::endpoint`).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::cache::key::Key;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::sync::lock;
use crate::upstream::Failure;

/// How long a key is not requested again after its fourth failure in a row.
const ERROR_TTL: Duration = Duration::from_secs(1);
/// The same at most, after further ones.
const MAX_ERROR_TTL: Duration = Duration::from_secs(30);

/// The keys that failed recently.
#[derive(Default)]
pub(crate) struct FailureBackoff {
    keys: Mutex<HashMap<Box<[u8]>, FailedKey, RandomState>>,
}

struct FailedKey {
    failure: Failure,
    /// The number of failures in a row.
    count: u32,
    until: Moment,
}

/// After this many failures in a row a key is still requested at once.
const AT_ONCE: u32 = 3;
/// A key that does not fail again for so long after its pause begins anew.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// The most keys that are remembered. If there are more, all are forgotten: each may fail up
/// to four times more before its next pause.
const MOST: usize = 4096;

impl FailureBackoff {
    /// How a key failed, if it is not to be requested yet.
    pub(crate) fn recent(&self, key: &Key, now: Moment) -> Option<Failure> {
        let keys = lock(&self.keys);
        let failed = keys.get(key.as_bytes())?;
        (failed.until > now).then(|| failed.failure.clone())
    }

    /// Notes that a key has failed.
    pub(crate) fn fail(&self, key: &Key, failure: &Failure, now: Moment) {
        // A target that is refused or unknown stays so for a while: the backoff begins at once.
        let lasts = matches!(
            failure.reason,
            Reason::TargetRefused | Reason::WrongUpstream
        );
        let is_of_target = lasts || failure.reason == Reason::AnswerTooLarge;
        if !is_of_target && !failure.is_of_endpoint() {
            // Failures of ordgate itself and of keys have pauses of their own.
            return;
        }
        let least = if lasts { AT_ONCE } else { 0 };
        let mut keys = lock(&self.keys);
        let known = keys.get(key.as_bytes());
        let known = known.filter(|failed| now <= failed.until + FORGOTTEN);
        let count = known.map_or(0, |failed| failed.count).max(least) + 1;
        let pause = match count.checked_sub(AT_ONCE + 1) {
            None => Duration::ZERO,
            Some(doubled) => ERROR_TTL.saturating_mul(2_u32.saturating_pow(doubled)),
        };
        if keys.len() >= MOST && !keys.contains_key(key.as_bytes()) {
            keys.clear();
        }
        let failed = FailedKey {
            failure: failure.clone(),
            count,
            until: now + pause.min(MAX_ERROR_TTL),
        };
        keys.insert(key.as_bytes().into(), failed);
    }

    /// Forgets a key, which was answered.
    pub(crate) fn forget(&self, key: &Key) {
        let mut keys = lock(&self.keys);
        if !keys.is_empty() {
            keys.remove(key.as_bytes());
        }
    }

    /// How many keys are remembered.
    pub(crate) fn len(&self) -> usize {
        lock(&self.keys).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str) -> Key {
        Key::of(0, target)
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    const SLOW: Failure = Failure::new(Reason::UpstreamTimeout);

    #[test]
    fn each_further_failure_doubles_the_pause() {
        let backoff = FailureBackoff::default();
        let mut now = 0;
        for seconds in [0, 0, 0, 1, 2, 4, 8, 16, 30, 30] {
            backoff.fail(&key("/a"), &SLOW, at(now));
            let until = now + seconds * 1000;
            if seconds > 0 {
                let last = backoff.recent(&key("/a"), at(until - 1));
                assert_eq!(last, Some(SLOW), "{seconds}");
            }
            assert_eq!(backoff.recent(&key("/a"), at(until)), None, "{seconds}");
            assert_eq!(backoff.recent(&key("/b"), at(now)), None);
            now = until;
        }
        backoff.forget(&key("/a"));
        backoff.fail(&key("/a"), &SLOW, at(now));
        assert_eq!(backoff.recent(&key("/a"), at(now)), None, "the first again");
        backoff.fail(&key("/a"), &SLOW, at(now + 60_001));
        assert_eq!(
            backoff.recent(&key("/a"), at(now + 60_001)),
            None,
            "long ago"
        );
    }

    #[test]
    fn failures_with_pauses_of_their_own_are_not_remembered() {
        let backoff = FailureBackoff::default();
        let retry_after = Duration::from_secs(9);
        for failure in [
            Failure::until(Reason::OverBudget, retry_after),
            Failure::until(Reason::Throttled, retry_after),
            Failure::until(Reason::BreakerOpen, retry_after),
            Failure::new(Reason::KeyRefused),
            Failure::new(Reason::NoSlot),
            Failure::new(Reason::AnswerWithheld),
            Failure::new(Reason::Internal),
        ] {
            for _ in 0..9 {
                backoff.fail(&key("/a"), &failure, at(0));
            }
            assert_eq!(backoff.recent(&key("/a"), at(0)), None, "{failure:?}");
        }
    }

    #[test]
    fn a_refused_or_unknown_target_pauses_at_once() {
        let unknown = Failure::new(Reason::WrongUpstream);
        let refused = Failure::new(Reason::TargetRefused);
        for failure in [refused, unknown] {
            let backoff = FailureBackoff::default();
            let mut now = 0;
            for seconds in [1, 2, 4, 8, 16, 30, 30] {
                backoff.fail(&key("/a"), &failure, at(now));
                now += seconds * 1000;
                let last = backoff.recent(&key("/a"), at(now - 1));
                assert_eq!(last, Some(failure.clone()), "{seconds}");
                assert_eq!(backoff.recent(&key("/a"), at(now)), None, "{seconds}");
            }
            backoff.forget(&key("/a"));
            assert_eq!(backoff.len(), 0);
        }
    }

    #[test]
    fn after_a_flood_of_failing_keys_a_frequent_one_is_still_requested_seldom() {
        let backoff = FailureBackoff::default();
        let unknown = Failure::new(Reason::WrongUpstream);
        // A thousand others fail each second, once each.
        let (mut asked, mut now) = (0, 0);
        for n in 0..20_000 {
            backoff.fail(&key(&format!("/{n}")), &unknown, at(now));
            if backoff.recent(&key("/hot"), at(now)).is_none() {
                backoff.fail(&key("/hot"), &unknown, at(now));
                asked += 1;
            }
            assert!(backoff.len() <= MOST);
            now += 1;
        }
        assert!(asked < 20, "in 20 s: {asked}");
    }
}
