//! Asking for the blocks that tell whether what is stored still stands: after a new tip,
//! after an answer that contradicts what is known, and after a start with stored answers.
//! Which blocks, and what follows, is the ledger's matter ([`crate::chain::ledger`]).

use std::sync::Arc;

use tokio::time::Instant;

use super::{Answer, AnswerSource, ClientRequest, Fill};
use crate::cache::key::Key;
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::chain::{Progress, TipNumber};
use crate::collapse::Wait;
use crate::upstream::{Priority, RequestPriority};

impl Fill {
    /// Asks for blocks until a check of a tip has ended, or one has no answer: then the next
    /// call, after the next status, asks for the same one again. The answers go to the ledger
    /// as those of clients' requests do. Its priority is that of a revalidation, since the
    /// budget reserved for statuses is for their pace.
    pub async fn check_blocks(self: &Arc<Self>, tip: TipNumber) {
        let chain = self.chain.tip(tip);
        let Ok(_alone) = chain.state.checking.try_lock() else {
            return;
        };
        while let Some(check) = chain.read(|ledger| ledger.check()) {
            let Some(key) = self.block_key(tip, check.0) else {
                let now = self.clock.now();
                return chain.change(|ledger| ledger.cannot_check(now));
            };
            if !self.ask_block(&key).await || chain.read(|ledger| ledger.check()) == Some(check) {
                return chain.advance(Progress::Unanswered);
            }
        }
    }

    /// The same, while the caller goes on.
    pub(crate) fn check_blocks_aside(self: &Arc<Self>, tip: TipNumber) {
        let fill = self.clone();
        tokio::spawn(async move { fill.check_blocks(tip).await });
    }

    /// Requests a key that shows a block. Returns whether there was an answer.
    async fn ask_block(self: &Arc<Self>, key: &Key) -> bool {
        let priority = RequestPriority {
            purpose: "block-check",
            ..RequestPriority::own(Priority::Revalidation)
        };
        let what = (key.clone().into(), Forward::Request, None);
        let fetch = self.fetch_for(ClientRequest::own(), what, priority);
        let wait = Wait::until(Instant::now() + self.longest_wait(key));
        // Another's fetch of the key may have found it in memory.
        matches!(fetch.share(wait).await, Ok(Answer::Stored(found)) if matches!(found.from, AnswerSource::Upstream { .. }))
    }

    /// The key that shows the block at a height by its first item, which no client's request
    /// waits for; on one of a tip's routes that list whole blocks.
    fn block_key(&self, tip: TipNumber, height: u32) -> Option<Key> {
        let mut routes = self.routes.routes().iter();
        routes.find_map(|source| {
            let is_of_tip = source.cache.mode == Mode::Chain && source.cache.tip == tip;
            source.key_of_block(height, 1, 0).filter(|_| is_of_tip)
        })
    }
}
