//! Which requests are under way at an endpoint, and whether it answers others
//! while it turns one away. Pure.
//!
//! An endpoint that takes so many connections and no more closes or refuses the
//! rest. One that is down does so as well, but to all of them. What tells them
//! apart is the requests beside: the endpoint answers others if an answer has come
//! since the request was sent, or if one that was sent before it is still under
//! way. Where all are turned away, the first that was sent fails first.
//!
//! Deliberately absent: what follows from it (`upstream::concurrency`).

use std::collections::BTreeSet;

/// The requests under way at one endpoint, by the order in which they were sent.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay {
    numbers: BTreeSet<u64>,
    sent: u64,
    /// How many had been sent when the last answer came.
    answered: u64,
}

impl UnderWay {
    /// One is sent; answers with its number. [`end`](Self::end) must follow.
    pub(super) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.numbers.insert(self.sent);
        self.sent
    }

    /// An answer has come to one of them.
    pub(super) fn answered(&mut self) {
        self.answered = self.sent;
    }

    /// One has ended, however that was.
    pub(super) fn end(&mut self, number: u64) {
        self.numbers.remove(&number);
    }

    /// Whether the endpoint answers others than this one, as far as can be seen.
    pub(super) fn answers_others(&self, number: u64) -> bool {
        let first = self.numbers.first();
        number <= self.answered || first.is_some_and(|first| *first < number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_answered_or_older() {
        let mut under_way = UnderWay::default();
        let one = under_way.send();
        assert!(!under_way.answers_others(one), "it is alone");
        let other = under_way.send();
        assert!(under_way.answers_others(other), "one before it goes on");
        assert!(!under_way.answers_others(one), "the first to fail");
        under_way.end(one);
        assert!(!under_way.answers_others(other), "it has failed as well");
        let third = under_way.send();
        under_way.answered();
        under_way.end(third);
        assert!(under_way.answers_others(other), "one after it was answered");
        under_way.end(other);
        let last = under_way.send();
        assert!(!under_way.answers_others(last), "that was before");
    }

    #[test]
    fn where_all_fail_in_their_order_none_is_answered() {
        let mut under_way = UnderWay::default();
        let all: Vec<_> = (0..40).map(|_| under_way.send()).collect();
        for number in all {
            assert!(!under_way.answers_others(number));
            under_way.end(number);
        }
        assert!(under_way.numbers.is_empty());
    }
}
