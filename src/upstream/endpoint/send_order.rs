//! The requests in flight at an endpoint in the order in which they were sent, by which
//! it is known whether the endpoint answers others while it rejects one. Pure.
//!
//! A server at its connection limit closes or refuses further connections. So does a
//! server that is down, but for all requests. The endpoint answers others if a response
//! has begun since the rejected request was sent, or if an earlier request is still in
//! flight: if the endpoint rejects all requests, the earliest one fails first.
//!
//! If the earlier requests have been answered and only their bodies are still
//! received, the server may have stopped accepting new ones: a server that is being
//! replaced finishes what it has begun. If another endpoint can be used, this counts
//! at most twice without a response in between.
//!
//! Deliberately absent: what follows from it (`concurrency`).

use std::collections::BTreeSet;

/// How many requests may be rejected while only bodies are received, without a response
/// in between, before a rejection is a failure like others.
const BESIDE_BODIES: u32 = 2;

/// The requests in flight at one endpoint, numbered in the order of sending.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendOrder {
    in_flight: BTreeSet<u64>,
    /// Those whose responses have not begun.
    unanswered: BTreeSet<u64>,
    sent: u64,
    /// How many had been sent when the last response began.
    answered: u64,
    /// How many were rejected since then while only bodies were received.
    beside_bodies: u32,
}

impl SendOrder {
    /// Adds a request that is sent, and returns its number. [`end`](Self::end) must
    /// follow.
    pub(crate) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.in_flight.insert(self.sent);
        self.unanswered.insert(self.sent);
        self.sent
    }

    /// Records that the response to this request has begun.
    pub(crate) fn answered(&mut self, number: u64) {
        self.unanswered.remove(&number);
        self.answered = self.sent;
        self.beside_bodies = 0;
    }

    /// Removes a request that has ended.
    pub(crate) fn end(&mut self, number: u64) {
        self.unanswered.remove(&number);
        self.in_flight.remove(&number);
    }

    /// Whether the endpoint answers other requests than this one, which it has rejected.
    /// `is_alone`: whether no other endpoint can be used.
    pub(crate) fn answers_others(&mut self, number: u64, is_alone: bool) -> bool {
        let is_first = |of: &BTreeSet<u64>| of.first().is_none_or(|first| *first >= number);
        if number <= self.answered || !is_first(&self.unanswered) {
            return true;
        }
        if is_first(&self.in_flight) {
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
    fn a_response_or_an_earlier_request_shows_that_others_are_answered() {
        let mut order = SendOrder::default();
        let one = order.send();
        assert!(!order.answers_others(one, false), "no other request");
        let other = order.send();
        assert!(
            order.answers_others(other, false),
            "an earlier one is in flight"
        );
        assert!(!order.answers_others(one, false), "it is the earliest");
        order.end(one);
        assert!(
            !order.answers_others(other, false),
            "the earlier one has failed"
        );
        let third = order.send();
        order.answered(third);
        order.end(third);
        assert!(
            order.answers_others(other, false),
            "a later one was answered"
        );
        order.end(other);
        let last = order.send();
        assert!(!order.answers_others(last, false), "that was earlier");
    }

    #[test]
    fn while_only_bodies_are_received_few_rejections_count() {
        for is_alone in [true, false] {
            let mut order = SendOrder::default();
            let long = order.send();
            order.answered(long);
            for times in 1..20 {
                let number = order.send();
                let answers_others = order.answers_others(number, is_alone);
                assert_eq!(
                    answers_others,
                    is_alone || times <= BESIDE_BODIES,
                    "{times}"
                );
                order.end(number);
            }
            let waits = order.send();
            let beside = order.send();
            assert!(order.answers_others(beside, is_alone), "one is unanswered");
            order.answered(waits);
            let next = order.send();
            assert!(
                order.answers_others(next, is_alone),
                "the count starts anew"
            );
        }
    }

    #[test]
    fn if_all_fail_in_their_order_none_is_answered() {
        let mut order = SendOrder::default();
        let all: Vec<_> = (0..40).map(|_| order.send()).collect();
        for number in all {
            assert!(!order.answers_others(number, false));
            order.end(number);
        }
        assert!(order.in_flight.is_empty());
    }
}
