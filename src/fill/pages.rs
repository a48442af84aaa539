//! Pages cut from windows: `upstream_page` items at multiples of it, which are fetched and
//! stored like any key. A client's page is cut from the windows that it overlaps, and stored
//! under its own key, so that the next request for it is a plain hit. Windows are joined
//! only if they are of one moment. A transaction's page is cut from the windows of its
//! block, if all that it needs is stored.
//!
//! The page itself is requested if its windows disagree, or if the upstream's answers are no
//! windows (it caps pages lower, its totals are inconsistent). A stored answer that is no
//! window is not requested again while it is fresh (a 400 is for a second).

use std::sync::Arc;

use futures_util::future::try_join_all;
use http::StatusCode;

use super::ingest::{prepared, set_freshness};
use super::{AnswerSource, Fetch, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::metadata::ClientFreshness;
use crate::cache::purge::CheckedPurge;
use crate::chain::{ChainStamp, Class, TransactionLocation};
use crate::collapse::Wait;
use crate::log_writer::LogInterval;
use crate::pages::{
    Hash, Page, Run, are_consistent, cut_page, cut_run, find_run, hash, of_one_block, windows,
};
use crate::reason::Reason;
use crate::route::Route;
use crate::route::canonical::{page as page_of, segment, with_page};
use crate::upstream::Failure;
use crate::upstream::answer::refuses_every_page;

/// The most windows that one page is cut from. A longer page is requested itself.
const MOST_WINDOWS: u64 = 16;

/// Stored windows of a list, ascending.
type Parts = [Arc<StoredResponse>];

/// A page of a list that a client requests.
struct List<'k> {
    key: &'k Key,
    /// Items of a window.
    size: u64,
    limit: u64,
    offset: u64,
}

/// A window that a page is cut from.
struct Wanted {
    offset: u64,
    key: Key,
    /// What is stored in its place and fresh.
    stored: Option<Arc<StoredResponse>>,
}

/// Why a page is not cut from windows.
enum Uncut {
    /// An upstream request has failed.
    Failed(Failure),
    /// The upstream's answer is no window.
    NoWindow,
    /// They are not of one moment, or one was purged while another was fetched.
    Disagree,
}

impl<'k> List<'k> {
    /// The page that a key requests, if its route has pages and it is not too long.
    fn of(key: &'k Key, route: &Route) -> Option<Self> {
        let (limit, offset) = page_of(key)?;
        let size = u64::from(route.chain.window?.get());
        (limit <= size * (MOST_WINDOWS - 1)).then_some(Self {
            key,
            size,
            limit,
            offset,
        })
    }

    /// All windows that the page overlaps: their offsets and keys.
    fn windows(&self) -> impl Iterator<Item = (u64, Key)> {
        let offsets = windows(self.offset, self.limit, self.size);
        offsets.filter_map(|offset| Some((offset, with_page(self.key, self.size, offset)?)))
    }

    /// Whether an answer to a window can be used: it is the window, or an error that answers
    /// every page. A 400 may be for its limit or offset, which are not those of the page.
    fn is_of_use(&self, part: &StoredResponse, offset: u64) -> bool {
        match part.status {
            StatusCode::OK => is_window(part, offset, self.size),
            StatusCode::BAD_REQUEST => refuses_every_page(&part.body),
            _ => true,
        }
    }

    /// What a fetch has found in place of a window, if it can be used.
    fn check(&self, found: FillResult, offset: u64) -> Result<FillAnswer, Uncut> {
        match found {
            Ok(found) if self.is_of_use(&found.stored, offset) => Ok(found),
            Ok(_) => Err(Uncut::NoWindow),
            // The page, being smaller, may not be too large.
            Err(failure) if failure.reason == Reason::AnswerTooLarge && self.limit < self.size => {
                Err(Uncut::NoWindow)
            }
            Err(failure) => Err(Uncut::Failed(failure)),
        }
    }
}

impl Fetch {
    /// Answers a page from windows: those that are not stored are fetched, then it is cut and
    /// stored. The page itself is requested if that cannot be. `None` where the key is to be
    /// fetched as it is.
    pub(super) async fn find_page(&self, key: &Key, wait: Wait) -> Option<FillResult> {
        let (fill, route) = (&self.fill, self.route());
        let list = List::of(key, route)?;
        let fetches = fill.wanted(&list)?.into_iter().map(async |window| {
            let Some(stored) = window.stored else {
                return list.check(self.fetch(&window.key, wait).await, window.offset);
            };
            let from = AnswerSource::Memory;
            Ok(FillAnswer { stored, from })
        });
        let parts = try_join_all(fetches).await;
        let uncut = match parts.and_then(|parts| fill.cut_and_store(&list, &parts)) {
            Ok(found) => return Some(Ok(found)),
            Err(Uncut::Failed(failure)) => return Some(Err(failure)),
            Err(uncut @ (Uncut::NoWindow | Uncut::Disagree)) => uncut,
        };
        let found = self.fetch(key, wait).await;
        let is_page = matches!(&found, Ok(found) if found.stored.status == StatusCode::OK);
        if matches!(uncut, Uncut::NoWindow)
            && is_page
            && fill.not_cut.is_due(LogInterval::MINUTE, fill.clock.now())
        {
            tracing::warn!(
                route = &*route.name,
                upstream_page = list.size,
                "a page cannot be cut from windows and is requested itself; perhaps upstream_page is more than the upstream allows, or such a page more than upstream.max_body_bytes"
            );
        }
        Some(found)
    }
}

impl Fill {
    /// The windows that a page is cut from. `None` where it is to be requested itself: it is a
    /// window, or what is stored in place of its windows is none, or is not of one moment.
    fn wanted(&self, list: &List<'_>) -> Option<Vec<Wanted>> {
        let first = list.offset - list.offset % list.size;
        // A stored window may show that the list ends before the page.
        let known = [Some(first), first.checked_sub(list.size), Some(0)];
        for offset in known.into_iter().flatten() {
            let key = with_page(list.key, list.size, offset)?;
            let part = self.stored_window(&key, offset, list.size);
            let ends = |part: &Arc<StoredResponse>| {
                let page = part.page.as_deref();
                page.is_some_and(|page| page.ends_before(list.offset))
            };
            if let Some(stored) = part.filter(ends) {
                let stored = Some(stored);
                return Some(vec![Wanted {
                    offset,
                    key,
                    stored,
                }]);
            }
        }
        if (list.limit, list.offset) == (list.size, first) {
            return None;
        }
        let mut wanted = Vec::new();
        for (offset, key) in list.windows() {
            let stored = self.fresh(&key);
            let of_use = |part: &Arc<StoredResponse>| list.is_of_use(part, offset);
            if stored.as_ref().is_some_and(|part| !of_use(part)) {
                return None;
            }
            wanted.push(Wanted {
                offset,
                key,
                stored,
            });
        }
        let stored = wanted.iter().filter_map(|window| window.stored.clone());
        let stored: Vec<_> = stored.collect();
        // Windows past the list's end are not requested.
        let mut pages = pages_of(&stored).into_iter();
        let total = pages.find(|page| !page.is_empty()).map(|page| page.total);
        let is_within = |offset| total.is_none_or(|total| offset < total);
        wanted.retain(|window| window.stored.is_some() || is_within(window.offset));
        are_of_one_moment(&stored).then_some(wanted)
    }

    /// What is stored in place of a window and fresh, if it is the window.
    fn stored_window(&self, key: &Key, offset: u64, size: u64) -> Option<Arc<StoredResponse>> {
        let stored = self.fresh(key)?;
        is_window(&stored, offset, size).then_some(stored)
    }

    /// Cuts a page from its windows, and stores it.
    fn cut_and_store(&self, list: &List<'_>, found: &[FillAnswer]) -> Result<FillAnswer, Uncut> {
        let from = found.iter().map(|part| part.from).min();
        let from = from.unwrap_or(AnswerSource::Memory);
        let is_passed_on = from == AnswerSource::Upstream { stored: false };
        let is_kept = !is_passed_on && from != AnswerSource::Unconfirmed;
        // Another client, which waited for the same windows, may have cut it.
        if is_kept && let Some(stored) = self.fresh(list.key) {
            return Ok(FillAnswer { stored, from });
        }
        let parts: Vec<_> = found.iter().map(|part| part.stored.clone()).collect();
        let stored = match parts.iter().find(|part| part.page.is_none()) {
            // An error answers every page.
            Some(error) => error.clone(),
            None => {
                let mut cut = self.cut(list, &parts).ok_or(Uncut::Disagree)?;
                if is_passed_on {
                    set_freshness(&mut cut, ClientFreshness::Nothing);
                }
                Arc::new(cut)
            }
        };
        let store = self.cache.store();
        if store.response_was_purged(list.key, &stored) {
            return Err(Uncut::Disagree);
        }
        if is_kept {
            let key = self.own_key(list.key, &stored);
            store.insert(&key, stored.clone());
        }
        Ok(FillAnswer { stored, from })
    }

    /// Cuts a page from windows; `None` where they disagree.
    fn cut(&self, list: &List<'_>, parts: &Parts) -> Option<StoredResponse> {
        if !are_of_one_moment(parts) {
            return None;
        }
        // Windows past the end add nothing.
        let is_empty = |part: &StoredResponse| part.page.as_deref().is_some_and(Page::is_empty);
        let within: Vec<_> = parts.iter().filter(|p| !is_empty(p)).cloned().collect();
        let parts = if within.is_empty() { parts } else { &within };
        let page = cut_page(&pages_of(parts), list.offset, list.limit)?;
        self.response_of(parts, page)
    }

    /// A response made of parts. It has the lowest finality class of them, the earliest epoch,
    /// and is as old as the oldest.
    fn response_of(&self, parts: &Parts, page: Box<Page>) -> Option<StoredResponse> {
        let class = |part: &&Arc<StoredResponse>| part.stamp.as_ref().map(|stamp| stamp.class);
        let least = parts.iter().min_by_key(class)?;
        let stamps = || parts.iter().filter_map(|part| part.stamp.as_ref());
        let heights = stamps().filter_map(|stamp| stamp.heights);
        let stamp = ChainStamp {
            epoch: stamps().map(|stamp| stamp.epoch).min()?,
            heights: heights.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))),
            is_settled: stamps().all(|stamp| stamp.is_settled),
            ..*least.stamp.as_ref()?
        };
        let metadata = (least.content_type(), self.client_freshness(&stamp));
        let whole = prepared(least.status, metadata, page.body.clone());
        Some(StoredResponse {
            received: parts.iter().map(|part| part.received).min()?,
            lifetime: parts.iter().map(|part| part.lifetime).min()?,
            took: parts.iter().map(|part| part.took).max()?,
            is_encodable: parts.iter().all(|part| part.is_encodable),
            checked: CheckedPurge::at(parts.iter().map(|part| part.checked.number()).min()?),
            stamp: Some(stamp),
            page: Some(page),
            ..whole
        })
    }

    /// The keys of the windows that a page is cut from; none where it is not cut.
    pub(crate) fn windows_of(&self, key: &Key) -> Vec<Key> {
        let list = List::of(key, self.route(key));
        let windows = list.iter().flat_map(List::windows);
        windows.map(|(_, key)| key).collect()
    }

    /// The keys that would be requested now for a key whose stored response is not fresh; none
    /// if it is cut from stored windows.
    pub(crate) fn requests(&self, key: &Key) -> Vec<Key> {
        if self.cut_transaction(key).is_some() {
            return Vec::new();
        }
        let list = List::of(key, self.route(key));
        let Some(wanted) = list.and_then(|list| self.wanted(&list)) else {
            return vec![key.clone()];
        };
        let missing = wanted.into_iter().filter(|window| window.stored.is_none());
        missing.map(|window| window.key).collect()
    }

    /// A transaction's page, where the stored windows of its block contain all its items.
    pub(super) fn cut_transaction(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        let (tx, location, first) = self.transaction_window(key)?;
        let ((limit, offset), (size, _)) = (page_of(key)?, page_of(&first)?);
        let part = |at| self.stored_window(&with_page(&first, size, at)?, at, size);
        let (mut lowest, mut highest) = (location.offset, location.offset);
        let mut parts = vec![part(location.offset)?];
        let run = loop {
            match find_run(&pages_of(&parts), &tx)? {
                Run::Whole(run) => break run,
                Run::Before | Run::After if parts.len() as u64 >= MOST_WINDOWS => return None,
                Run::Before => {
                    lowest = lowest.checked_sub(size)?;
                    parts.insert(0, part(lowest)?);
                }
                Run::After => {
                    highest += size;
                    parts.push(part(highest)?);
                }
            }
        };
        let page = cut_run(&pages_of(&parts), &run, offset, limit)?;
        Some(Arc::new(self.response_of(&parts, page)?))
    }

    /// The transaction that a key requests, and the window of its block in which it
    /// was last seen, with the window's key.
    fn transaction_window(&self, key: &Key) -> Option<(Hash, TransactionLocation, Key)> {
        let route = self.route(key);
        let source = usize::from(route.chain.derived_from?);
        let source = self.routes.routes().get(source)?;
        let size = u64::from(source.chain.window?.get());
        let tx = hash(segment(key.target(), route.chain.segments.hex64?)?)?;
        let location = self.chain.find_transaction(&tx)?;
        let window = source.key_of_block(location.height, size, location.offset)?;
        (location.route == source.number).then_some((tx, location, window))
    }
}

/// Whether a response is the window of `size` items at an offset.
fn is_window(part: &StoredResponse, offset: u64, size: u64) -> bool {
    let page = part.page.as_deref();
    page.is_some_and(|page| page.is_window(offset, size))
}

/// Whether windows are of one moment: their totals agree, and they are of one block, whose
/// hash determines its list, or of one epoch.
fn are_of_one_moment(parts: &Parts) -> bool {
    let pages = pages_of(parts);
    let stamps = || parts.iter().filter_map(|part| part.stamp.as_ref());
    let is_live = stamps().any(|stamp| stamp.class == Class::Live);
    let has_blocks = pages.iter().any(|page| !page.blocks.is_empty());
    let is_one = match has_blocks && !is_live {
        true => of_one_block(&pages),
        // The list may span blocks, and each new block may extend it.
        false => {
            let mut epochs = stamps().map(|stamp| stamp.epoch);
            let first = epochs.next();
            epochs.all(|epoch| Some(epoch) == first)
        }
    };
    is_one && are_consistent(&pages)
}

/// The pages of parts that are some.
fn pages_of(parts: &Parts) -> Vec<&Page> {
    let pages = parts.iter().filter_map(|part| part.page.as_deref());
    pages.collect()
}
