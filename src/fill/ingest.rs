//! Storing an answer of the API that was read whole, on routes whose fields ordgate prepares:
//! in mode `chain` it is applied to the chain's ledger first, and stored with the finality class
//! and the epoch that follow; in mode `override` for the time of its status.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::content::{content, heights};
use super::exchange::Fetched;
use super::store::Times;
use super::{AnswerSource, Fetch, Fill, FillAnswer};
use crate::cache::directives::Directives;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::{CheckedPurge, PurgeSubject};
use crate::cache::validator::etag;
use crate::cache::{Encodings, StoredFields, StoredResponse};
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, Content, TransactionLocation};
use crate::pages::{BodyIndex, check_window, hash};
use crate::route::canonical::{block, is_whole_list, page as page_of, segment};

impl Fetch {
    /// In mode `chain`: applies an answer to the ledger, and stores it, under the block's height
    /// where the request was by hash and the answer shows the height. What is not of the present
    /// tip is passed on. `None` if it was purged meanwhile.
    pub(super) async fn ingest(
        &self,
        head: (StatusCode, HeaderMap),
        body: Bytes,
        index: BodyIndex,
        times: Times,
    ) -> Option<Fetched> {
        let (fill, key, route) = (&self.fill, self.key(), self.route());
        let (tip, status) = (route.cache.tip, head.0);
        let (target, segments) = (key.target(), &route.chain.segments);
        let subject = (
            segments.block.and_then(|at| block(target, at)),
            segments.hex64.and_then(|at| hash(segment(target, at)?)),
        );
        let page = index.page.filter(|_| status == StatusCode::OK);
        let content = content(subject, status, index.empty, page.as_deref());
        let heights = heights(content, index.deploy_height, page.as_deref());
        let purgeable = PurgeSubject {
            key: key.as_bytes(),
            blocks: heights.map(|heights| (tip, heights)),
            body: &body,
        };
        // Before the purge that the answer itself may cause.
        if fill.cache.store().fetch_was_purged(&purgeable, times.purge) {
            return None;
        }
        // A block whose whole list is empty was orphaned, if it had items before.
        let is_whole_list = page.as_deref().is_some_and(|page| page.total == 0)
            && page_of(key).is_none_or(|(_, offset)| offset == 0)
            && is_whole_list(key.as_bytes());
        let empty_block = match content {
            Content::Nothing { block } => block.filter(|_| is_whole_list),
            Content::Confirmed { .. } | Content::Other => None,
        };
        let observation = Observation {
            route: route.number,
            blocks: page.as_deref().map_or(&[], |page| &page.blocks),
            empty_block,
            tag: head.1.get(ETAG).map(HeaderValue::as_bytes),
        };
        let applied = (fill.chain.tip(tip)).apply_answer(times.start, observation, times.received);
        if let Some(from) = applied.purge_from {
            fill.purge_from(tip, from).await;
        }
        if applied.asks_block {
            fill.check_blocks_aside(tip);
        }
        let epoch = applied.stored_in.unwrap_or(times.start.epoch);
        let stamp = (fill.chain).stamp(tip, (content, heights), epoch, times.sent);
        // Client errors are stored, so that polling for what the upstream refuses does not take
        // one request each.
        let may_store = status == StatusCode::OK || status.is_client_error();
        let is_stored = applied.stored_in.is_some() && may_store;
        let lifetime = stamp.class.lifetime();
        let freshness = match is_stored {
            true => fill.client_freshness(&stamp),
            false => ClientFreshness::Nothing,
        };
        let stored = StoredResponse {
            stamp: Some(stamp),
            page,
            ..prepare(head, body, freshness, lifetime, times)
        };
        let key = fill.own_key(key, &stored);
        let stored = fill.store(&key, stored, is_stored);
        Some(Fetched::by_all(Ok(stored)))
    }

    /// In mode `override`: stores an answer for as long as its status says. In mode `off` none is
    /// stored.
    pub(super) fn store_by_status(
        &self,
        head: (StatusCode, HeaderMap),
        body: Bytes,
        is_empty: bool,
        times: Times,
    ) -> FillAnswer {
        let (fill, key, route) = (&self.fill, self.key(), self.route());
        let lifetime = route.cache.times.lifetime(head.0, is_empty);
        let lifetime = lifetime.filter(|_| route.cache.mode == Mode::Override);
        let freshness = lifetime.map_or(ClientFreshness::Nothing, ClientFreshness::For);
        let stored = prepare(head, body, freshness, lifetime.unwrap_or_default(), times);
        let is_stored = lifetime.is_some()
            && !fill
                .cache
                .store()
                .response_was_purged(key.as_bytes(), &stored);
        fill.store(key, stored, is_stored)
    }
}

impl Fill {
    /// For how long clients may use a response in mode `chain`.
    pub(super) fn client_freshness(&self, stamp: &ChainStamp) -> ClientFreshness {
        let (tip, now) = (self.chain.tip(stamp.tip), self.clock.now());
        let lifetime = tip.client_lifetime(stamp.class, now);
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
        stored.fields = prepared(stored.content_type(), ClientFreshness::Immutable(lifetime));
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
        let (Some(page), Some(route)) = (stored.page.as_deref(), self.route(key)) else {
            return;
        };
        let (Some(size), [block]) = (route.chain.window, &page.blocks[..]) else {
            return;
        };
        let size = u64::from(size.get());
        let is_window = check_window(page, page.offset, size).is_ok() && page.offset % size == 0;
        let lists_block = route.chain.segments.block.is_some() && is_whole_list(key.as_bytes());
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

/// What is stored of an answer, on a route whose fields ordgate prepares.
fn prepare(
    (status, fields): (StatusCode, HeaderMap),
    body: Bytes,
    freshness: ClientFreshness,
    lifetime: Duration,
    times: Times,
) -> StoredResponse {
    // A copy: a parsed value is a slice of the connection's read buffer, which it would keep
    // in memory for as long as the answer is stored.
    let content_type = fields.get(CONTENT_TYPE);
    let content_type =
        content_type.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
    let json = HeaderValue::from_static("application/json");
    StoredResponse {
        status,
        fields: prepared(content_type.unwrap_or(json), freshness),
        received: times.received,
        lifetime,
        took: times.took,
        etag: etag(&body),
        body,
        is_encodable: !Directives::of(&fields).no_transform,
        encodings: Encodings::default(),
        checked: CheckedPurge::at(times.purge),
        stamp: None,
        page: None,
    }
}

/// Fields that ordgate makes when it sends the response.
pub(super) fn prepared(content_type: HeaderValue, freshness: ClientFreshness) -> StoredFields {
    StoredFields::Prepared(Metadata::of(content_type, freshness))
}
