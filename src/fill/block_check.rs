//! Asking for the blocks that tell whether what is stored still stands: after a new tip,
//! after an answer that contradicts what is known, and after a start with stored answers.
//! Which blocks, and what follows, is the ledger's matter ([`crate::chain::ledger`]).

use std::sync::Arc;

use super::collapsed::Anew;
use super::{AnswerSource, Fill};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::TipNumber;
use crate::collapse::WatchLevel;
use crate::route::Route;
use crate::upstream::{Check, Priority, RequestPriority};

/// Windows up to this many items are fetched whole to see their block, since clients
/// will request them. Of larger windows one item is fetched.
const MOST_ITEMS: u64 = 100;

impl Fill {
    /// Asks for blocks until a check of a tip has ended, or one has no answer: then the next
    /// call, after the next status, asks for the same one again. The answers go to the ledger
    /// as those of clients' requests do. Its priority is that of a revalidation, since the
    /// budget reserved for statuses is for their pace.
    pub async fn check_blocks(self: &Arc<Self>, tip: TipNumber) {
        let Some(_alone) = self.chain.lock_check(tip) else {
            return;
        };
        while let Some(check) = self.chain.block_check(tip) {
            let Some((key, _)) = self.block_key(tip, check.0) else {
                return self.chain.cannot_check(tip, self.clock.now());
            };
            if !self.ask_block(&key).await || self.chain.block_check(tip) == Some(check) {
                return self.chain.check_unanswered(tip);
            }
        }
    }

    /// The same, while the caller goes on.
    pub(super) fn check_blocks_aside(self: &Arc<Self>, tip: TipNumber) {
        let fill = self.clone();
        tokio::spawn(async move { fill.check_blocks(tip).await });
    }

    /// Requests a key that shows a block. Returns whether there was an answer.
    async fn ask_block(self: &Arc<Self>, key: &Key) -> bool {
        if self.recent_failure(key).is_some() {
            return false;
        }
        let priority = RequestPriority::own(Priority::Revalidation).check(Check::Block);
        // Another exchange for the key may have been under way, which was sent too early or
        // has found the block in memory.
        for _ in 0..2 {
            match self.exchange(&WatchLevel, key, priority, Anew::Yes).await {
                Ok(found) => {
                    self.failures.forget(key);
                    if matches!(found.from, AnswerSource::Upstream { .. }) {
                        return true;
                    }
                }
                Err(failure) => {
                    self.failures.fail(key, &failure, self.clock.now());
                    return false;
                }
            }
        }
        false
    }

    /// The key that shows the block at a height, and its route: one of those of a tip
    /// that list whole blocks.
    pub(super) fn block_key(&self, tip: TipNumber, height: u32) -> Option<(Key, &Route)> {
        let mut routes = self.routes.routes().iter();
        routes.find_map(|source| {
            let size = u64::from(source.chain.window?.get());
            source.chain.segments.block?;
            if source.cache.mode != Mode::Chain || source.cache.tip != tip {
                return None;
            }
            let is_window = size <= MOST_ITEMS && self.are_pages_cut(source.number);
            let items = if is_window { size } else { 1 };
            Some((source.key_of_block(height, items, 0)?, source))
        })
    }
}
