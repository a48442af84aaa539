//! The search for the fork point after a change of tip: a status does not show
//! whether blocks far below the tip were replaced, and final responses that mention
//! them are not fetched again.

use std::sync::Arc;

use super::collapsed::Anew;
use super::{AnswerSource, Fill};
use crate::cache::key::Key;
use crate::chain::TipNumber;
use crate::chain::ledger::{ForkCheck, SeedCheck};
use crate::collapse::WatchLevel;
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
            if !self.check_seed(tip).await {
                self.chain.seed_check_failed(tip);
                return;
            }
        }
        self.chain.seed_checked(tip);
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
            let key = self.block_key(tip, height).map(|(key, _)| key);
            if !self.check_block(key).await {
                self.chain.fork_check_failed(tip);
                return;
            }
        }
    }

    /// Requests the highest block that an earlier run knew, and lower ones while they
    /// turn out to be orphaned. Returns whether each had an answer.
    async fn check_seed(self: &Arc<Self>, tip: TipNumber) -> bool {
        loop {
            match self.chain.next_seed_check(tip, self.clock.now()) {
                SeedCheck::None => return true,
                SeedCheck::Orphaned(from) => {
                    self.purge_from(tip, from).await;
                    return true;
                }
                SeedCheck::At(height) => {
                    if !self.check_block(self.first_item_key(tip, height)).await {
                        return false;
                    }
                }
            }
        }
    }

    /// Has the ledger know which block is at a height, by a request for a key that shows
    /// it. Returns whether the ledger knows it.
    async fn check_block(self: &Arc<Self>, key: Option<Key>) -> bool {
        let Some(key) = key else {
            return false;
        };
        if self.recent_failure(&key).is_some() {
            return false;
        }
        let priority = RequestPriority::own(Priority::Revalidation).check(Check::Fork);
        // Another exchange for the key may have been under way, which has found the block
        // in memory.
        for _ in 0..2 {
            match self.exchange(&WatchLevel, &key, priority, Anew::Yes).await {
                Ok(found) => {
                    self.failures.forget(&key);
                    if matches!(found.from, AnswerSource::Upstream { .. }) {
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
}
