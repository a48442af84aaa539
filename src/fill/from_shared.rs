//! Responses of other replicas, before a fetch, and what is fetched for them
//! ([`SharedTier`](crate::shared::SharedTier)).
//!
//! A block's response is looked up under the key by which it is requested. If that has
//! the block's hash, what is fetched is stored under the height as well, so that it is
//! found by both.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use super::lookup::own_key;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::route::Route;
use crate::shared::{FillTicket, PeekedEntry, SharedAnswer};
use crate::upstream::{Priority, RequestPriority};

/// The ticket of a fetch, if it has one.
#[derive(Default)]
pub(super) struct HeldTicket(OnceLock<FillTicket>);

impl HeldTicket {
    /// Lets other replicas fetch: this fetch is not under way yet.
    pub(super) fn unlock(&self) {
        if let Some(ticket) = self.0.get() {
            ticket.unlock();
        }
    }
}

impl Fill {
    /// What another replica has for a key, which is in memory from then on; or what
    /// `fetch` gives, which is stored for the others with the ticket.
    pub(super) async fn share_or_fetch(
        &self,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
        (held, fetch): (&HeldTicket, impl Future<Output = FillResult> + Send),
    ) -> FillResult {
        let Some(tier) = &self.tier else {
            return fetch.await;
        };
        if route.cache.mode == Mode::Chain {
            // Without a tip, little of what others have can be used.
            self.chain.first_probe(route.cache.tip, FIRST_PROBE).await;
        }
        let own_of = |stored: &StoredResponse| self.stored_key(key, stored);
        // A request that is ahead of clients may be refused: nobody is to wait for it.
        let locks = priority.priority != Priority::LookAhead;
        let ticket = match tier.look_up(key, (priority.client, locks), &own_of).await {
            SharedAnswer::Have {
                own,
                mut stored,
                sequence,
            } => {
                // The upstream was asked no earlier.
                let sent = stored.received.before(stored.took);
                self.compare_with_stored(&own, &mut stored, sent);
                let stored = Arc::new(*stored);
                self.keep_encodings(&own, &stored);
                self.note_transactions(&own, route, &stored);
                if self.cache.store().insert(own.clone(), stored.clone()) {
                    self.keep_on_disk(&own, &stored, sequence);
                }
                return Ok(FillAnswer {
                    // Its blocks may have become final.
                    stored: self.fresh(&own).unwrap_or(stored),
                    from: AnswerSource::Shared,
                });
            }
            SharedAnswer::Fetch(ticket) => ticket,
        };
        let ticket = ticket.map(|ticket| held.0.get_or_init(|| ticket));
        let found = fetch.await;
        match (ticket, &found) {
            (Some(ticket), Ok(found)) => {
                if found.from == (AnswerSource::Upstream { stored: true }) {
                    let own = own_key(key, route, &found.stored);
                    ticket.put(key, &own, &found.stored);
                } else {
                    ticket.not_stored();
                }
            }
            // The next one may succeed.
            (Some(ticket), Err(_)) => ticket.unlock(),
            (None, _) => {}
        }
        found
    }

    /// What other replicas have for a key, for `/explain`; or why that is not known.
    /// `None` if there is no engine.
    pub(crate) async fn peek_shared(
        &self,
        key: &Key,
    ) -> Option<Result<Option<PeekedEntry>, String>> {
        let own_of = |stored: &StoredResponse| self.stored_key(key, stored);
        let peeked = self.tier.as_ref()?.peek(key, &own_of).await;
        Some(peeked.map_err(|error| error.to_string()))
    }
}
