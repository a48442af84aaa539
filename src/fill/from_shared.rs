//! Responses of other replicas, before a fetch, and what is fetched for them
//! ([`SharedTier`](crate::shared::SharedTier)).
//!
//! A block's response is looked up under the key by which it is requested. If that has
//! the block's hash, what is fetched is stored under the height as well, so that it is
//! found by both.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::lookup::own_key;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::route::Route;
use crate::shared::{FillTicket, PeekedEntry, SharedAnswer, SharedResponse, SharedTier};
use crate::sync::lock;
use crate::upstream::{Priority, QueueWatch, RequestPriority};

/// The ticket of a fetch, if it has one.
#[derive(Default)]
pub(super) struct HeldTicket(Mutex<HeldState>);

#[derive(Default)]
struct HeldState {
    ticket: Option<Arc<FillTicket>>,
    /// When the request was queued first.
    queued: Option<Instant>,
    /// Whether it has left the queue once for another replica's fetch.
    has_left: bool,
    /// Why the request was not sent, if it was not.
    replaced: Option<ReplacedBy>,
}

/// What makes a request unnecessary that was queued.
enum ReplacedBy {
    /// Another replica's response.
    Answer(SharedResponse),
    /// Another replica's fetch.
    Fetch,
}

impl HeldTicket {
    fn ticket(&self) -> Option<Arc<FillTicket>> {
        lock(&self.0).ticket.clone()
    }

    fn hold(&self, ticket: Option<FillTicket>) {
        let new = ticket.map(Arc::new);
        let old = std::mem::replace(&mut lock(&self.0).ticket, new);
        // It may give up its lock.
        drop(old);
    }

    fn take_replaced(&self) -> Option<ReplacedBy> {
        lock(&self.0).replaced.take()
    }
}

/// A queued request for a key, which has a ticket.
pub(super) struct QueuedFetch<'f> {
    fill: &'f Fill,
    tier: &'f Arc<SharedTier>,
    key: &'f Key,
    priority: RequestPriority,
    held: &'f HeldTicket,
}

/// A request that is ahead of clients may be refused: nobody is to wait for it.
fn locks(priority: RequestPriority) -> bool {
    priority.priority != Priority::LookAhead
}

impl QueueWatch for QueuedFetch<'_> {
    fn max_wait(&self, queue_timeout: Duration) -> Duration {
        let state = lock(&self.held.0);
        match state.queued.filter(|_| state.has_left) {
            Some(queued) => queue_timeout.saturating_sub(queued.elapsed()),
            None => queue_timeout,
        }
    }

    /// Lets other replicas fetch: this fetch is not under way yet.
    fn queued(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        lock(&self.held.0).queued.get_or_insert_with(Instant::now);
        Box::pin(async move {
            if let Some(ticket) = self.held.ticket() {
                ticket.unlock_at_once().await;
            }
        })
    }

    /// Looks once more: another replica may have the response by now, or fetch it.
    fn is_needed(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let (key, priority) = (self.key, self.priority);
        let own_of = move |stored: &StoredResponse| self.fill.stored_key(key, stored);
        Box::pin(async move {
            let of = (priority.client, locks(priority));
            let found = self.tier.look_up_at_once(key, of, &own_of).await;
            let mut state = lock(&self.held.0);
            let replaced = match found {
                // Without an answer of the engine, what was fetched can still be stored.
                Some(SharedAnswer::Fetch(None)) => None,
                Some(SharedAnswer::Fetch(ticket)) => {
                    drop(state);
                    self.held.hold(ticket);
                    return true;
                }
                Some(SharedAnswer::Have(found)) => Some(ReplacedBy::Answer(found)),
                // It has waited for a fetch before, which did not help.
                None if state.has_left => None,
                None => {
                    state.has_left = true;
                    Some(ReplacedBy::Fetch)
                }
            };
            state.replaced = replaced;
            state.replaced.is_none()
        })
    }
}

impl Fill {
    /// What watches a request for a key while it is queued, if it has a ticket.
    pub(super) fn queued_fetch<'f>(
        &'f self,
        key: &'f Key,
        priority: RequestPriority,
        held: &'f HeldTicket,
    ) -> Option<QueuedFetch<'f>> {
        held.ticket()?;
        let tier = self.tier.as_ref()?;
        Some(QueuedFetch {
            fill: self,
            tier,
            key,
            priority,
            held,
        })
    }

    /// What another replica has for a key, which is in memory from then on; or what
    /// `fetch` gives, which is stored for the others with the ticket. It is called twice
    /// where the first request was queued, and was not sent since another replica had
    /// begun to fetch.
    pub(super) async fn share_or_fetch<F: Future<Output = FillResult> + Send>(
        &self,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
        (held, fetch): (&HeldTicket, impl Fn() -> F + Send),
    ) -> FillResult {
        let Some(tier) = &self.tier else {
            return fetch().await;
        };
        if route.cache.mode == Mode::Chain {
            // Without a tip, little of what others have can be used.
            self.chain.first_probe(route.cache.tip, FIRST_PROBE).await;
        }
        let own_of = |stored: &StoredResponse| self.stored_key(key, stored);
        let of = (priority.client, locks(priority));
        let mut answer = tier.look_up(key, of, &own_of).await;
        loop {
            match answer {
                SharedAnswer::Have(found) => return Ok(self.take_shared(route, found)),
                SharedAnswer::Fetch(ticket) => held.hold(ticket),
            }
            let found = fetch().await;
            match held.take_replaced() {
                None => {
                    self.share(key, route, held, &found);
                    return found;
                }
                Some(ReplacedBy::Answer(replaced)) => answer = SharedAnswer::Have(replaced),
                Some(ReplacedBy::Fetch) => answer = tier.look_up(key, of, &own_of).await,
            }
        }
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
    fn share(&self, key: &Key, route: &Route, held: &HeldTicket, found: &FillResult) {
        match (held.ticket(), found) {
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
