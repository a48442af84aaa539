//! Storing an answer of the API on routes whose fields ordgate prepares: in mode `chain` it is
//! applied to the chain's ledger first, and stored with the finality class and the epoch that
//! follow; in mode `override` for the time of its status. JSON was read whole by then. An answer
//! of any content type ([`Fetch::begin`]) may still be coming; it is [`Fetch::complete`] later.
//! Here are also the requests for blocks by which the ledger learns whether what is stored still stands.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use tokio::time::Instant;

use super::exchange::{Fetched, Head};
use super::{Answer, AnswerSource, ClientRequest, Fetch, Fill, FillAnswer};
use crate::cache::directives::Directives;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::purge::{CheckedPurge, PurgeSubject};
use crate::cache::validator::etag;
use crate::cache::{StoredFields, StoredResponse};
use crate::chain::freshness::Epoch;
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, Progress, TipNumber, TransactionLocation};
use crate::collapse::Wait;
use crate::pages::{BodyIndex, Hash, Page, hash};
use crate::route::Route;
use crate::route::canonical::{BlockReference, block, is_whole_list, page as page_of, segment};
use crate::upstream::{Priority, RequestPriority};

impl Fetch {
    /// In mode `chain`: applies an answer to the ledger, and stores it, under the block's height
    /// where the request was by hash and the answer shows the height. What is not of the present
    /// tip is passed on. `None` if it was purged meanwhile.
    pub(super) async fn ingest(
        &self,
        head: Head,
        body: Bytes,
        index: BodyIndex,
    ) -> Option<Fetched> {
        let (fill, key, route) = (&self.fill, self.key(), self.route());
        let (tip, status) = (route.cache.tip, head.status);
        let (target, segments) = (key.target(), &route.chain.segments);
        let subject = (
            segments.block.and_then(|at| block(target, at)),
            segments.hex64.and_then(|at| hash(segment(target, at)?)),
        );
        let index = match status {
            StatusCode::OK => index,
            _ => BodyIndex::default(),
        };
        let (class, heights) = class_and_heights(subject, status, &index);
        let purgeable = PurgeSubject {
            key,
            blocks: heights.map(|heights| (tip, heights)),
            body: &body,
        };
        // Before the purge that the answer itself may cause.
        if fill.cache.store().fetch_was_purged(&purgeable, head.purge) {
            return None;
        }
        let page = index.page;
        // A block whose whole list is empty was orphaned, if it had items before.
        let is_whole_list = page.as_deref().is_some_and(|page| page.total == 0)
            && page_of(key).is_none_or(|(_, offset)| offset == 0)
            && is_whole_list(key);
        let emptied = heights.filter(|_| class == Class::Absent && is_whole_list);
        let observation = Observation {
            route: route.number,
            blocks: page.as_deref().map_or(&[], |page| &page.blocks),
            empty_block: emptied.map(|(height, _)| height),
            tag: head.fields.get(ETAG).map(HeaderValue::as_bytes),
        };
        let applied = (self.tip()).apply_answer(head.start, observation, head.received);
        if let Some(from) = applied.purge_from {
            fill.purge_from(tip, from).await;
        }
        if applied.asks_block {
            fill.check_blocks_aside(tip);
        }
        // Client errors are stored, so that polling for what the upstream refuses does not take
        // one request each.
        let stored_in = applied.stored_in;
        let stored = StoredResponse {
            page,
            ..self.in_epoch(head, body, (class, heights), stored_in)
        };
        let key = fill.own_key(key, &stored);
        let stored = fill.store(&key, stored, stored_in.is_some());
        Some(Fetched::by_all(Ok(stored)))
    }

    /// What is stored of an answer in mode `chain`, in an epoch unless it is passed on only.
    fn in_epoch(
        &self,
        head: Head,
        body: Bytes,
        named: (Class, Option<(u32, u32)>),
        stored_in: Option<Epoch>,
    ) -> StoredResponse {
        let (fill, tip) = (&self.fill, self.route().cache.tip);
        let epoch = stored_in.unwrap_or(head.start.epoch);
        let stamp = fill.chain.stamp(tip, named, epoch, head.sent);
        let freshness = match stored_in {
            Some(_) => fill.client_freshness(&stamp),
            None => ClientFreshness::Nothing,
        };
        StoredResponse {
            lifetime: stamp.class.lifetime(),
            stamp: Some(stamp),
            ..prepare(head, body, freshness)
        }
    }

    /// What is stored of an answer when its body has come, and whether it is stored then; not if
    /// it does not fit. In mode `override`, that is for as long as its status says; in mode `off`
    /// none is stored. In mode `chain`, nothing is known of its body: it is what the present tip
    /// says.
    pub(super) fn begin(&self, head: Head, (is_empty, fits): (bool, bool)) -> FillAnswer {
        let (route, policy) = (self.route(), &self.route().cache);
        if policy.mode != Mode::Chain {
            let lifetime = policy.times.lifetime(head.status, is_empty);
            let lifetime = lifetime.filter(|_| fits && policy.mode == Mode::Override);
            let freshness = lifetime.map_or(ClientFreshness::Nothing, ClientFreshness::For);
            let stored = StoredResponse {
                lifetime: lifetime.unwrap_or_default(),
                ..prepare(head, Bytes::new(), freshness)
            };
            return FillAnswer::of_upstream(stored, lifetime.is_some());
        }
        let observation = Observation {
            route: route.number,
            tag: head.fields.get(ETAG).map(HeaderValue::as_bytes),
            ..Observation::default()
        };
        let applied = (self.tip()).apply_answer(head.start, observation, head.received);
        let is_known = matches!(head.status, StatusCode::OK | StatusCode::NOT_FOUND);
        let stored_in = applied.stored_in.filter(|_| fits && is_known);
        let named = class_and_heights((None, None), head.status, &BodyIndex::default());
        let stored = self.in_epoch(head, Bytes::new(), named, stored_in);
        FillAnswer::of_upstream(stored, stored_in.is_some())
    }

    /// Stores an answer whose body has come, if it is to be stored and was not purged meanwhile.
    pub(super) fn complete(&self, begun: &FillAnswer, body: Bytes) -> Fetched {
        let mut stored = StoredResponse::clone(&begun.stored);
        stored.body = body;
        if self.is_plain() {
            let (stored, from) = (Arc::new(stored), begun.from);
            let all = self.store(&stored);
            return Fetched::new(Ok(Answer::Stored(FillAnswer { stored, from })), all);
        }
        stored.etag = etag(&stored.body);
        let (store, key) = (self.fill.cache.store(), self.key());
        let is_purged = store.response_was_purged(key, &stored);
        let is_stored = begun.from == AnswerSource::Upstream { stored: true };
        let own = self.fill.store(key, stored, is_stored && !is_purged);
        let all = (!is_purged).then(|| Ok(own.clone()));
        Fetched::new(Ok(Answer::Stored(own)), all)
    }
}

impl Fill {
    /// For how long clients may use a response in mode `chain`.
    pub(super) fn client_freshness(&self, stamp: &ChainStamp) -> ClientFreshness {
        let lifetime = self.chain.tip(stamp.tip).client_lifetime(stamp.class);
        match stamp.class == Class::Final {
            true => ClientFreshness::Immutable(lifetime),
            false => ClientFreshness::For(lifetime),
        }
    }

    /// Stores an answer of the upstream, if it may be stored and is not too large.
    fn store(&self, key: &Key, stored: StoredResponse, may_store: bool) -> FillAnswer {
        let stored = Arc::new(stored);
        let is_stored = may_store && self.take(key, &stored);
        let from = AnswerSource::Upstream { stored: is_stored };
        FillAnswer { stored, from }
    }

    /// Takes a response into memory, and keeps it if that is worth it; returns whether it was not
    /// too large.
    pub(super) fn take(&self, key: &Key, stored: &Arc<StoredResponse>) -> bool {
        let is_stored = self.take_kept(key, stored);
        if is_stored {
            self.keep(key, stored);
        }
        is_stored
    }

    /// Takes a response into memory that is kept already.
    pub(super) fn take_kept(&self, key: &Key, stored: &Arc<StoredResponse>) -> bool {
        self.note_transactions(key, stored);
        self.cache.store().insert(key, stored.clone())
    }

    /// Stores a response as final whose blocks have become final since it was stored.
    pub(crate) fn store_as_final(&self, key: &Key, stored: &StoredResponse) -> Arc<StoredResponse> {
        let lifetime = Class::Final.lifetime();
        let mut stored = stored.clone();
        set_freshness(&mut stored, ClientFreshness::Immutable(lifetime));
        stored.lifetime = lifetime;
        if let Some(stamp) = &mut stored.stamp {
            stamp.class = Class::Final;
        }
        let stored = Arc::new(stored);
        self.take(key, &stored);
        stored
    }

    /// Notes which transactions are in a window of their block.
    fn note_transactions(&self, key: &Key, stored: &StoredResponse) {
        let (route, Some(page)) = (self.route(key), stored.page.as_deref()) else {
            return;
        };
        let (Some(size), [block]) = (route.chain.window, &page.blocks[..]) else {
            return;
        };
        let size = u64::from(size.get());
        let is_window = page.offset % size == 0 && page.is_window(page.offset, size);
        let lists_block = route.chain.segments.block.is_some() && is_whole_list(key);
        if is_window && lists_block {
            let location = TransactionLocation {
                route: key.route(),
                height: block.height,
                offset: page.offset,
            };
            let txs = page.txs.iter().map(|part| part.tx);
            self.chain.note_transactions(location, txs);
        }
    }
}

/// Asking for the blocks that tell whether what is stored still stands: after a new tip, after an
/// answer that contradicts what is known, and after a start with stored answers. Which blocks,
/// and what follows, is the ledger's matter ([`crate::chain::ledger`]).
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
        let from = match fetch.share(wait).await {
            Ok(Answer::Stored(found)) => Some(found.from),
            Ok(Answer::Coming(..) | Answer::Passed(..)) | Err(_) => None,
        };
        matches!(from, Some(AnswerSource::Upstream { .. }))
    }

    /// The key that shows the block at a height by its first item, which no client's request
    /// waits for; on one of a tip's routes that list whole blocks.
    fn block_key(&self, tip: TipNumber, height: u32) -> Option<Key> {
        let lists_blocks = |route: &&Route| {
            let is_of_tip = route.cache.mode == Mode::Chain && route.cache.tip == tip;
            is_of_tip && route.chain.segments.block.is_some()
        };
        let mut routes = self.routes.routes().iter().filter(lists_blocks);
        routes.find_map(|route| route.key_of_block(height, 1, 0))
    }
}

/// What is stored of an answer, on a route whose fields ordgate prepares.
fn prepare(head: Head, body: Bytes, freshness: ClientFreshness) -> StoredResponse {
    // A copy: a parsed value is a slice of the connection's read buffer, which it would keep
    // in memory for as long as the answer is stored.
    let content_type = head.fields.get(CONTENT_TYPE);
    let content_type =
        content_type.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
    let json = HeaderValue::from_static("application/json");
    StoredResponse {
        received: head.received,
        took: head.took,
        is_encodable: !Directives::of(&head.fields).no_transform,
        checked: CheckedPurge::at(head.purge),
        ..prepared(head.status, (content_type.unwrap_or(json), freshness), body)
    }
}

/// A response whose fields ordgate makes when it sends it.
pub(super) fn prepared(
    status: StatusCode,
    (content_type, freshness): (HeaderValue, ClientFreshness),
    body: Bytes,
) -> StoredResponse {
    let fields = StoredFields::Prepared(Metadata::of(content_type, freshness));
    StoredResponse::new(status, fields, body)
}

/// Changes for how long clients may use a response whose fields ordgate makes.
pub(super) fn set_freshness(stored: &mut StoredResponse, freshness: ClientFreshness) {
    stored.fields = StoredFields::Prepared(Metadata::of(stored.content_type(), freshness));
}

/// The block whose list was requested, and what a segment of 64 hex digits identifies.
type Subject = (Option<BlockReference>, Option<Hash>);

/// The class of an answer until the blocks that it names are final, and the lowest and the
/// highest of their heights: of its items' blocks, else of the requested block, else of a token's
/// deploy. It is `recent` where each of its items is of the block or the transaction that was
/// requested: such a list is complete.
fn class_and_heights(
    (block, hash): Subject,
    status: StatusCode,
    index: &BodyIndex,
) -> (Class, Option<(u32, u32)>) {
    let one = |height| (height, height);
    // Not found, or any other client error, is no statement about a block.
    if status.is_client_error() {
        return (Class::Absent, None);
    }
    // A block without activity has an empty list.
    if index.empty {
        let height = match block {
            Some(BlockReference::Height(height)) => Some(height),
            Some(BlockReference::Hash(_)) | None => None,
        };
        return (Class::Absent, height.map(one));
    }
    let is_complete = |page: &Page| {
        let [only] = page.blocks[..] else {
            return false;
        };
        let is_of_block = match block {
            Some(BlockReference::Height(height)) => only.height == height,
            Some(BlockReference::Hash(hash)) => only.hash == hash,
            None => false,
        };
        let is_of = |hash| hash == only.hash || page.txs.iter().all(|part| part.tx == hash);
        page.is_located && (is_of_block || hash.is_some_and(is_of))
    };
    let class = match index.page.as_deref().is_some_and(is_complete) {
        true => Class::Recent,
        false => Class::Live,
    };
    let blocks = index.page.iter().flat_map(|page| &page.blocks);
    let named = blocks.map(|block| block.height);
    let named = named.clone().min().zip(named.max());
    (class, named.or(index.deploy_height.map(one)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page with an item in each of these blocks, by transaction.
    fn body(items: &[(u32, u8)]) -> BodyIndex {
        let item = |(height, tx): &(u32, u8)| {
            format!(
                r#"{{"location":{{"block_hash":"{height:064x}","block_height":{height},"tx_id":"{tx:064x}"}}}}"#
            )
        };
        let total = items.len();
        let items: Vec<_> = items.iter().map(item).collect();
        let items = items.join(",");
        let page = format!(r#"{{"limit":60,"offset":0,"total":{total},"results":[{items}]}}"#);
        BodyIndex::read(&page.into()).unwrap()
    }

    fn number(number: u32) -> Hash {
        hash(&format!("{number:064x}")).unwrap()
    }

    const NONE: Subject = (None, None);

    fn by_height(height: u32) -> Subject {
        (Some(BlockReference::Height(height)), None)
    }

    fn by_hash(of: u32) -> Subject {
        (Some(BlockReference::Hash(number(of))), Some(number(of)))
    }

    fn transaction(tx: u32) -> Subject {
        (None, Some(number(tx)))
    }

    #[test]
    fn a_list_of_the_requested_block_or_transaction_is_recent() {
        let (recent, live, absent) = (Class::Recent, Class::Live, Class::Absent);
        for (subject, items, class, heights) in [
            (by_height(7), &[(7, 1), (7, 2)][..], recent, Some((7, 7))),
            (by_hash(7), &[(7, 1), (7, 2)], recent, Some((7, 7))),
            (transaction(1), &[(7, 1), (7, 1)], recent, Some((7, 7))),
            // Another block, another transaction, or several.
            (by_height(8), &[(7, 1)], live, Some((7, 7))),
            (by_hash(8), &[(7, 1)], live, Some((7, 7))),
            (by_height(7), &[(7, 1), (8, 2)], live, Some((7, 8))),
            (transaction(1), &[(7, 1), (7, 2)], live, Some((7, 7))),
            // A list that spans blocks.
            (NONE, &[(9, 1), (7, 1), (8, 2)], live, Some((7, 9))),
            (by_height(7), &[], absent, Some((7, 7))),
            (by_hash(7), &[], absent, None),
            (NONE, &[], absent, None),
        ] {
            let body = body(items);
            let actual = class_and_heights(subject, StatusCode::OK, &body);
            assert_eq!(actual, (class, heights), "{subject:?} {items:?}");
            let refused = class_and_heights(subject, StatusCode::NOT_FOUND, &body);
            assert_eq!(refused, (absent, None), "a refusal names no block");
        }
        let deployed = BodyIndex {
            deploy_height: Some(3),
            ..BodyIndex::default()
        };
        let token = class_and_heights(NONE, StatusCode::OK, &deployed);
        assert_eq!(token, (live, Some((3, 3))));
    }
}
