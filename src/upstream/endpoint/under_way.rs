//! Which requests are under way at an endpoint, and whether it answers others
//! while it turns one away. Pure.
//!
//! An endpoint that takes so many connections and no more closes or refuses the
//! rest. One that is down does so as well, but to all of them. What tells them
//! apart is the requests beside: the endpoint answers others if an answer has come
//! since the request was sent, or if one that was sent before it is still under
//! way. Where all are turned away, the first that was sent fails first.
//!
//! Where those before it have been answered and only their bodies come yet, the
//! server may have stopped to take new ones: one that is being replaced finishes
//! what it has begun. Where another endpoint can be asked, that counts but twice
//! without an answer between.
//!
//! Deliberately absent: what follows from it (`upstream::concurrency`).

use std::collections::BTreeSet;

/// So many are turned away beside bodies alone, without an answer between them,
/// before they are failures like others.
const BESIDE_BODIES: u32 = 2;

/// The requests under way at one endpoint, by the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnderWay {
    numbers: BTreeSet<u64>,
    /// Those of them whose answers have not begun.
    unanswered: BTreeSet<u64>,
    sent: u64,
    /// How many had been sent when the last answer came.
    answered: u64,
    /// How many were turned away since then beside bodies alone.
    beside_bodies: u32,
}

impl UnderWay {
    /// One is sent; answers with its number. [`end`](Self::end) must follow.
    pub(crate) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.numbers.insert(self.sent);
        self.unanswered.insert(self.sent);
        self.sent
    }

    /// An answer has begun to come to this one.
    pub(crate) fn answered(&mut self, number: u64) {
        self.unanswered.remove(&number);
        self.answered = self.sent;
        self.beside_bodies = 0;
    }

    /// One has ended, however that was.
    pub(crate) fn end(&mut self, number: u64) {
        self.unanswered.remove(&number);
        self.numbers.remove(&number);
    }

    /// Whether the endpoint answers others than this one, which is turned away, as
    /// far as can be seen. `is_alone`: whether no other endpoint can be asked.
    pub(crate) fn answers_others(&mut self, number: u64, is_alone: bool) -> bool {
        let is_first = |of: &BTreeSet<u64>| of.first().is_none_or(|first| *first >= number);
        if number <= self.answered || !is_first(&self.unanswered) {
            return true;
        }
        if is_first(&self.numbers) {
            return false;
        }
        self.beside_bodies += 1;
        is_alone || self.beside_bodies <= BESIDE_BODIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_answered_or_older() {
        let mut under_way = UnderWay::default();
        let one = under_way.send();
        assert!(!under_way.answers_others(one, false), "it is alone");
        let other = under_way.send();
        assert!(
            under_way.answers_others(other, false),
            "one before it goes on"
        );
        assert!(!under_way.answers_others(one, false), "the first to fail");
        under_way.end(one);
        assert!(
            !under_way.answers_others(other, false),
            "it has failed as well"
        );
        let third = under_way.send();
        under_way.answered(third);
        under_way.end(third);
        assert!(
            under_way.answers_others(other, false),
            "one after it was answered"
        );
        under_way.end(other);
        let last = under_way.send();
        assert!(!under_way.answers_others(last, false), "that was before");
    }

    #[test]
    fn beside_bodies_alone_a_few_are_turned_away_and_the_others_fail() {
        for is_alone in [true, false] {
            let mut under_way = UnderWay::default();
            let long = under_way.send();
            under_way.answered(long);
            for times in 1..20 {
                let number = under_way.send();
                let turned_away = under_way.answers_others(number, is_alone);
                assert_eq!(turned_away, is_alone || times <= BESIDE_BODIES, "{times}");
                under_way.end(number);
            }
            let waits = under_way.send();
            let beside = under_way.send();
            assert!(under_way.answers_others(beside, is_alone), "one waits");
            under_way.answered(waits);
            let next = under_way.send();
            assert!(under_way.answers_others(next, is_alone), "it begins anew");
        }
    }

    #[test]
    fn where_all_fail_in_their_order_none_is_answered() {
        let mut under_way = UnderWay::default();
        let all: Vec<_> = (0..40).map(|_| under_way.send()).collect();
        for number in all {
            assert!(!under_way.answers_others(number, false));
            under_way.end(number);
        }
        assert!(under_way.numbers.is_empty());
    }
}
