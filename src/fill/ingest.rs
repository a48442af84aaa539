//! Taking in an upstream answer on a route in mode `chain`: it is applied to the
//! chain's ledger first, and stored with the finality class and the epoch that follow.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::content::{Subject, heights};
use super::lookup::own_key;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult, MOST_ATTEMPTS};
use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::purge::{BlockRange, PurgeSubject};
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::{Attached, StoredResponse};
use crate::chain::TipNumber;
use crate::chain::finality::{Class, Content, classify};
use crate::chain::ledger::{LedgerUpdate, Observation, ObservationResult};
use crate::chain::{ChainStamp, TransactionLocation};
use crate::clock::Moment;
use crate::pages::{Page, check_window};
use crate::reason::Reason;
use crate::route::Route;
use crate::route::canonical::is_whole_list;
use crate::trace;
use crate::trace::span::SpanKind;
use crate::upstream::answer::Answer;
use crate::upstream::{Failure, RequestPriority};

impl Fill {
    /// Requests a key from the upstream, applies the answer to the ledger, and stores
    /// it: under the block's height, where the request was by hash and the answer
    /// shows the height.
    ///
    /// This is the only exchange with the upstream in mode `chain`; it waits for no
    /// other fetch.
    pub(super) async fn fetch_and_ingest(
        &self,
        key: &Key,
        priority: RequestPriority,
    ) -> FillResult {
        let Some(route) = self.route(key) else {
            return Err(Failure::new(Reason::Internal));
        };
        let tip = route.cache.tip;
        let subject = Subject::of(key, route);
        self.chain.first_probe(tip, FIRST_PROBE).await;
        for _ in 0..MOST_ATTEMPTS {
            let Some(start) = self.chain.request_start(tip) else {
                return Err(Failure::new(Reason::Internal));
            };
            let sequence = self.cache.store().sequence();
            let sent = self.clock.now();
            let mut answer = self.send(key, priority).await?;
            let page = answer.index.page.take();
            let page = page.filter(|_| answer.status == StatusCode::OK);
            let content = subject.content(answer.status, answer.index.empty, page.as_deref());
            let heights = heights(content, answer.index.deploy_height, page.as_deref());
            let purgeable = PurgeSubject {
                key: key.as_bytes(),
                blocks: heights.map(|(lowest, highest)| BlockRange {
                    tip,
                    lowest,
                    highest,
                }),
                bodies: vec![&answer.body],
            };
            // An answer that was purged since the request began is outdated.
            if self
                .cache
                .store()
                .fetch_was_purged(&purgeable, sequence, None)
            {
                continue;
            }
            let observation = Observation {
                blocks: page.as_deref().map_or(&[], Page::blocks),
                empty_block: subject.empty_block(content, page.as_deref()),
                etag: answer.etag.as_deref(),
            };
            let now = self.clock.now();
            let result = self.chain.apply_answer(tip, start, sent, observation, now);
            let ObservationResult::Applied(update) = result else {
                continue;
            };
            let sequence = match update.orphaned {
                Some(from) => {
                    let own = self.purge_from(tip, from).await;
                    // This answer caused that purge; it must not match any other.
                    match self
                        .cache
                        .store()
                        .fetch_was_purged(&purgeable, sequence, Some(own))
                    {
                        true => continue,
                        false => sequence.past(own),
                    }
                }
                None => sequence,
            };
            let class = self.class(content, update, tip);
            let stamp = ChainStamp::new(class, tip, heights, update.epoch);
            let stored = self.stored(answer, page, stamp, sequence);
            return Ok(self.store(key, route, stored, sent));
        }
        Err(Failure::until(Reason::Outdated, Duration::from_secs(1)))
    }

    /// Stores an answer, if its status is one that is stored.
    fn store(
        &self,
        key: &Key,
        route: &Route,
        mut stored: StoredResponse,
        sent: Moment,
    ) -> FillAnswer {
        let own = own_key(key, route, &stored);
        if !is_stored(stored.status) {
            let from = AnswerSource::Upstream { stored: false };
            let stored = Arc::new(stored);
            return FillAnswer { stored, from };
        }
        let _storing = trace::begin("store", SpanKind::Internal);
        self.compare_with_stored(&own, &mut stored, sent);
        let stored = Arc::new(stored);
        self.note_transactions(&own, route, &stored);
        let is_stored = self.cache.store().insert(own.clone(), stored.clone());
        if is_stored {
            self.keep(&own, route, &stored);
        }
        FillAnswer {
            stored,
            from: AnswerSource::Upstream { stored: is_stored },
        }
    }

    fn class(&self, content: Content, update: LedgerUpdate, tip: TipNumber) -> Class {
        let certain_height = match content {
            // A block in the chain is not orphaned by the request being a while ago.
            Content::Confirmed { .. } | Content::Other => update.tip_height,
            // What was absent may be present now.
            Content::Nothing { .. } => update
                .tip_height
                .filter(|_| update.epoch == self.chain.epoch(tip)),
        };
        classify(content, certain_height, self.chain.finality().final_depth)
    }

    fn stored(
        &self,
        answer: Answer,
        page: Option<Box<Page>>,
        stamp: ChainStamp,
        sequence: PurgeSequence,
    ) -> StoredResponse {
        let now = self.clock.now();
        let lifetime = self.chain.client_lifetime(stamp.class, stamp.tip, now);
        let freshness = match is_stored(answer.status) {
            true => ClientFreshness::of_class(stamp.class, lifetime),
            false => ClientFreshness::Nothing,
        };
        let stamp = stamp.with_client_lifetime(lifetime);
        let etag = etag(&answer.body);
        StoredResponse {
            status: answer.status,
            metadata: Metadata::of(answer.content_type, freshness),
            received: self.clock.now(),
            lifetime: self.chain.finality().lifetime(stamp.class),
            took: answer.took,
            body: answer.body,
            body_id: BodyId::of(&etag, !answer.no_transform),
            etag,
            checked: CheckedSequence::until(sequence),
            attached: Attached {
                stamp: Some(stamp),
                page,
            },
        }
    }

    /// Stores a response as final whose blocks have become final since it was stored.
    pub(crate) fn store_as_final(&self, key: &Key, stored: &StoredResponse) -> Arc<StoredResponse> {
        let stamp = stored.stamp().map(|stamp| {
            let (class, epoch) = (Class::Final, stamp.epoch());
            ChainStamp::new(class, stamp.tip, stamp.heights(), epoch)
        });
        let tip = stamp.as_ref().map_or(0, |stamp| stamp.tip);
        let lifetime = self
            .chain
            .client_lifetime(Class::Final, tip, self.clock.now());
        let freshness = ClientFreshness::of_class(Class::Final, lifetime);
        let revalidated = Arc::new(StoredResponse {
            status: stored.status,
            body: stored.body.clone(),
            etag: stored.etag.clone(),
            metadata: Metadata::of(stored.metadata.content_type.clone(), freshness),
            received: stored.received,
            lifetime: self.chain.finality().final_ttl,
            took: stored.took,
            body_id: stored.body_id,
            checked: CheckedSequence::at(stored.checked.number()),
            attached: Attached {
                stamp,
                page: stored.attached.page.clone(),
            },
        });
        self.cache.store().insert(key.clone(), revalidated.clone());
        if let Some(route) = self.route(key) {
            self.keep(key, route, &revalidated);
        }
        revalidated
    }

    /// Notes which transactions are in a window of their block.
    pub(super) fn note_transactions(&self, key: &Key, route: &Route, stored: &StoredResponse) {
        let (Some(page), Some(size)) = (stored.page(), route.chain.window) else {
            return;
        };
        let size = u64::from(size.get());
        let [block] = page.blocks() else {
            return;
        };
        if check_window(page, page.offset, size).is_err() || page.offset % size != 0 {
            return;
        }
        if route.chain.segments.block.is_none() || !is_whole_list(key.as_bytes()) {
            return;
        }
        let location = TransactionLocation {
            route: key.route(),
            height: block.height,
            offset: page.offset,
        };
        self.chain
            .note_transactions(location, page.runs().iter().map(|run| run.tx));
    }
}

/// Whether an answer with this status is stored. Client errors are, so that polling
/// for what the upstream refuses does not take one request each.
fn is_stored(status: StatusCode) -> bool {
    status == StatusCode::OK || status.is_client_error()
}
