//! The upstream: it counts each request when it receives it, by the true time.

use std::collections::VecDeque;

/// Microseconds of true time.
pub(super) type Time = u64;

pub(super) const SECOND: Time = 1_000_000;
const MINUTE: Time = 60 * SECOND;

/// RequestCounts requests in every window of a minute and of a second.
pub(super) struct Upstream {
    minute: VecDeque<Time>,
    second: VecDeque<Time>,
    limits: (usize, usize),
    /// The first window that had too many requests.
    pub(super) overspent: Option<String>,
    /// The requests received since `count_from`.
    pub(super) received: usize,
    pub(super) count_from: Time,
}

impl Upstream {
    pub(super) fn new(per_minute: usize, per_second: usize) -> Self {
        Self {
            minute: VecDeque::new(),
            second: VecDeque::new(),
            limits: (per_minute, per_second),
            overspent: None,
            received: 0,
            count_from: 0,
        }
    }

    pub(super) fn receive(&mut self, now: Time) {
        if now >= self.count_from {
            self.received += 1;
        }
        let minute = count(&mut self.minute, now, MINUTE);
        let second = count(&mut self.second, now, SECOND);
        let is_over = minute > self.limits.0 || second > self.limits.1;
        if is_over && self.overspent.is_none() {
            let at = now as f64 / 1e6;
            self.overspent = Some(format!(
                "at {at:.3} s: {minute} of {} a minute, {second} of {} a second",
                self.limits.0, self.limits.1
            ));
        }
    }
}

/// The requests in the window that ends now, this one included.
fn count(window: &mut VecDeque<Time>, now: Time, span: Time) -> usize {
    while window.front().is_some_and(|first| *first + span <= now) {
        window.pop_front();
    }
    window.push_back(now);
    window.len()
}
