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

use futures_util::future::join_all;
use http::StatusCode;

use super::ingest::prepared;
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::key::Key;
use crate::cache::metadata::ClientFreshness;
use crate::cache::outcome::Forward;
use crate::cache::purge::CheckedPurge;
use crate::cache::validator::etag;
use crate::cache::{Encodings, StoredResponse};
use crate::chain::{ChainStamp, Class, TransactionLocation};
use crate::collapse::Wait;
use crate::log_writer::LogInterval;
use crate::pages::{
    Hash, Page, Run, Window, are_consistent, check_window, cut_page, cut_run, ends_before,
    find_run, hash, of_one_block, windows,
};
use crate::reason::Reason;
use crate::route::Route;
use crate::route::canonical::{page as page_of, segment, with_page};
use crate::upstream::answer::refuses_every_page;
use crate::upstream::{Failure, RequestPriority};

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
    NoWindow(&'static str),
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
    /// every page.
    fn check(&self, part: &StoredResponse, offset: u64) -> Result<(), &'static str> {
        match part.status {
            StatusCode::OK => check_part(part, offset, self.size),
            // Perhaps for its limit or offset, which are not those of the page.
            StatusCode::BAD_REQUEST if !refuses_every_page(&part.body) => {
                Err("it answers 400 to a window")
            }
            _ => Ok(()),
        }
    }

    /// The same of what a fetch has found.
    fn check_fetched(&self, found: FillResult, offset: u64) -> Result<FillAnswer, Uncut> {
        let found = found.map_err(|failure| {
            // The page, being smaller, may not be.
            match failure.reason == Reason::AnswerTooLarge && self.limit < self.size {
                true => Uncut::NoWindow("a window is more than upstream.max_body_bytes"),
                false => Uncut::Failed(failure),
            }
        })?;
        self.check(&found.stored, offset).map_err(Uncut::NoWindow)?;
        Ok(found)
    }
}

impl Fill {
    /// Answers a page from windows: those that are not stored are fetched, then it is cut and
    /// stored. The page itself is requested if that cannot be. Also says whether others fetched
    /// all that was fetched. `None` where the key is to be fetched as it is.
    pub(super) async fn answer_page(
        self: &Arc<Self>,
        key: &Key,
        route: &Route,
        wait: Wait,
        priority: RequestPriority,
    ) -> Option<(FillResult, bool)> {
        let list = List::of(key, route)?;
        let wanted = self.wanted(&list)?;
        let fetches = wanted.into_iter().map(async |window| {
            if let Some(stored) = window.stored {
                let from = AnswerSource::Memory;
                return (Ok(FillAnswer { stored, from }), true);
            }
            let (found, joined) = self
                .fetch(&window.key, Forward::UriMiss, wait, priority)
                .await;
            (list.check_fetched(found, window.offset), joined)
        });
        let (parts, joined): (Vec<_>, Vec<_>) = join_all(fetches).await.into_iter().unzip();
        let joined = joined.into_iter().all(|joined| joined);
        let parts: Result<Vec<_>, _> = parts.into_iter().collect();
        let why = match parts.and_then(|parts| self.cut_and_store(&list, &parts)) {
            Ok(found) => {
                let joined = joined && found.from != AnswerSource::Memory;
                return Some((Ok(found), joined));
            }
            Err(Uncut::Failed(failure)) => return Some((Err(failure), joined)),
            Err(Uncut::Disagree) => None,
            Err(Uncut::NoWindow(why)) => Some(why),
        };
        let (found, joined) = self.fetch(key, Forward::UriMiss, wait, priority).await;
        let is_page = found
            .as_ref()
            .is_ok_and(|found| found.stored.status == StatusCode::OK);
        if let Some(why) = why.filter(|_| is_page)
            && self.not_cut.is_due(LogInterval::MINUTE, self.clock.now())
        {
            tracing::warn!(
                route = &*route.name,
                upstream_page = list.size,
                why,
                "a page cannot be cut from windows and is requested itself; perhaps upstream_page is more than the upstream allows"
            );
        }
        Some((found, joined))
    }

    /// The windows that a page is cut from. `None` where it is to be requested itself: it is a
    /// window, or what is stored in place of its windows is none, or is not of one moment.
    fn wanted(&self, list: &List<'_>) -> Option<Vec<Wanted>> {
        let first = list.offset - list.offset % list.size;
        // A stored window may show that the list ends before the page.
        let known = [Some(first), first.checked_sub(list.size), Some(0)];
        for offset in known.into_iter().flatten() {
            let key = with_page(list.key, list.size, offset)?;
            let part = self.stored_window(&key, offset, list.size);
            let ends = |part: &_| window(part).is_some_and(|part| ends_before(part, list.offset));
            if let Some(stored) = part.filter(|part| ends(part)) {
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
            if let Some(part) = &stored {
                list.check(part, offset).ok()?;
            }
            wanted.push(Wanted {
                offset,
                key,
                stored,
            });
        }
        let stored: Vec<_> = wanted
            .iter()
            .filter_map(|window| window.stored.clone())
            .collect();
        // Windows past the list's end are not requested.
        let mut pages = stored.iter().filter_map(|part| part.page.as_deref());
        let total = pages.find(|page| !page.is_empty()).map(|page| page.total);
        let is_within = |offset| total.is_none_or(|total| offset < total);
        wanted.retain(|window| window.stored.is_some() || is_within(window.offset));
        are_of_one_moment(&stored).then_some(wanted)
    }

    /// What is stored in place of a window and fresh, if it is the window.
    fn stored_window(&self, key: &Key, offset: u64, size: u64) -> Option<Arc<StoredResponse>> {
        let stored = self.fresh(key)?;
        check_part(&stored, offset, size).ok()?;
        Some(stored)
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
        let stored = match parts.iter().find(|part| part.page.as_deref().is_none()) {
            // An error answers every page.
            Some(error) => error.clone(),
            None => {
                let mut cut = self.cut(list, &parts).ok_or(Uncut::Disagree)?;
                if is_passed_on {
                    cut.fields = prepared(cut.content_type(), ClientFreshness::Nothing);
                }
                Arc::new(cut)
            }
        };
        if self
            .cache
            .store()
            .response_was_purged(list.key.as_bytes(), &stored)
        {
            return Err(Uncut::Disagree);
        }
        if is_kept {
            let key = self.own_key(list.key, &stored);
            self.cache.store().insert(&key, stored.clone());
        }
        Ok(FillAnswer { stored, from })
    }

    /// Cuts a page from windows; `None` where they disagree.
    fn cut(&self, list: &List<'_>, parts: &Parts) -> Option<StoredResponse> {
        if !are_of_one_moment(parts) {
            return None;
        }
        // Windows past the end add nothing.
        let is_empty =
            |part: &&Arc<StoredResponse>| part.page.as_deref().is_some_and(|p| p.is_empty());
        let within: Vec<_> = parts.iter().filter(|p| !is_empty(p)).cloned().collect();
        let parts = if within.is_empty() { parts } else { &within };
        let cut = cut_page(&windows_of(parts), list.offset, list.limit)?;
        self.response_of(parts, cut)
    }

    /// A response made of parts. It has the lowest finality class of them, the earliest epoch,
    /// and is as old as the oldest.
    fn response_of(
        &self,
        parts: &Parts,
        (body, page): (Vec<u8>, Box<Page>),
    ) -> Option<StoredResponse> {
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
        Some(StoredResponse {
            status: least.status,
            fields: prepared(least.content_type(), self.client_freshness(&stamp)),
            received: parts.iter().map(|part| part.received).min()?,
            lifetime: parts.iter().map(|part| part.lifetime).min()?,
            took: parts.iter().map(|part| part.took).max()?,
            stamp: Some(stamp),
            page: Some(page),
            etag: etag(&body),
            body: Box::<[u8]>::from(body).into(),
            is_encodable: parts.iter().all(|part| part.is_encodable),
            encodings: Encodings::default(),
            checked: CheckedPurge::at(parts.iter().map(|part| part.checked.number()).min()?),
        })
    }

    /// The keys of the windows that a page is cut from; none where it is not cut.
    pub(crate) fn windows_of(&self, key: &Key) -> Vec<Key> {
        let list = self.route(key).and_then(|route| List::of(key, route));
        list.map_or_else(Vec::new, |list| {
            list.windows().map(|(_, key)| key).collect()
        })
    }

    /// The keys that would be requested now for a key whose stored response is not fresh; none
    /// if it is cut from stored windows.
    pub(crate) fn requests(&self, key: &Key) -> Vec<Key> {
        let route = self.route(key);
        if route.is_some_and(|route| self.cut_transaction(key, route).is_some()) {
            return Vec::new();
        }
        let wanted = route.and_then(|route| self.wanted(&List::of(key, route)?));
        let Some(wanted) = wanted else {
            return vec![key.clone()];
        };
        let missing = wanted.into_iter().filter(|window| window.stored.is_none());
        missing.map(|window| window.key).collect()
    }

    /// A transaction's page, where the stored windows of its block contain all its items.
    pub(super) fn cut_transaction(&self, key: &Key, route: &Route) -> Option<Arc<StoredResponse>> {
        let (tx, location, first) = self.transaction_window(key, route)?;
        let ((limit, offset), (size, _)) = (page_of(key)?, page_of(&first)?);
        let part = |at| self.stored_window(&with_page(&first, size, at)?, at, size);
        let (mut lowest, mut highest) = (location.offset, location.offset);
        let mut parts = vec![part(location.offset)?];
        let run = loop {
            match find_run(&windows_of(&parts), &tx)? {
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
        let cut = cut_run(&windows_of(&parts), &run, offset, limit)?;
        Some(Arc::new(self.response_of(&parts, cut)?))
    }

    /// The transaction that a key requests, and the window of its block in which it
    /// was last seen, with the window's key.
    fn transaction_window(
        &self,
        key: &Key,
        route: &Route,
    ) -> Option<(Hash, TransactionLocation, Key)> {
        let source = usize::from(route.chain.derived_from?);
        let source = self.routes.routes().get(source)?;
        let size = u64::from(source.chain.window?.get());
        let tx = hash(segment(key.target(), route.chain.segments.hex64?)?)?;
        let location = self.chain.find_transaction(&tx)?;
        let window = source.key_of_block(location.height, size, location.offset)?;
        (location.route == source.number).then_some((tx, location, window))
    }
}

/// Whether a response is the window of `size` items at an offset; else why it is not.
fn check_part(part: &StoredResponse, offset: u64, size: u64) -> Result<(), &'static str> {
    let page = part.page.as_deref().ok_or("an answer is no page")?;
    check_window(page, offset, size)
}

/// Whether windows are of one moment: their totals agree, and they are of one block, whose
/// hash determines its list, or of one epoch.
fn are_of_one_moment(parts: &Parts) -> bool {
    let windows = windows_of(parts);
    let stamps = || parts.iter().filter_map(|part| part.stamp.as_ref());
    let is_live = stamps().any(|stamp| stamp.class == Class::Live);
    let has_blocks = windows.iter().any(|window| !window.page.blocks.is_empty());
    let is_one = match has_blocks && !is_live {
        true => of_one_block(&windows),
        // The list may span blocks, and each new block may extend it.
        false => {
            let mut epochs = stamps().map(|stamp| stamp.epoch);
            let first = epochs.next();
            epochs.all(|epoch| Some(epoch) == first)
        }
    };
    is_one && are_consistent(&windows)
}

/// The windows among parts, to be cut.
fn windows_of(parts: &Parts) -> Vec<Window<'_>> {
    parts.iter().filter_map(|part| window(part)).collect()
}

fn window(part: &StoredResponse) -> Option<Window<'_>> {
    let (body, page) = (&*part.body, part.page.as_deref()?);
    Some(Window { body, page })
}
