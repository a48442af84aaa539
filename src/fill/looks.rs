//! Looking at blocks after a change of tip: a status does not tell that blocks
//! far below the tip were replaced, and what is final is asked for no more.

use std::sync::Arc;

use super::Fill;
use crate::chain::ledger::Look;
use crate::collapse::WatchLevel;
use crate::upstream::{Priority, RequestPriority};

impl Fill {
    /// Looks at a block that was known before the last change of a tip, and at
    /// lower ones for as long as they turn out to be undone. What was undone is
    /// purged. Ends at once where there was no change, where nothing was known,
    /// where no route of the tip lists a block's items, and while another does
    /// the same. Where a look fails it is repeated when this is called again, but
    /// not while its failure is remembered.
    ///
    /// The request is the one that proves recent entries (`fill::confirm`):
    /// whoever comes second waits for the other's or has no need of it. It has
    /// the priority of a revalidation, since it asks whether what is stored
    /// still holds; what is kept of the budget for probes is for their pace.
    pub async fn look_at_blocks(self: &Arc<Self>, tip: u16) {
        let Some(_looking) = self.chain.look(tip) else {
            return;
        };
        if self.block_key(tip, 0).is_none() {
            return;
        }
        let wish = RequestPriority::own(Priority::Revalidation);
        loop {
            let height = match self.chain.next_look(tip, self.clock.now()) {
                Look::Nowhere => return,
                Look::At(height) => height,
                Look::Undone(from) => {
                    self.forget(tip, from);
                    return;
                }
            };
            let Some((key, _)) = self.block_key(tip, height) else {
                return;
            };
            if self.remembered(&key).is_some() {
                self.chain.look_failed(tip);
                return;
            }
            // What comes of it, the ledger has learned.
            match self.exchange(&WatchLevel, &key, wish, true).await {
                Ok(_) => self.lapses.forget(&key),
                Err(failure) => {
                    self.lapses.fail(&key, &failure, self.clock.now());
                    self.chain.look_failed(tip);
                    return;
                }
            }
        }
    }
}
