//! What an answer tells of the chain, and what it is stored as therefore.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::{AnswerSource, FIRST_PROBE, Fill, FillAnswer, FillResult, OVERTAKEN};
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::purge::{BlockRange, Purge, PurgeSubject};
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::{Attached, StoredResponse};
use crate::chain::ChainStamp;
use crate::chain::finality::{Class, Says, classify};
use crate::chain::ledger::{Facts, Told, Verdict};
use crate::chain::runs::TransactionLocation;
use crate::pages::{Page, check_window, hash};
use crate::route::Route;
use crate::route::canonical::{BlockReference, block, is_whole_list, page, segment, with_segment};
use crate::upstream::answer::Answer;
use crate::upstream::{Failure, RequestPriority};

/// How to ask for what a client asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupKey {
    /// The key to ask by.
    pub key: Key,
    /// The key of the block by its hash, where that was asked for and its
    /// height is known.
    pub by_hash: Option<Key>,
}

/// The digits of a hash.
const HASH: usize = 64;

impl Fill {
    /// How to ask for what a client asks: a block by its height where that is
    /// known, since the two are one stored response and the height is the quick
    /// way upstream.
    pub fn lookup_key(&self, route: &Route, key: Key) -> LookupKey {
        // A hash alone is longer than most keys: this is on the way of hits.
        if key.as_bytes().len() < HASH {
            return LookupKey { key, by_hash: None };
        }
        let by_height = route.places.block.and_then(|at| {
            let Some(BlockReference::Hash(hash)) = block(key.target(), at) else {
                return None;
            };
            let height = self.chain.height_of(route.cache.tip, &hash)?;
            with_segment(&key, at, &height.to_string())
        });
        match by_height {
            Some(by_height) => LookupKey {
                key: by_height,
                by_hash: Some(key),
            },
            None => LookupKey { key, by_hash: None },
        }
    }

    /// Whether what was found by height is of the block that was asked for by
    /// hash: not where a reorg has parted the two meanwhile.
    pub fn is_answer(&self, asking: &LookupKey, stored: &StoredResponse) -> bool {
        let (Some(by_hash), Some(route)) = (&asking.by_hash, self.route(&asking.key)) else {
            return true;
        };
        let Some(at) = route.places.block else {
            return true;
        };
        let Some(BlockReference::Hash(asked)) = block(by_hash.target(), at) else {
            return true;
        };
        let named = stored.page().map_or(&[][..], Page::blocks);
        match named {
            [block] => block.hash == asked,
            // It names none, being empty: then the two have to be one still.
            [] | [_, _, ..] => {
                let height = self.chain.height_of(route.cache.tip, &asked);
                let by_height = height.and_then(|h| with_segment(by_hash, at, &h.to_string()));
                by_height.as_ref() == Some(&asking.key)
            }
        }
    }

    /// Asks the upstream for exactly this key, learns what the answer tells of
    /// the chain, and stores it: under its height, where it was asked for by a
    /// hash whose height it has shown.
    ///
    /// This is the only exchange with the upstream in mode `chain`; it waits
    /// for no other fetch.
    pub(super) async fn ingest(&self, key: &Key, wish: RequestPriority) -> FillResult {
        let Some(route) = self.route(key) else {
            return Err(Failure::Abandoned);
        };
        let tip = route.cache.tip;
        self.chain.settled(tip, FIRST_PROBE).await;
        for _ in 0..OVERTAKEN {
            let Some(start) = self.chain.start(tip) else {
                return Err(Failure::Abandoned);
            };
            let mark = self.cache.store().sequence();
            let sent = self.clock.now();
            let mut answer = self.ask(key, wish).await?;
            let page = answer.index.page.take();
            let page = page.filter(|_| answer.status == StatusCode::OK);
            let says = says(key, route, &answer, page.as_deref());
            let heights = heights(says, &answer, page.as_deref());
            let sight = PurgeSubject {
                key: key.as_bytes(),
                blocks: heights.map(|(lowest, highest)| BlockRange {
                    tip,
                    lowest,
                    highest,
                }),
                bodies: vec![&answer.body],
            };
            // What is purged tells nothing: it is of before.
            if self.cache.store().is_purged(&sight, mark, None) {
                continue;
            }
            let facts = Facts {
                blocks: page.as_deref().map_or(&[], Page::blocks),
                empty: emptied(key, route, says, page.as_deref()),
                tag: answer.etag.as_deref(),
            };
            let now = self.clock.now();
            let Verdict::Told(told) = self.chain.answer(tip, start, sent, facts, now) else {
                continue;
            };
            let mark = match told.orphaned.map(|from| self.forget(tip, from)) {
                // It has caused this purge; all others count against it still.
                Some(own) => match self.cache.store().is_purged(&sight, mark, Some(own)) {
                    true => continue,
                    false => mark.past(own),
                },
                None => mark,
            };
            let class = self.class(says, told, tip);
            let standing = ChainStamp::new(class, tip, heights, told.epoch);
            let kept = is_kept(answer.status);
            let mut stored = self.stored(answer, page, standing, mark);
            let own = own_key(key, route, &stored);
            if kept {
                self.compare(&own, &mut stored, sent);
            }
            let stored = Arc::new(stored);
            let kept = kept && {
                let key = own;
                self.note_runs(&key, route, &stored);
                self.cache.store().insert(key, stored.clone())
            };
            return Ok(FillAnswer {
                stored,
                from: AnswerSource::Upstream { stored: kept },
            });
        }
        Err(Failure::Unsettled)
    }

    /// Purges what names a block at a height or above; answers with the purge's
    /// number.
    pub fn forget(&self, tip: u16, from: u32) -> u64 {
        self.cache.store().purge(Purge::Heights {
            tip: Some(tip),
            from,
            to: u32::MAX,
        })
    }

    fn class(&self, says: Says, told: Told, tip: u16) -> Class {
        let sure = match says {
            // What stands is not undone by having been asked for a while ago.
            Says::Confirmed { .. } | Says::Other => told.tip,
            // What is not there may be there now.
            Says::Nothing { .. } => told.tip.filter(|_| told.epoch == self.chain.epoch(tip)),
        };
        classify(says, sure, self.chain.times().final_depth)
    }

    fn stored(
        &self,
        answer: Answer,
        page: Option<Box<Page>>,
        standing: ChainStamp,
        mark: PurgeSequence,
    ) -> StoredResponse {
        let time = self
            .chain
            .promise(standing.class, standing.tip, self.clock.now());
        let promise = match is_kept(answer.status) {
            true => promise(standing.class, time),
            false => ClientFreshness::Nothing,
        };
        let standing = standing.promising(time);
        StoredResponse {
            status: answer.status,
            etag: etag(&answer.body),
            metadata: Metadata::of(answer.content_type, promise),
            received: self.clock.now(),
            lifetime: self.chain.times().lifetime(standing.class),
            took: answer.took,
            body: answer.body,
            checked: CheckedSequence::until(mark),
            attached: Attached {
                stamp: Some(standing),
                page,
            },
        }
    }

    /// Stores as final what has become so since it was stored.
    pub fn mark_revalidated(&self, key: &Key, stored: &StoredResponse) -> Arc<StoredResponse> {
        let standing = stored.stamp().map(|standing| {
            let (class, epoch) = (Class::Final, standing.epoch());
            ChainStamp::new(class, standing.tip, standing.heights(), epoch)
        });
        let tip = standing.as_ref().map_or(0, |standing| standing.tip);
        let time = self.chain.promise(Class::Final, tip, self.clock.now());
        let promise = promise(Class::Final, time);
        let settled = Arc::new(StoredResponse {
            status: stored.status,
            body: stored.body.clone(),
            etag: stored.etag.clone(),
            metadata: Metadata::of(stored.metadata.content_type.clone(), promise),
            received: stored.received,
            lifetime: self.chain.times().final_ttl,
            took: stored.took,
            checked: CheckedSequence::at(stored.checked.number()),
            attached: Attached {
                stamp: standing,
                page: stored.attached.page.clone(),
            },
        });
        self.cache.store().insert(key.clone(), settled.clone());
        settled
    }

    /// Notes which transactions are seen in a window of their block.
    fn note_runs(&self, key: &Key, route: &Route, stored: &StoredResponse) {
        let (Some(page), Some(size)) = (stored.page(), route.pages) else {
            return;
        };
        let size = u64::from(size.get());
        let [block] = page.blocks() else {
            return;
        };
        if check_window(page, page.offset, size).is_err() || page.offset % size != 0 {
            return;
        }
        if route.places.block.is_none() || !is_whole_list(key.as_bytes()) {
            return;
        }
        let place = TransactionLocation {
            route: key.route(),
            height: block.height,
            offset: page.offset,
        };
        self.chain
            .note_runs(place, page.runs().iter().map(|run| run.tx));
    }
}

/// The key that an answer is stored under.
pub(super) fn own_key(key: &Key, route: &Route, stored: &StoredResponse) -> Key {
    let by_height = route.places.block.and_then(|at| {
        let Some(BlockReference::Hash(asked)) = block(key.target(), at) else {
            return None;
        };
        match stored.page()?.blocks() {
            [block] if block.hash == asked => with_segment(key, at, &block.height.to_string()),
            _ => None,
        }
    });
    by_height.unwrap_or_else(|| key.clone())
}

/// How clients are told what they are promised of a class.
pub(super) fn promise(class: Class, time: Duration) -> ClientFreshness {
    match class {
        Class::Final => ClientFreshness::Immutable(time),
        Class::Recent | Class::Live | Class::Absent => ClientFreshness::For(time),
    }
}

/// Whether an answer of this status is stored: whoever polls for what the
/// upstream refuses does not cost a request each time.
fn is_kept(status: StatusCode) -> bool {
    status == StatusCode::OK || status.is_client_error()
}

/// What an answer says. It is about one block or transaction where each of its
/// items names the one that the path does: such a list is closed.
fn says(key: &Key, route: &Route, answer: &Answer, page: Option<&Page>) -> Says {
    let asked = route.places.block.and_then(|at| block(key.target(), at));
    // A block without activity is an empty list. Not found, or a refusal, is no
    // word of the API's about a block, and so settles nothing.
    if answer.status.is_client_error() {
        return Says::Nothing { asked: None };
    }
    if answer.index.empty {
        return Says::Nothing {
            asked: match asked {
                Some(BlockReference::Height(height)) => Some(height),
                Some(BlockReference::Hash(_)) | None => None,
            },
        };
    }
    let Some(page) = page.filter(|page| page.is_located()) else {
        return Says::Other;
    };
    let [only] = page.blocks() else {
        return Says::Other;
    };
    let of_block = match asked {
        Some(BlockReference::Height(height)) => only.height == height,
        Some(BlockReference::Hash(hash)) => only.hash == hash,
        None => false,
    };
    let of_transaction = || {
        let at = route.places.hex64?;
        let asked = hash(segment(key.target(), at)?)?;
        let mut runs = page.runs().iter();
        Some(asked == only.hash || runs.all(|run| run.tx == asked))
    };
    match of_block || of_transaction().unwrap_or(false) {
        true => Says::Confirmed {
            highest: only.height,
        },
        false => Says::Other,
    }
}

/// The heights that an answer names: of its items' blocks, of the block that
/// was asked for, of a token's deploy.
fn heights(says: Says, answer: &Answer, page: Option<&Page>) -> Option<(u32, u32)> {
    let named = page.map_or(&[][..], Page::blocks).iter();
    let lowest = named.clone().map(|block| block.height).min();
    let highest = named.map(|block| block.height).max();
    if let (Some(lowest), Some(highest)) = (lowest, highest) {
        return Some((lowest, highest));
    }
    let height = match says {
        Says::Nothing { asked } => asked,
        Says::Confirmed { highest } => Some(highest),
        Says::Other => answer.index.deploy_height,
    }?;
    Some((height, height))
}

/// The height of a block whose whole list was asked for from its beginning and
/// is empty: where it had items before, it was undone.
fn emptied(key: &Key, route: &Route, says: Says, empty: Option<&Page>) -> Option<u32> {
    let Says::Nothing {
        asked: Some(height),
    } = says
    else {
        return None;
    };
    let from_the_beginning = page(key).is_none_or(|(_, offset)| offset == 0);
    let is_page = empty.is_some_and(|page| page.total == 0) && route.places.block.is_some();
    (is_whole_list(key.as_bytes()) && from_the_beginning && is_page).then_some(height)
}
