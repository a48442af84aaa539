//! A perfect cache: one for all clients, without bound, and told of each block at
//! once. It requests a key once while what it has is true, and never before a client
//! requests it.

use crate::timeline::Timeline;
use crate::workload::{ByClass, Key, Kind};

/// The upstream requests that a perfect cache is expected to send after `warm`, by
/// class.
pub(crate) fn needs(keys: &[Key], timeline: &Timeline, load: f64, warm: f64) -> ByClass {
    let mut needs = ByClass::default();
    for key in keys {
        needs[key.kind.class()] += key.weight * needs_of(key, timeline, load, warm);
    }
    needs
}

fn needs_of(key: &Key, timeline: &Timeline, load: f64, warm: f64) -> f64 {
    let bounds = timeline.bounds();
    // The probability that it has not been requested since what was stored ceased to
    // be true.
    let mut unasked = 1.0;
    let mut needs = 0.0;
    for (number, pair) in bounds.windows(2).enumerate() {
        let is_new = match key.kind {
            Kind::Final => number == 0,
            Kind::Token | Kind::Absent => true,
            Kind::Window { height } => match number.checked_sub(1) {
                Some(block) => timeline.replaces(block, height),
                None => true,
            },
        };
        if is_new {
            unasked = 1.0;
        }
        let rate = key.share(number) * load;
        let middle = warm.clamp(pair[0], pair[1]);
        unasked *= (-rate * (middle - pair[0])).exp();
        let after = unasked * (-rate * (pair[1] - middle)).exp();
        needs += unasked - after;
        unasked = after;
    }
    needs
}
