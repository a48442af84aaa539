//! Epochs: periods in which nothing of the chain changed, when they ended, and
//! which of them share a block.

use std::collections::VecDeque;

use super::UnchangedSpan;
use crate::clock::Moment;

/// The number of an epoch. The first is 1, and begins with the first known tip.
pub(crate) type Epoch = u64;

/// No epoch. An answer of no epoch is stale as soon as a tip is known; until then
/// it is fresh for a fixed time.
pub(crate) const NO_EPOCH: Epoch = 0;

/// Remembered epochs, and links between them.
const ENDED: usize = 4096;
const LINKS: usize = 512;

/// The present epoch and those before it.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    present: Epoch,
    /// Ascending.
    ended: VecDeque<EndedEpoch>,
    /// By the epochs that they lead to, ascending.
    links: VecDeque<Link>,
    /// The number of answers so far.
    answers: u64,
    /// The last answer at which the tip is known to have been unchanged since its
    /// tag was learned. Answers up to it are of this tip and of none after it.
    unchanged_until: u64,
}

#[derive(Clone, Copy, Debug)]
struct EndedEpoch {
    epoch: Epoch,
    /// When it ceased to keep answers fresh.
    at: Moment,
    /// [`Epochs::unchanged_until`] at its end.
    unchanged_until: u64,
    /// When its live answers are known to have been unchanged.
    live: UnchangedSpan,
}

/// A block that was seen in two epochs: both have the same chain up to it.
#[derive(Clone, Copy, Debug)]
struct Link {
    from: Epoch,
    to: Epoch,
    height: u32,
}

impl Epochs {
    pub(super) const fn present(&self) -> Epoch {
        self.present
    }

    pub(super) const fn answers(&self) -> u64 {
        self.answers
    }

    /// Counts an answer; it may prove that the tip was unchanged up to an earlier
    /// one.
    pub(super) fn count_answer(&mut self, proves_unchanged_until: Option<u64>) {
        if let Some(until) = proves_unchanged_until {
            self.unchanged_until = self.unchanged_until.max(until);
        }
        self.answers += 1;
    }

    /// Ends the present epoch and begins the next.
    pub(super) fn end(&mut self, at: Moment, live: UnchangedSpan) {
        let ended = EndedEpoch {
            epoch: self.present,
            at,
            unchanged_until: self.unchanged_until,
            live,
        };
        push_bounded(&mut self.ended, ended, ENDED);
        self.present += 1;
    }

    fn ended(&self, epoch: Epoch) -> Option<EndedEpoch> {
        let ended = self.ended.binary_search_by_key(&epoch, |ended| ended.epoch);
        self.ended.get(ended.ok()?).copied()
    }

    /// When an epoch ended; `None` for the present one, and the clock's beginning
    /// for one that is no longer remembered.
    pub(super) fn ended_at(&self, epoch: Epoch) -> Option<Moment> {
        if epoch == self.present {
            return None;
        }
        let ended = self.ended(epoch);
        Some(ended.map_or(Moment::default(), |ended| ended.at))
    }

    /// When live answers of an epoch that has ended are known to have been
    /// unchanged.
    pub(super) fn live_span(&self, epoch: Epoch) -> Option<UnchangedSpan> {
        self.ended(epoch).map(|ended| ended.live)
    }

    /// Whether an answer was certainly of an epoch, which has ended. The body of an
    /// answer may be of a later tip than its tag; a later request that finds the
    /// same tag proves that it is not.
    pub(super) fn is_certain(&self, epoch: Epoch, answer: u64) -> bool {
        self.ended(epoch)
            .is_some_and(|ended| answer <= ended.unchanged_until)
    }

    /// Notes that a block of an earlier epoch was seen in the present one.
    pub(super) fn link(&mut self, from: Epoch, height: u32) {
        let to = self.present;
        push_bounded(&mut self.links, Link { from, to, height }, LINKS);
    }

    /// Whether an epoch has the same chain as the present one up to a height.
    pub(super) fn is_linked(&self, epoch: Epoch, height: u32) -> bool {
        if epoch == self.present {
            return true;
        }
        let is_present_linked = self
            .links
            .back()
            .is_some_and(|link| link.to == self.present);
        is_present_linked && self.linked(epoch, height).contains(&self.present)
    }

    /// The epochs that have the same chain as one up to a height; itself is the
    /// first.
    pub(super) fn linked(&self, epoch: Epoch, height: u32) -> Vec<Epoch> {
        if epoch == NO_EPOCH {
            return Vec::new();
        }
        let mut linked = vec![epoch];
        for link in self.links.iter().filter(|link| link.height >= height) {
            if linked.contains(&link.from) && !linked.contains(&link.to) {
                linked.push(link.to);
            }
        }
        linked
    }
}

/// Pushes to the back of a queue that holds no more than `most`.
pub(super) fn push_bounded<T>(queue: &mut VecDeque<T>, value: T, most: usize) {
    queue.push_back(value);
    if queue.len() > most {
        queue.pop_front();
    }
}
