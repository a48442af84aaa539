//! Failure backoff: a key that has failed four times in a row is not requested again
//! for a while, which doubles with each further failure. So an upstream that is down,
//! or a target that it cannot answer, gets few requests, however many clients send
//! theirs.
//!
//! Invariants: nothing is remembered for longer than a minute; the number of
//! keys is bounded.
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

#[derive(Clone)]
struct FailedKey {
    failure: Failure,
    /// The number of failures in a row.
    count: u32,
    at: Moment,
    until: Moment,
}

/// After this many failures in a row a key is still requested at once.
const AT_ONCE: u32 = 3;
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

    /// How a key failed last, if it has not been answered since.
    pub(crate) fn last(&self, key: &Key, now: Moment) -> Option<Failure> {
        let keys = lock(&self.keys);
        let failed = keys.get(key.as_bytes())?;
        (!is_over(failed, now)).then(|| failed.failure.clone())
    }

    /// Notes that a key has failed.
    pub(crate) fn fail(&self, key: &Key, failure: &Failure, now: Moment) {
        if !is_remembered(failure) {
            return;
        }
        let mut keys = lock(&self.keys);
        let count = match keys.get(key.as_bytes()) {
            Some(failed) if !is_over(failed, now) => failed.count.saturating_add(1),
            Some(_) | None => 1,
        };
        // A target that is refused or unknown stays so for a while: the backoff begins at
        // once.
        let is_lasting = matches!(
            failure.reason,
            Reason::TargetRefused | Reason::WrongUpstream
        );
        let least = match is_lasting {
            true => AT_ONCE + 1,
            false => 1,
        };
        let count = count.max(least);
        if keys.len() >= MOST && !keys.contains_key(key.as_bytes()) {
            keys.retain(|_, failed| !is_over(failed, now));
            if keys.len() >= MOST {
                keys.clear();
            }
        }
        let until = match count.checked_sub(AT_ONCE + 1) {
            // Too few failures for a pause.
            None => now,
            Some(doubled) => {
                let pause = ERROR_TTL.saturating_mul(2_u32.saturating_pow(doubled));
                now + pause.min(MAX_ERROR_TTL)
            }
        };
        let failed = FailedKey {
            failure: failure.clone(),
            count,
            at: now,
            until,
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

/// Whether a failure is too long ago to count as one in a row with the next.
fn is_over(failed: &FailedKey, now: Moment) -> bool {
    failed.until <= now && now.since(failed.at) > MAX_ERROR_TTL * 2
}

/// Whether the next request would load the upstream and fail in the same way.
/// Failures of ordgate itself and of keys have pauses of their own.
fn is_remembered(failure: &Failure) -> bool {
    let is_of_target = matches!(
        failure.reason,
        Reason::AnswerTooLarge | Reason::TargetRefused | Reason::WrongUpstream
    );
    is_of_target || failure.is_of_endpoint()
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
    fn the_number_of_keys_is_bounded() {
        let backoff = FailureBackoff::default();
        for n in 0..MOST * 2 {
            backoff.fail(&key(&format!("/{n}")), &SLOW, at(0));
        }
        assert!((MOST / 2..=MOST).contains(&backoff.len()));
        backoff.fail(&key("/late"), &SLOW, at(60_001));
        assert_eq!(backoff.len(), 1);
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
