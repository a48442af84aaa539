//! Answers of the status path: the tip's height and its tag.

use super::tags::Tag;
use super::{Change, Epoch, KnownTip, Ledger, LedgerUpdate, RequestStart, as_hash, bare};
use crate::clock::Moment;
use crate::pages::Block;

/// What the status path reported.
#[derive(Debug, Default)]
pub(super) struct StatusPath {
    pub(super) last: Option<Status>,
    /// The endpoint that reported it.
    endpoint: Option<u16>,
    /// Whether another endpoint reports the next one.
    endpoint_changed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Status {
    pub(super) height: u32,
    pub(super) tag: Option<Tag>,
    /// The revision when it was requested.
    pub(super) requested: u64,
    /// The revision after it was applied.
    pub(super) applied: u64,
    /// The epoch then.
    pub(super) epoch: Epoch,
}

impl Ledger {
    /// Sets which endpoint reports the next status. A lower tip than that of
    /// another endpoint orphans nothing: this endpoint is behind.
    pub(crate) fn set_status_endpoint(&mut self, endpoint: u16) {
        let status = &mut self.status;
        status.endpoint_changed = status.endpoint.is_some_and(|before| before != endpoint);
        status.endpoint = Some(endpoint);
    }

    /// Applies an answer of the status path: the tip's height, unless the index is
    /// empty, and its tag. `None` where a higher block was seen meanwhile; then the
    /// status has to be requested again.
    pub(crate) fn status(
        &mut self,
        start: RequestStart,
        height: Option<u32>,
        tag: Option<&[u8]>,
        now: Moment,
    ) -> Option<LedgerUpdate> {
        let tag = tag.map(bare);
        self.count_answer(start, tag);
        let endpoint_changed = std::mem::take(&mut self.status.endpoint_changed);
        let change = self.status_change(start, height, tag, endpoint_changed)?;
        let before = self.status.last.as_ref();
        let is_other =
            before.is_some_and(|last| height != Some(last.height) || tag != last.tag.as_deref());
        let applied = before.map(|last| last.applied);
        let reorg = self.reorgs.last();
        let reorg = reorg.filter(|reorg| applied < Some(reorg.revision));
        let reorg_epoch = reorg.map(|reorg| reorg.epoch);
        let orphaned = self.apply(change, now);
        if endpoint_changed {
            // Another endpoint may have written more or less of the same tip.
            self.live_checks.restart(now, self.bounds.write_time);
        }
        if is_other || orphaned.is_some() {
            self.search_fork(height.unwrap_or(0), self.epoch());
        } else if let Some(epoch) = reorg_epoch {
            // An answer showed a reorg. Blocks seen since then are of the new chain.
            self.search_fork(u32::MAX, epoch);
        }
        self.revision += 1;
        self.tip = height.map(|height| KnownTip {
            height,
            revision: self.revision,
            certain: true,
        });
        if let Some(tag) = tag {
            self.tags.set(tag);
        }
        if let Some((height, hash)) = height.zip(tag.and_then(as_hash)) {
            self.record(Block { height, hash }, false, self.epoch());
        }
        self.status.last = Some(Status {
            height: height.unwrap_or(0),
            tag: tag.map(Box::from),
            requested: start.revision,
            applied: self.revision,
            epoch: self.epoch(),
        });
        Some(LedgerUpdate {
            epoch: self.epoch(),
            tip_height: height,
            orphaned,
            needs_probe: false,
            confirms_tip: true,
        })
    }

    /// What a status changes; `None` where it has to be requested again.
    fn status_change(
        &mut self,
        start: RequestStart,
        height: Option<u32>,
        tag: Option<&[u8]>,
        endpoint_changed: bool,
    ) -> Option<Change> {
        let last = self.status.last.as_ref();
        // A request that began before the first tip was known may be of the tip
        // before it, even where an answer has shown a block as high.
        let mut change = Change {
            begins_epoch: height.is_some() && (last.is_none() || self.tip.is_none()),
            ..Change::default()
        };
        match (self.tip, height) {
            (None, _) => {}
            // Nothing of the other endpoint's chain is known to be orphaned, but
            // requests from now on are answered from another tip.
            (Some(tip), height) if endpoint_changed => {
                change.begins_epoch |= height != Some(tip.height) || tag != self.tags.current();
            }
            // The index was emptied.
            (Some(_), None) => change.orphan(0),
            (Some(tip), Some(height)) => {
                if height < tip.height {
                    if start.revision < tip.revision {
                        return None;
                    }
                    change.orphan(height + 1);
                }
                // Unless an answer's tag showed the new tip already.
                let known = !tip.certain && tag.is_some() && self.tags.current() == tag;
                change.begins_epoch |= height > tip.height && !known;
                // Two tips of one height: one has replaced the other.
                if let Some(last) = last
                    && last.height == height
                    && let (Some(before), Some(tag)) = (&last.tag, tag)
                    && **before != *tag
                {
                    change.orphan(height);
                }
            }
        }
        if let Some((height, hash)) = height.zip(tag.and_then(as_hash))
            && self.blocks.contradicts(Block { height, hash })
        {
            change.orphan(height);
        }
        let is_false_alarm = self.tags.are_of_tip()
            && self.tags.current() != tag
            && last.is_some_and(|last| height == Some(last.height) && last.tag.as_deref() == tag);
        if is_false_alarm {
            // The answers of the epoch that the false alarm began are still good.
            change.begins_epoch = false;
            self.tags.count_false_alarm();
        }
        let before = last.and_then(|last| last.tag.as_deref());
        if let (Some(before), Some(tag)) = (before, tag) {
            change.begins_epoch |= before != tag && self.tags.current() != Some(tag);
        }
        Some(change)
    }
}
