//! The search for the fork point after a change of tip: a status does not show
//! whether blocks far below the tip were replaced, and final responses that mention
//! them are not fetched again.
//!
//! Where replicas share an engine, one of them requests the block, and the others take its
//! response if that confirms what they know. It cannot refute it: a response that shows
//! another block, or that is not certainly of the present tip's chain, is not used, and the
//! replica requests the block itself. So each finds a reorg by its own knowledge, at most
//! `shared.fill_wait` later than alone.

use std::sync::Arc;

use super::collapsed::ExchangeFrom;
use super::{AnswerSource, Fill};
use crate::cache::StoredResponse;
use crate::chain::TipNumber;
use crate::chain::ledger::{ForkCheck, SeedCheck};
use crate::collapse::WatchLevel;
use crate::pages::Page;
use crate::upstream::{Check, Priority, RequestPriority};

impl Fill {
    /// Requests a block that was known before the last change of a tip, and lower ones
    /// while they turn out to be orphaned. What mentions orphaned blocks is purged.
    /// Ends at once where the tip did not change, no block was known, no route of the
    /// tip lists a block's items, or another search runs. After a failed request the
    /// next call continues, but not before the failure's backoff is over.
    ///
    /// The request also revalidates recent responses (`fill::anchor`), and is shared
    /// with it. Its priority is that of a revalidation, since the budget reserved for
    /// probes is for their pace.
    pub async fn search_fork_point(self: &Arc<Self>, tip: TipNumber) {
        let Some(_search) = self.chain.lock_fork_search(tip) else {
            return;
        };
        if self.block_key(tip, 0).is_some() {
            self.find_fork_point(tip).await;
            self.check_seed(tip).await;
        }
        self.chain.settle_seed(tip);
    }

    async fn find_fork_point(self: &Arc<Self>, tip: TipNumber) {
        loop {
            let height = match self.chain.next_fork_check(tip, self.clock.now()) {
                ForkCheck::None => return,
                ForkCheck::At(height) => height,
                ForkCheck::Orphaned(from) => {
                    self.purge_from(tip, from).await;
                    return;
                }
            };
            if !self.check_block(tip, height).await {
                self.chain.fork_check_failed(tip);
                return;
            }
        }
    }

    /// Requests the highest block that an earlier run knew, and lower ones while they
    /// turn out to be orphaned.
    async fn check_seed(self: &Arc<Self>, tip: TipNumber) {
        loop {
            match self.chain.next_seed_check(tip, self.clock.now()) {
                SeedCheck::None => return,
                SeedCheck::Orphaned(from) => {
                    self.purge_from(tip, from).await;
                    return;
                }
                SeedCheck::At(height) => {
                    if !self.check_block(tip, height).await {
                        self.chain.seed_check_failed(tip);
                        return;
                    }
                }
            }
        }
    }

    /// Has the ledger know which block is at a height: by a request, or by another
    /// replica's answer to the same request if that shows, under the present tip, the block
    /// that is known here. Returns whether the ledger knows it.
    async fn check_block(self: &Arc<Self>, tip: TipNumber, height: u32) -> bool {
        use ExchangeFrom::{ReplicasAnew, UpstreamAnew};
        let Some((key, _)) = self.block_key(tip, height) else {
            return false;
        };
        if self.recent_failure(&key).is_some() {
            return false;
        }
        let priority = RequestPriority::own(Priority::Revalidation).check(Check::Fork);
        // Another exchange for the key may have been under way, which has not asked the
        // upstream.
        for from in [ReplicasAnew, UpstreamAnew, UpstreamAnew] {
            match self.exchange(&WatchLevel, &key, priority, from).await {
                Ok(found) => {
                    self.failures.forget(&key);
                    let is_ingested = matches!(found.from, AnswerSource::Upstream { .. });
                    if is_ingested || self.confirm_block(height, &found.stored) {
                        return true;
                    }
                }
                Err(failure) => {
                    self.failures.fail(&key, &failure, self.clock.now());
                    return false;
                }
            }
        }
        false
    }

    /// Has the ledger know that a block is in the chain, if a stored response shows it.
    fn confirm_block(&self, height: u32, stored: &StoredResponse) -> bool {
        let mut blocks = stored.page().map_or(&[][..], Page::blocks).iter();
        let block = blocks.find(|block| block.height == height);
        let shown = block.zip(stored.stamp());
        shown.is_some_and(|(block, stamp)| self.chain.confirm_block(stamp, *block))
    }
}
