//! Taking in an upstream answer on a route in mode `chain`: it is applied to the
//! chain's ledger first, and stored with the finality class and the epoch that follow, or
//! passed on.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::content::{Subject, heights};
use super::lookup::own_key;
use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult, MOST_ATTEMPTS};
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::purge::{BlockRange, PurgeSubject};
use crate::cache::{StoredFields, StoredResponse};
use crate::chain::ledger::Observation;
use crate::chain::{ChainStamp, Class, TransactionLocation};
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
    /// shows the height. What is not of the present tip is passed on.
    ///
    /// This is the only exchange with the upstream in mode `chain`; it waits for no
    /// other fetch.
    pub(super) async fn fetch_and_ingest(
        self: &Arc<Self>,
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
            let start = self.chain.request_start(tip);
            let sequence = self.cache.store().purges();
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
                body: &answer.body,
            };
            // Before the purge that the answer itself may cause.
            if self.cache.store().fetch_was_purged(&purgeable, sequence) {
                continue;
            }
            let observation = Observation {
                route: route.number,
                blocks: page.as_deref().map_or(&[], |page| &page.blocks),
                empty_block: subject.empty_block(content, page.as_deref()),
                tag: answer.etag.as_deref(),
            };
            let now = self.clock.now();
            let applied = self.chain.apply_answer(tip, start, observation, now);
            if let Some(from) = applied.purge_from {
                self.purge_from(tip, from).await;
            }
            if applied.asks_block {
                self.check_blocks_aside(tip);
            }
            let epoch = applied.stored_in.unwrap_or(start.epoch);
            let stamp = self.chain.stamp(tip, (content, heights), epoch, sent);
            let is_stored = applied.stored_in.is_some() && is_storable(answer.status);
            let stored = self.stored(answer, page, stamp, (sequence, is_stored));
            return Ok(match is_stored {
                true => self.store(key, route, stored),
                false => FillAnswer {
                    stored: Arc::new(stored),
                    from: AnswerSource::Upstream { stored: false },
                },
            });
        }
        Err(Failure::until(Reason::Outdated, Duration::from_secs(1)))
    }

    fn store(&self, key: &Key, route: &Route, stored: StoredResponse) -> FillAnswer {
        let _storing = trace::begin("store", SpanKind::Internal);
        let own = own_key(key, route, &stored);
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

    fn stored(
        &self,
        answer: Answer,
        page: Option<Box<Page>>,
        stamp: ChainStamp,
        (sequence, is_stored): (u64, bool),
    ) -> StoredResponse {
        let now = self.clock.now();
        let lifetime = self.chain.client_lifetime(stamp.class, stamp.tip, now);
        let freshness = match is_stored {
            true => ClientFreshness::of_class(stamp.class, lifetime),
            false => ClientFreshness::Nothing,
        };
        let lifetime = self.chain.finality().lifetime(stamp.class);
        StoredResponse {
            stamp: Some(stamp),
            page,
            ..self.prepare(answer, freshness, lifetime, sequence)
        }
    }

    /// Stores a response as final whose blocks have become final since it was stored.
    pub(crate) fn store_as_final(&self, key: &Key, stored: &StoredResponse) -> Arc<StoredResponse> {
        let stamp = stored.stamp().map(|stamp| ChainStamp {
            class: Class::Final,
            ..*stamp
        });
        let tip = stamp.map_or(0, |stamp| stamp.tip);
        let now = self.clock.now();
        let lifetime = self.chain.client_lifetime(Class::Final, tip, now);
        let freshness = ClientFreshness::of_class(Class::Final, lifetime);
        let stored = Arc::new(StoredResponse {
            fields: StoredFields::Prepared(Metadata::of(stored.content_type(), freshness)),
            lifetime,
            stamp,
            ..stored.clone()
        });
        self.cache.store().insert(key.clone(), stored.clone());
        if let Some(route) = self.route(key) {
            self.keep(key, route, &stored);
        }
        stored
    }

    /// Notes which transactions are in a window of their block.
    pub(super) fn note_transactions(&self, key: &Key, route: &Route, stored: &StoredResponse) {
        let (Some(page), Some(size)) = (stored.page(), route.chain.window) else {
            return;
        };
        let size = u64::from(size.get());
        let [block] = &page.blocks[..] else {
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
            .note_transactions(location, page.txs.iter().map(|part| part.tx));
    }
}

/// Whether an answer with this status is stored. Client errors are, so that polling
/// for what the upstream refuses does not take one request each.
fn is_storable(status: StatusCode) -> bool {
    status == StatusCode::OK || status.is_client_error()
}
