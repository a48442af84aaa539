//! Responses of other replicas, before a fetch, and what is fetched for them
//! ([`SharedTier`]).
//!
//! A block's response is looked up under the key by which it is requested. If that has
//! the block's hash, what is fetched is stored under the height as well, so that it is
//! found by both.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};

use super::lookup::own_key;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::route::Route;
use crate::shared::{FillTicket, PeekedEntry, SharedAnswer, SharedResponse, SharedTier};
use crate::sync::lock;
use crate::upstream::{QueueWatch, RequestPriority};

/// The ticket of a fetch, if it has one; and what has taken the place of its request.
#[derive(Default)]
pub(super) struct HeldTicket {
    ticket: OnceLock<FillTicket>,
    replaced: Mutex<Option<SharedResponse>>,
}

/// A queued request for a key, which has a ticket.
pub(super) struct QueuedFetch<'f> {
    fill: &'f Fill,
    tier: &'f Arc<SharedTier>,
    key: &'f Key,
    priority: RequestPriority,
    held: &'f HeldTicket,
}

impl QueueWatch for QueuedFetch<'_> {
    /// This fetch is not under way yet: other replicas are not to wait for it, and one of
    /// them may be sooner.
    fn replaced(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        if let Some(ticket) = self.held.ticket.get() {
            ticket.unlock();
        }
        Box::pin(async move {
            let own_of = |stored: &StoredResponse| self.fill.stored_key(self.key, stored);
            let found = self
                .tier
                .await_queued(self.key, self.priority, &own_of)
                .await;
            *lock(&self.held.replaced) = Some(found);
        })
    }
}

impl Fill {
    /// What may take the place of a request for a key while it is queued, if it has a
    /// ticket.
    pub(super) fn queued_fetch<'f>(
        &'f self,
        key: &'f Key,
        priority: RequestPriority,
        held: &'f HeldTicket,
    ) -> Option<QueuedFetch<'f>> {
        held.ticket.get()?;
        Some(QueuedFetch {
            fill: self,
            tier: self.tier.as_ref()?,
            key,
            priority,
            held,
        })
    }

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
        let ticket = match tier.look_up(key, priority, &own_of).await {
            SharedAnswer::Have(found) => return Ok(self.take_shared(route, found)),
            SharedAnswer::Fetch(ticket) => ticket,
        };
        let ticket = ticket.map(|ticket| held.ticket.get_or_init(|| ticket));
        let found = fetch.await;
        let replaced = lock(&held.replaced).take();
        if let Some(replaced) = replaced {
            return Ok(self.take_shared(route, replaced));
        }
        self.share(key, route, ticket, &found);
        found
    }

    /// Takes a response of another replica into memory.
    fn take_shared(&self, route: &Route, found: SharedResponse) -> FillAnswer {
        let SharedResponse {
            own,
            mut stored,
            sequence,
        } = found;
        // The upstream was asked no earlier.
        let sent = stored.received.before(stored.took);
        self.compare_with_stored(&own, &mut stored, sent);
        let stored = Arc::new(*stored);
        self.keep_encodings(&own, &stored);
        self.note_transactions(&own, route, &stored);
        if self.cache.store().insert(own.clone(), stored.clone()) {
            self.keep_on_disk(&own, &stored, sequence);
        }
        FillAnswer {
            // Its blocks may have become final.
            stored: self.fresh(&own).unwrap_or(stored),
            from: AnswerSource::Shared,
        }
    }

    /// Stores what was fetched for other replicas, or lets them fetch.
    fn share(&self, key: &Key, route: &Route, ticket: Option<&FillTicket>, found: &FillResult) {
        match (ticket, found) {
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
