//! Pages cut from windows: `upstream_page` items at multiples of it, which are fetched and
//! stored like any key. A client's page is cut from the windows that it overlaps, and stored
//! under its own key, so that the next request for it is a plain hit. Windows are joined
//! only if they are of one moment.
//!
//! If the upstream's answers are no windows (it caps pages lower, its totals are
//! inconsistent), the page itself is requested, and windows are tried again later.

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;

use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::{StoredFields, StoredResponse};
use crate::chain::{ChainStamp, Class, TransactionLocation};
use crate::client_tokens::shown_path;
use crate::collapse::Wait;
use crate::log_writer::LogInterval;
use crate::pages::{
    self, Page, Window, are_consistent, check_window, ends_before, of_one_block, windows,
};
use crate::reason::Reason;
use crate::route::Route;
use crate::route::canonical::{page as page_of, with_page};
use crate::upstream::answer::refuses_every_page;
use crate::upstream::{Failure, RequestPriority};

/// The most windows that one page is cut from. A longer page is requested itself.
const MOST_WINDOWS: u64 = 16;
/// How often windows that are inconsistent are fetched again.
const MOST_RETRIES: usize = 2;

/// Windows of a list, ascending.
type Parts = Vec<Arc<StoredResponse>>;

/// How a key would be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// A transaction's page is cut from its block's stored windows.
    CutTransaction,
    /// A page is cut from stored windows.
    Cut,
    /// These windows are fetched; the page is cut from them and from the stored ones.
    Windows {
        /// The windows that are fetched.
        fetched: Vec<Key>,
        /// Whether all windows are stored, but are from different times and do not
        /// fit together.
        disagree: bool,
    },
    /// The key itself is fetched.
    Plain,
}

impl Plan {
    /// The keys that would be requested for `key`.
    pub(crate) fn requests(self, key: &Key) -> Vec<Key> {
        match self {
            Self::CutTransaction | Self::Cut => Vec::new(),
            Self::Windows { fetched, .. } => fetched,
            Self::Plain => vec![key.clone()],
        }
    }
}

/// Why a page is not cut from windows.
enum NoWindows {
    /// The upstream's answer is none, or it refuses one, perhaps for its size or its
    /// offset: then it may refuse the page itself as well.
    NotAWindow { why: String, is_refusal: bool },
    /// They stay inconsistent.
    Inconsistent,
}

/// A page of a list that a client requests.
pub(super) struct List<'k> {
    key: &'k Key,
    route: &'k Route,
    /// Items of a window.
    size: u64,
    limit: u64,
    offset: u64,
}

impl<'k> List<'k> {
    /// The page that a key requests, if its route has pages and it is not too long.
    pub(super) fn of(key: &'k Key, route: &'k Route) -> Option<Self> {
        let (limit, offset) = page_of(key)?;
        let size = u64::from(route.chain.window?.get());
        (limit / size < MOST_WINDOWS).then_some(Self {
            key,
            route,
            size,
            limit,
            offset,
        })
    }

    /// The offsets of all windows that the page overlaps.
    fn offsets(&self) -> impl Iterator<Item = u64> {
        windows(self.offset, self.limit, self.size)
    }

    /// The key of the window at an offset.
    fn window(&self, offset: u64) -> Option<Key> {
        with_page(self.key, self.size, offset)
    }

    /// Whether a response stored for a window is one, or an answer that the upstream
    /// gives in place of any page.
    fn is_usable(&self, part: &StoredResponse, offset: u64) -> bool {
        match (part.page(), part.status == StatusCode::OK) {
            (Some(page), true) => check_window(page, offset, self.size).is_ok(),
            (None, is_ok) => !is_ok,
            (Some(_), false) => true,
        }
    }

    /// Why an answer to a window cannot be used, if it cannot.
    fn check(&self, part: &StoredResponse, offset: u64) -> Result<(), NoWindows> {
        let not = |why: String, is_refusal| NoWindows::NotAWindow { why, is_refusal };
        if part.status == StatusCode::OK {
            let page = part.page();
            let page = page.ok_or_else(|| not("an answer is no page".into(), false))?;
            let checked = check_window(page, offset, self.size);
            return checked.map_err(|why| not(why.to_string(), false));
        }
        // Such as a limit that is too large for it; but where the window is the page,
        // that is the answer.
        let is_page = (self.limit, self.offset) == (self.size, offset);
        let is_refused = part.status == StatusCode::BAD_REQUEST && !refuses_list(part);
        match is_refused && !is_page {
            true => Err(not(format!("it answers {} to a window", part.status), true)),
            false => Ok(()),
        }
    }
}

impl Fill {
    /// How a key would be fetched now, if its stored response is not fresh.
    pub(crate) fn plan(&self, key: &Key) -> Plan {
        let Some(route) = self.route(key).filter(|r| r.cache.mode == Mode::Chain) else {
            return Plan::Plain;
        };
        if self.cut_transaction(key, route).is_some() {
            return Plan::CutTransaction;
        }
        let list = List::of(key, route).filter(|_| self.are_pages_cut(key.route()));
        let Some(list) = list else {
            return Plan::Plain;
        };
        if self.end_of(&list).is_some() {
            return Plan::Cut;
        }
        let wanted = self.wanted(&list, false);
        let missing = wanted.iter().filter(|(_, part)| part.is_none());
        let fetched: Vec<Key> = missing.filter_map(|(at, _)| list.window(*at)).collect();
        if !fetched.is_empty() {
            let disagree = false;
            return Plan::Windows { fetched, disagree };
        }
        let parts: Parts = wanted.into_iter().filter_map(|(_, part)| part).collect();
        // A window that is no page, such as an error, answers for all.
        let is_other = parts.iter().any(|part| part.page().is_none());
        match is_other || self.cut_page(&list, &parts, AnswerSource::Memory).is_some() {
            true => Plan::Cut,
            false => Plan::Windows {
                fetched: list.offsets().filter_map(|at| list.window(at)).collect(),
                disagree: true,
            },
        }
    }

    /// The keys of the windows that a page is cut from; none where it is not cut.
    pub(crate) fn windows_of(&self, key: &Key) -> Vec<Key> {
        let list = self.route(key).and_then(|route| List::of(key, route));
        let windows = |list: List<'_>| list.offsets().filter_map(|at| list.window(at)).collect();
        list.map_or_else(Vec::new, windows)
    }

    /// Where a transaction was last seen among its block's windows, and that
    /// window's key.
    pub(crate) fn seen_in(&self, key: &Key) -> Option<(TransactionLocation, Key)> {
        let (_, location, window) = self.transaction_window(key, self.route(key)?)?;
        Some((location, window))
    }

    /// Whether a route's pages are cut from windows at present.
    pub(crate) fn are_pages_cut(&self, route: u16) -> bool {
        self.window_support.is_active(route, self.clock.now())
    }

    /// Answers a page from windows, or requests the page itself. Also says whether others
    /// fetched all that was fetched.
    pub(super) async fn answer_page(
        self: &Arc<Self>,
        list: &List<'_>,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        let mut collapsed = true;
        let refused = match self
            .answer_from_windows(list, wait, priority, &mut collapsed)
            .await
        {
            Ok(Ok(found)) => {
                let is_joined = collapsed && found.from != AnswerSource::Memory;
                return (Ok(found), is_joined);
            }
            Err(failure) => return (Err(failure), collapsed),
            Ok(Err(NoWindows::NotAWindow { why, is_refusal })) => {
                if !is_refusal {
                    self.suspend_windows(list, &why);
                }
                Some(why).filter(|_| is_refusal)
            }
            Ok(Err(NoWindows::Inconsistent)) => {
                if (self.inconsistent_windows).is_due(LogInterval::MINUTE, self.clock.now()) {
                    tracing::info!(
                        route = &*list.route.name,
                        target_path = &*shown_path(list.key.target()),
                        "the windows of a list stay inconsistent: the page itself is requested; others are logged a minute later at the earliest"
                    );
                }
                None
            }
        };
        let (found, joined) = self.fetch(list.key, false, wait, priority).await;
        // The page is answered, so the window was refused for itself.
        let is_ok = |found: &FillAnswer| found.stored.status == StatusCode::OK;
        if let Some(why) = refused.filter(|_| found.as_ref().is_ok_and(is_ok)) {
            self.suspend_windows(list, &why);
        }
        (found, joined)
    }

    /// Stops requesting windows of a route for a while.
    fn suspend_windows(&self, list: &List<'_>, why: &str) {
        let now = self.clock.now();
        if let Some(lasts) = self.window_support.suspend(list.key.route(), now) {
            tracing::warn!(
                route = &*list.route.name,
                upstream_page = list.size,
                why,
                seconds = lasts.as_secs(),
                "pages of this route cannot be cut from windows: for a while each page is requested itself; perhaps upstream_page is more than the upstream allows"
            );
        }
    }

    /// Answers a page from windows; `collapsed` becomes false if this client fetches one.
    async fn answer_from_windows(
        self: &Arc<Self>,
        list: &List<'_>,
        wait: Wait,
        priority: RequestPriority,
        collapsed: &mut bool,
    ) -> Result<Result<FillAnswer, NoWindows>, Failure> {
        for attempt in 0..=MOST_RETRIES {
            // Inconsistent windows are of different moments.
            let anew = attempt > 0;
            let found = self.windows(list, anew, wait, priority, collapsed).await?;
            let (parts, from) = match found {
                Ok(found) => found,
                Err(why) => return Ok(Err(why)),
            };
            // A part that is no page answers the whole request.
            if let Some(other) = parts.iter().find(|part| part.page().is_none()) {
                let stored = other.clone();
                if is_kept(from) {
                    self.store_for_list(list, &stored);
                }
                return Ok(Ok(FillAnswer { stored, from }));
            }
            // Another client, which waited for the same windows, may have cut it.
            let cut = match is_kept(from) {
                true if !anew => self
                    .fresh(list.key)
                    .or_else(|| self.cut_and_store(list, &parts)),
                true => self.cut_and_store(list, &parts),
                false => self.cut_page(list, &parts, from),
            };
            let is_purged = |stored: &_| (self.cache.store()).response_was_purged(list.key, stored);
            if let Some(stored) = cut.filter(|stored| !is_purged(stored)) {
                return Ok(Ok(FillAnswer { stored, from }));
            }
        }
        Ok(Err(NoWindows::Inconsistent))
    }

    /// The windows that a page is cut from, and where they are from; all are fetched `anew`
    /// if their stored ones are inconsistent.
    async fn windows(
        self: &Arc<Self>,
        list: &List<'_>,
        anew: bool,
        wait: Wait,
        priority: RequestPriority,
        collapsed: &mut bool,
    ) -> Result<Result<(Parts, AnswerSource), NoWindows>, Failure> {
        // No request is needed past the list's end, or of a list that is refused.
        if !anew && let Some(part) = self.end_of(list) {
            return Ok(Ok((vec![part], AnswerSource::Memory)));
        }
        let fetches = self.wanted(list, anew).into_iter();
        let fetches = fetches.map(|(offset, part)| async move {
            let Some(key) = list.window(offset) else {
                let failure = Failure::new(Reason::Internal);
                return (offset, Err(failure), true);
            };
            if let Some(stored) = part {
                let from = AnswerSource::Memory;
                return (offset, Ok(FillAnswer { stored, from }), true);
            }
            let stored = self.fresh(&key);
            let anew = anew || stored.is_some_and(|part| !list.is_usable(&part, offset));
            let (found, joined) = self.fetch(&key, anew, wait, priority).await;
            (offset, found, joined)
        });
        let (mut parts, mut from) = (Parts::new(), AnswerSource::Memory);
        for (offset, found, joined) in join_all(fetches).await {
            *collapsed &= joined;
            let found = match found {
                // The page, being smaller, may not be.
                Err(failure)
                    if failure.reason == Reason::AnswerTooLarge && list.limit < list.size =>
                {
                    let why = "a window is more than upstream.max_body_bytes".to_owned();
                    let is_refusal = true;
                    return Ok(Err(NoWindows::NotAWindow { why, is_refusal }));
                }
                found => found?,
            };
            if let Err(why) = list.check(&found.stored, offset) {
                return Ok(Err(why));
            }
            from = match (from, found.from) {
                // One window that is not confirmed leaves the page so.
                (_, AnswerSource::Memory) | (AnswerSource::Unconfirmed, _) => from,
                (AnswerSource::Upstream { .. }, AnswerSource::Disk | AnswerSource::Shared)
                | (
                    AnswerSource::Upstream { stored: false },
                    AnswerSource::Upstream { stored: true },
                ) => from,
                (_, found) => found,
            };
            parts.push(found.stored);
        }
        self.window_support.resume(list.key.route());
        Ok(Ok((parts, from)))
    }

    /// The offsets of the windows that a page is cut from, with those that are
    /// stored and fresh; none of them if they are to be fetched `anew`.
    fn wanted(&self, list: &List<'_>, anew: bool) -> Vec<(u64, Option<Arc<StoredResponse>>)> {
        let stored = |offset| match anew {
            true => None,
            false => self.fresh_window(list, offset),
        };
        let mut found: Vec<_> = (list.offsets().map(|offset| (offset, stored(offset)))).collect();
        let parts = found.iter().filter_map(|(_, part)| part.as_deref());
        let mut pages = parts.filter_map(StoredResponse::page);
        let total = pages.find(|page| !page.is_empty()).map(|page| page.total);
        // Windows past the list's end are not requested.
        let first = found.first().map(|(offset, _)| *offset);
        found.retain(|(offset, part)| {
            part.is_some() || Some(*offset) == first || total.is_none_or(|total| *offset < total)
        });
        found
    }

    /// A window that is stored and fresh. What was stored in its place while the
    /// upstream gave no windows does not count.
    fn fresh_window(&self, list: &List<'_>, offset: u64) -> Option<Arc<StoredResponse>> {
        let part = self.fresh(&list.window(offset)?);
        part.filter(|part| list.is_usable(part, offset))
    }

    /// A stored window that answers the page: it shows that the list ends before the
    /// page, or that every page of the list is refused.
    fn end_of(&self, list: &List<'_>) -> Option<Arc<StoredResponse>> {
        let own = list.offset - list.offset % list.size;
        let before = own.checked_sub(list.size);
        let offsets = [Some(own), before, Some(0)].into_iter().flatten();
        let mut stored = offsets.filter_map(|offset| self.fresh_window(list, offset));
        stored.find(|part| {
            let window = part.page().map(|page| window(part, page));
            window.is_some_and(|window| ends_before(window, list.offset)) || refuses_list(part)
        })
    }

    /// Stores an answer in place of a window for the page as well; and, where it
    /// answers every page of the list, for the first window, which is looked up for
    /// all pages ([`end_of`](Self::end_of)). A purge of one of a list's keys purges
    /// all of them, so they may share it.
    fn store_for_list(&self, list: &List<'_>, answer: &Arc<StoredResponse>) {
        let first = list.window(0).filter(|_| refuses_list(answer));
        for key in [Some(list.key.clone()), first].into_iter().flatten() {
            if !self.cache.store().response_was_purged(&key, answer) {
                self.cache.store().insert(key, answer.clone());
            }
        }
    }

    /// Cuts a page from consistent windows, and stores it.
    fn cut_and_store(
        &self,
        list: &List<'_>,
        parts: &[Arc<StoredResponse>],
    ) -> Option<Arc<StoredResponse>> {
        let stored = self.cut_page(list, parts, AnswerSource::Memory)?;
        // The window is the page, and is stored already.
        if parts.iter().any(|part| Arc::ptr_eq(part, &stored)) {
            return Some(stored);
        }
        let has_blocks = stored.page().is_some_and(|p| !p.blocks().is_empty());
        let key = match list.route.chain.segments.block {
            // Where the block's height is known by now, it is stored under that; but not
            // if it is of a time when the block had no items.
            Some(_) if has_blocks => self.lookup_key(list.route, list.key.clone()).key,
            Some(_) | None => list.key.clone(),
        };
        self.cache.store().insert(key, stored.clone());
        Some(stored)
    }

    /// Cuts a page from windows; `None` where they are inconsistent. What was passed on is
    /// for no later request.
    fn cut_page(
        &self,
        list: &List<'_>,
        parts: &[Arc<StoredResponse>],
        from: AnswerSource,
    ) -> Option<Arc<StoredResponse>> {
        if !are_consistent(&windows_of(parts)?) || !is_one_moment(parts) {
            return None;
        }
        // Windows past the end add nothing.
        let is_empty = |part: &&Arc<StoredResponse>| part.page().is_some_and(|p| p.is_empty());
        let within: Parts = parts.iter().filter(|p| !is_empty(p)).cloned().collect();
        let parts = match within.is_empty() {
            true => parts,
            false => &within,
        };
        let windows = windows_of(parts)?;
        // The window is the page.
        if let ([part], [window]) = (parts, &windows[..])
            && (window.page.limit, window.page.offset) == (list.limit, list.offset)
        {
            return Some(part.clone());
        }
        let body = pages::cut_page(&windows, list.offset, list.limit)?;
        let mut cut = self.response_of(parts, body)?;
        if from == (AnswerSource::Upstream { stored: false }) {
            let metadata = Metadata::of(cut.content_type(), ClientFreshness::Nothing);
            cut.fields = StoredFields::Prepared(metadata);
        }
        Some(Arc::new(cut))
    }

    /// A response made of parts. It has the lowest finality class of them,
    /// and is as old as the oldest.
    pub(super) fn response_of(
        &self,
        parts: &[Arc<StoredResponse>],
        body: Vec<u8>,
    ) -> Option<StoredResponse> {
        let class = |part: &&Arc<StoredResponse>| part.stamp().map(|stamp| stamp.class);
        let least = parts.iter().min_by_key(class)?;
        let stamps = || parts.iter().filter_map(|part| part.stamp());
        // The epoch of a final part does not matter.
        let ending = stamps().filter(|stamp| stamp.class != Class::Final);
        let heights = stamps().filter_map(|stamp| stamp.heights);
        let stamp = ChainStamp {
            epoch: ending
                .map(|stamp| stamp.epoch)
                .min()
                .unwrap_or(least.stamp()?.epoch),
            heights: heights.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))),
            is_settled: stamps().all(|stamp| stamp.is_settled),
            ..*least.stamp()?
        };
        let lifetime = (self.chain).client_lifetime(stamp.class, stamp.tip, self.clock.now());
        let freshness = ClientFreshness::of_class(stamp.class, lifetime);
        let etag = etag(&body);
        Some(StoredResponse {
            status: least.status,
            fields: StoredFields::Prepared(Metadata::of(least.content_type(), freshness)),
            received: parts.iter().map(|part| part.received).min()?,
            lifetime: parts.iter().map(|part| part.lifetime).min()?,
            took: parts.iter().map(|part| part.took).max()?,
            stamp: Some(stamp),
            page: Page::read(&body),
            body: Box::<[u8]>::from(body).into(),
            body_id: BodyId::of(&etag, parts.iter().all(|part| part.body_id.is_encodable())),
            etag,
            checked: CheckedPurge::at(parts.iter().map(|part| part.checked.number()).min()?),
        })
    }
}

/// Whether what is made of windows may be stored.
const fn is_kept(from: AnswerSource) -> bool {
    !matches!(
        from,
        AnswerSource::Unconfirmed | AnswerSource::Upstream { stored: false }
    )
}

/// Whether parts are of one moment: of one block, whose hash determines its list, or
/// of one epoch.
pub(super) fn is_one_moment(parts: &[Arc<StoredResponse>]) -> bool {
    let Some(windows) = windows_of(parts) else {
        return false;
    };
    let stamps = || parts.iter().filter_map(|part| part.stamp());
    let is_live = stamps().any(|stamp| stamp.class == Class::Live);
    let has_blocks = windows
        .iter()
        .any(|window| !window.page.blocks().is_empty());
    match (is_live, has_blocks) {
        // The list may span blocks, and each new block may extend it.
        (true, _) | (false, false) => {
            let mut epochs = stamps().map(|stamp| stamp.epoch);
            let first = epochs.next();
            epochs.all(|epoch| Some(epoch) == first)
        }
        (false, true) => of_one_block(&windows),
    }
}

/// The windows that parts are; `None` where one is no page.
pub(super) fn windows_of(parts: &[Arc<StoredResponse>]) -> Option<Vec<Window<'_>>> {
    parts
        .iter()
        .map(|part| Some(window(part, part.page()?)))
        .collect()
}

/// Whether a stored answer is a refusal that any page of its list would get.
fn refuses_list(part: &StoredResponse) -> bool {
    part.status == StatusCode::BAD_REQUEST && refuses_every_page(&part.body)
}

/// A stored window, to be cut.
pub(super) fn window<'p>(part: &'p StoredResponse, page: &'p Page) -> Window<'p> {
    Window {
        body: &part.body,
        page,
    }
}
