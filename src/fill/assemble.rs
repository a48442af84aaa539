//! Pages cut from stored windows.
//!
//! What is asked of the upstream is the canonical window: `upstream_page` items
//! at a multiple of that. A client's page is cut from the windows that it
//! touches and stored under its own key, so that the second one who asks for it
//! gets a hit like any other. Windows are joined only where they are of one
//! moment. A transaction is cut from its block's windows, where it lies in them
//! whole.
//!
//! An upstream whose windows are none (it caps pages lower, its totals do not
//! agree) is asked plainly, and tried again later.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use http::StatusCode;

use super::ingest::promise;
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::Metadata;
use crate::cache::sequence::CheckedSequence;
use crate::cache::{Attached, StoredResponse};
use crate::chain::ChainStamp;
use crate::chain::finality::Class;
use crate::chain::runs::TransactionLocation;
use crate::clock::Moment;
use crate::collapse::Lead;
use crate::pages::{
    self, Hash, Page, Window, are_consistent, check_window, ends_before, hash, of_one_block,
    open_edges, windows,
};
use crate::route::Route;
use crate::route::canonical::{page as page_of, segment, with_page};
use crate::upstream::answer::refuses_every_page;
use crate::upstream::{Failure, RequestPriority};

/// Which routes' upstream gives windows.
pub(super) struct Sliceable(Box<[Mutex<Option<Distrust>>]>);

/// Why windows are not asked for.
#[derive(Clone, Copy, Debug)]
struct Distrust {
    until: Moment,
    /// How long it lasts this time.
    lasts: Duration,
}

/// How long an upstream is asked plainly at first, after it has given no window.
const FIRST_DISTRUST: Duration = Duration::from_secs(60);
/// How long at the most, where it goes on so.
const MOST_DISTRUST: Duration = Duration::from_hours(1);
/// How often windows that disagree are fetched anew.
const DISAGREEMENTS: usize = 2;

impl Sliceable {
    /// All are trusted.
    pub(super) fn new(routes: usize) -> Self {
        Self((0..routes).map(|_| Mutex::default()).collect())
    }

    /// What is known of these, for so many routes.
    pub(super) fn after(&self, routes: usize) -> Self {
        let known = |route| {
            let route = u16::try_from(route).ok();
            Mutex::new(route.and_then(|route| self.with(route, |distrust| *distrust)?))
        };
        Self((0..routes).map(known).collect())
    }

    fn is(&self, route: u16, now: Moment) -> bool {
        self.with(route, |distrust| {
            distrust.is_none_or(|distrust| distrust.until <= now)
        })
        .unwrap_or(false)
    }

    /// Its windows are none. Answers for how long they are not asked for.
    fn distrust(&self, route: u16, now: Moment) -> Option<Duration> {
        self.with(route, |distrust| {
            let lasts = distrust.map_or(FIRST_DISTRUST, |before| {
                (before.lasts * 2).min(MOST_DISTRUST)
            });
            let until = now + lasts;
            *distrust = Some(Distrust { until, lasts });
            lasts
        })
    }

    /// A window was one.
    fn trust(&self, route: u16) {
        self.with(route, |distrust| *distrust = None);
    }

    fn with<T>(&self, route: u16, f: impl FnOnce(&mut Option<Distrust>) -> T) -> Option<T> {
        let slot = self.0.get(usize::from(route))?;
        Some(f(&mut slot.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Parts of a list, each with what it consists of.
type Parts = Vec<Arc<StoredResponse>>;

/// The windows that a page is cut from, and where they are from; or why there
/// are none.
type Windows = Result<(Parts, AnswerSource), Unfit>;

/// Why there are no windows.
enum Unfit {
    /// What came is none.
    NoWindow(String),
    /// The upstream refuses one, perhaps for its size or its offset; it may
    /// refuse the page itself as well.
    Refused(String),
}

impl Fill {
    /// Finds out a key of a route in mode `chain`.
    pub(super) async fn obtain_of_chain(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        wish: RequestPriority,
    ) -> FillResult {
        if let Some(found) = self.check(lead, key, route, wish).await? {
            return Ok(found);
        }
        if self.revalidate_by_anchor(lead, key, route, wish).await?
            && let Some(stored) = self.fresh(key)
        {
            return Ok(FillAnswer {
                stored,
                from: AnswerSource::Memory,
            });
        }
        if let Some(stored) = self.derive(key, route) {
            self.cache.store().insert(key.clone(), stored.clone());
            return Ok(FillAnswer {
                stored,
                from: AnswerSource::Memory,
            });
        }
        if self.is_sliceable(key.route())
            && let Some(list) = List::of(key, route, wish)
        {
            let refused = match self.assemble(lead, &list).await {
                ControlFlow::Break(found) => return found,
                ControlFlow::Continue(refused) => refused,
            };
            let found = self.exchange(lead, key, wish, false).await?;
            // It was the window that was wrong.
            if let Some(why) = refused.filter(|_| found.stored.status == StatusCode::OK) {
                self.give_up_windows(&list, &why);
            }
            return Ok(found);
        }
        self.exchange(lead, key, wish, false).await
    }

    /// Whether a route's pages are cut from windows just now.
    pub fn is_sliceable(&self, route: u16) -> bool {
        self.sliceable.is(route, self.clock.now())
    }

    /// Answers a page from windows; goes on where the upstream has to be asked
    /// for the page itself, and says how it has refused a window, if it has.
    async fn assemble(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
    ) -> ControlFlow<FillResult, Option<String>> {
        for attempt in 0..=DISAGREEMENTS {
            // Windows that disagreed are of different moments.
            let anew = attempt > 0;
            let (parts, from) = match self.windows(lead, list, anew).await {
                Ok(Ok(found)) => found,
                Ok(Err(Unfit::NoWindow(why))) => {
                    self.give_up_windows(list, &why);
                    return ControlFlow::Continue(None);
                }
                Ok(Err(Unfit::Refused(why))) => return ControlFlow::Continue(Some(why)),
                Err(failure) => return ControlFlow::Break(Err(failure)),
            };
            // One part that is neither a page nor nothing answers for all.
            if let Some(odd) = parts.iter().find(|part| part.page().is_none()) {
                let stored = odd.clone();
                self.keep_for_list(list, &stored);
                return ControlFlow::Break(Ok(FillAnswer { stored, from }));
            }
            if let Some(stored) = self.paste(list, &parts) {
                if self.cache.store().has_purged(list.key, &stored) {
                    continue;
                }
                return ControlFlow::Break(Ok(FillAnswer { stored, from }));
            }
        }
        tracing::info!(
            route = &*list.route.name,
            target_path = list.key.target(),
            "windows of one list do not agree, however often they are fetched: the page itself is asked for"
        );
        ControlFlow::Continue(None)
    }

    /// Stores what answers in place of a window for the page as well; and, where
    /// it answers for every page of the list, for the first window, which all
    /// pages look at ([`end_of`](Self::end_of)). A purge of one of a list's keys
    /// is a purge of all, so they may share it.
    fn keep_for_list(&self, list: &List<'_>, odd: &Arc<StoredResponse>) {
        let first = list.window(0).filter(|_| refuses_list(odd));
        let keys = [Some(list.key.clone()), first];
        for key in keys.into_iter().flatten() {
            if !self.cache.store().has_purged(&key, odd) {
                self.cache.store().insert(key, odd.clone());
            }
        }
    }

    fn give_up_windows(&self, list: &List<'_>, why: &str) {
        let now = self.clock.now();
        if let Some(lasts) = self.sliceable.distrust(list.key.route(), now) {
            tracing::warn!(
                route = &*list.route.name,
                upstream_page = list.size,
                why,
                seconds = lasts.as_secs(),
                "the upstream's pages cannot be cut from windows: each page is asked for itself for a while; perhaps upstream_page is more than it allows"
            );
        }
    }

    /// The windows that a page is cut from, stored ones where they are fresh.
    async fn windows(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
        anew: bool,
    ) -> Result<Windows, Failure> {
        // A list that ends before, or that is refused, costs nothing, if a
        // window shows it.
        if !anew && let Some(part) = self.end_of(list) {
            return Ok(Ok((vec![part], AnswerSource::Memory)));
        }
        let found = self.wanted(list, anew);
        let fetches = found.into_iter().map(|(offset, part)| async move {
            match part {
                Some(stored) => {
                    let from = AnswerSource::Memory;
                    Ok((offset, FillAnswer { stored, from }))
                }
                None => Ok((offset, self.window(lead, list, offset, anew).await?)),
            }
        });
        let mut parts = Parts::new();
        let mut from = AnswerSource::Memory;
        for fetched in join_all(fetches).await {
            let (offset, found): (_, FillAnswer) = match fetched {
                // Less of it may be not.
                Err(Failure::TooLarge) if list.limit < list.size => {
                    let why = "a window is more than upstream.max_body_bytes".to_owned();
                    return Ok(Err(Unfit::Refused(why)));
                }
                fetched => fetched?,
            };
            let part = found.stored;
            if found.from != AnswerSource::Memory {
                from = found.from;
            }
            let is_page = part.status == StatusCode::OK;
            match (part.page(), is_page) {
                (Some(page), true) => {
                    if let Err(why) = check_window(page, offset, list.size) {
                        return Ok(Err(Unfit::NoWindow(why.to_string())));
                    }
                }
                (None, true) => {
                    return Ok(Err(Unfit::NoWindow("an answer is no page".to_owned())));
                }
                // Such as a limit that is more than it allows; but where the
                // window is the page, that is the answer.
                (_, false)
                    if part.status == StatusCode::BAD_REQUEST
                        && !refuses_list(&part)
                        && (list.limit, list.offset) != (list.size, offset) =>
                {
                    let why = format!("it answers {} to a window", part.status);
                    return Ok(Err(Unfit::Refused(why)));
                }
                (_, false) => {}
            }
            parts.push(part);
        }
        self.sliceable.trust(list.key.route());
        Ok(Ok((parts, from)))
    }

    /// Which windows a page is cut from, with those that are stored and fresh;
    /// to be fetched anew, none is.
    pub(super) fn wanted(
        &self,
        list: &List<'_>,
        anew: bool,
    ) -> Vec<(u64, Option<Arc<StoredResponse>>)> {
        let stored = |offset| match anew {
            true => None,
            false => self.fresh_window(list, offset),
        };
        let mut total = None;
        let mut found: Vec<(u64, Option<Arc<StoredResponse>>)> = Vec::new();
        for offset in windows(list.offset, list.limit, list.size) {
            let part = stored(offset);
            total = total.or_else(|| part.as_ref().and_then(|part| list.total(part)));
            found.push((offset, part));
        }
        // What lies beyond the total is not asked for.
        let first = found.first().map(|(offset, _)| *offset);
        found.retain(|(offset, part)| {
            part.is_some() || Some(*offset) == first || total.is_none_or(|total| *offset < total)
        });
        found
    }

    /// A window that is stored and fresh; not what came in place of one while
    /// the upstream gave none.
    fn fresh_window(&self, list: &List<'_>, offset: u64) -> Option<Arc<StoredResponse>> {
        let part = self.fresh(&list.window(offset)?);
        part.filter(|part| list.fits(part, offset))
    }

    /// A stored window that answers for the page: it shows that nothing lies
    /// where the page begins, or that every page of the list is refused.
    pub(super) fn end_of(&self, list: &List<'_>) -> Option<Arc<StoredResponse>> {
        let own = list.offset - list.offset % list.size;
        let before = own.checked_sub(list.size);
        [Some(own), before, Some(0)]
            .into_iter()
            .flatten()
            .filter_map(|offset| self.fresh_window(list, offset))
            .find(|part| {
                let window = part.page().map(|page| window(part, page));
                window.is_some_and(|window| ends_before(window, list.offset)) || refuses_list(part)
            })
    }

    /// Fetches a window, or waits for who does.
    async fn window(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
        offset: u64,
        anew: bool,
    ) -> FillResult {
        let Some(key) = list.window(offset) else {
            return Err(Failure::Abandoned);
        };
        let anew = anew
            || self
                .fresh(&key)
                .is_some_and(|part| !list.fits(&part, offset));
        self.exchange(lead, &key, list.wish, anew).await
    }

    /// Cuts a page from windows that agree, and stores it.
    fn paste(&self, list: &List<'_>, parts: &[Arc<StoredResponse>]) -> Option<Arc<StoredResponse>> {
        let stored = self.cut_page(list, parts)?;
        // The window is the page, and is stored already.
        if parts.iter().any(|part| Arc::ptr_eq(part, &stored)) {
            return Some(stored);
        }
        let names_blocks = stored.page().is_some_and(|p| !p.blocks().is_empty());
        let key = match list.route.places.block {
            // Where its height is known by now, it is stored under that; unless it
            // is of a time when there was nothing of the block.
            Some(_) if names_blocks => self.lookup_key(list.route, list.key.clone()).key,
            Some(_) | None => list.key.clone(),
        };
        self.cache.store().insert(key, stored.clone());
        Some(stored)
    }

    /// Cuts a page from windows that agree.
    pub(super) fn cut_page(
        &self,
        list: &List<'_>,
        parts: &[Arc<StoredResponse>],
    ) -> Option<Arc<StoredResponse>> {
        if !are_consistent(&cut(parts)?) || !is_one_moment(parts) {
            return None;
        }
        // What lies past the end says nothing more.
        let is_empty = |part: &&Arc<StoredResponse>| part.page().is_some_and(|p| p.is_empty());
        let within: Parts = parts.iter().filter(|p| !is_empty(p)).cloned().collect();
        let parts = match within.is_empty() {
            true => parts,
            false => &within,
        };
        let cut = cut(parts)?;
        // The window is the page.
        if let ([part], [window]) = (parts, &cut[..])
            && (window.page.limit, window.page.offset) == (list.limit, list.offset)
        {
            return Some(part.clone());
        }
        let body = pages::assemble(&cut, list.offset, list.limit)?;
        Some(Arc::new(self.assembled(parts, body)?))
    }

    /// What is made of parts is as settled as the least settled of them, and as
    /// old as the oldest.
    fn assembled(&self, parts: &[Arc<StoredResponse>], body: Vec<u8>) -> Option<StoredResponse> {
        let class = |part: &&Arc<StoredResponse>| part.stamp().map(|standing| standing.class);
        let least = parts.iter().min_by_key(class)?;
        let standing = least.stamp()?;
        // The epoch of what is final says nothing.
        let standings = parts.iter().filter_map(|part| part.stamp());
        let ending = standings.filter(|standing| standing.class.ends_with_epoch());
        let epoch = ending.map(ChainStamp::epoch).min();
        let epoch = epoch.unwrap_or_else(|| standing.epoch());
        let heights = parts
            .iter()
            .filter_map(|part| part.stamp()?.heights())
            .reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        let (class, tip) = (standing.class, standing.tip);
        let time = self.chain.promise(class, tip, self.clock.now());
        let promise = promise(class, time);
        Some(StoredResponse {
            status: least.status,
            etag: etag(&body),
            metadata: Metadata::of(least.metadata.content_type.clone(), promise),
            received: parts.iter().map(|part| part.received).min()?,
            lifetime: parts.iter().map(|part| part.lifetime).min()?,
            took: parts.iter().map(|part| part.took).max()?,
            attached: Attached {
                stamp: Some(ChainStamp::new(class, tip, heights, epoch).promising(time)),
                page: Page::read(&body),
            },
            body: Box::<[u8]>::from(body).into(),
            checked: CheckedSequence::at(parts.iter().map(|part| part.checked.number()).min()?),
        })
    }

    /// Where a transaction was seen, and the key of that window.
    pub(super) fn hint(
        &self,
        key: &Key,
        route: &Route,
    ) -> Option<(Hash, TransactionLocation, Key)> {
        let from = route.derived_from?;
        let source = self.routes.get(from)?;
        let size = u64::from(source.pages?.get());
        let tx = hash(segment(key.target(), route.places.hex64?)?)?;
        let place = self.chain.find_run(&tx)?;
        let window = source.key_of_block(place.height, size, place.offset)?;
        (place.route == from).then_some((tx, place, window))
    }

    /// A transaction's page, where its block's stored windows have it whole.
    pub(super) fn derive(&self, key: &Key, route: &Route) -> Option<Arc<StoredResponse>> {
        let (tx, place, first) = self.hint(key, route)?;
        let size = u64::from(self.route(&first)?.pages?.get());
        let (limit, offset) = page_of(key)?;
        let fresh = |offset| self.fresh(&with_page(&first, size, offset)?);
        let mut parts = vec![fresh(place.offset)?];
        let edges = |part: &Arc<StoredResponse>| {
            let page = part.page()?;
            open_edges(window(part, page), &tx)
        };
        // The run may go on in the windows beside it, as far as those are here.
        let mut before = place.offset;
        while edges(parts.first()?)?.before {
            before = before.checked_sub(size)?;
            parts.insert(0, fresh(before)?);
            if edges(parts.first()?).is_none() {
                break;
            }
        }
        let mut after = place.offset;
        while edges(parts.last()?).is_some_and(|edges| edges.after) {
            after += size;
            parts.push(fresh(after)?);
        }
        let cut = cut(&parts)?;
        if !is_one_moment(&parts) {
            return None;
        }
        let body = pages::transaction_page(&cut, &tx, offset, limit)?;
        Some(Arc::new(self.assembled(&parts, body)?))
    }
}

/// A page of a list that a client asks for.
pub(super) struct List<'k> {
    key: &'k Key,
    route: &'k Route,
    /// Items of a window.
    size: u64,
    limit: u64,
    offset: u64,
    wish: RequestPriority,
}

impl<'k> List<'k> {
    /// The page that a key asks for, where its route has pages.
    pub(super) fn of(key: &'k Key, route: &'k Route, wish: RequestPriority) -> Option<Self> {
        let (limit, offset) = page_of(key)?;
        Some(Self {
            key,
            route,
            size: u64::from(route.pages?.get()),
            limit,
            offset,
            wish,
        })
    }

    /// The keys of all windows that it touches.
    pub(super) fn windows(&self) -> Vec<Key> {
        let offsets = windows(self.offset, self.limit, self.size);
        offsets.filter_map(|offset| self.window(offset)).collect()
    }

    pub(super) fn window(&self, offset: u64) -> Option<Key> {
        with_page(self.key, self.size, offset)
    }

    /// Whether what is stored for a window is one, or what the upstream says in
    /// place of any page.
    fn fits(&self, part: &StoredResponse, offset: u64) -> bool {
        match (part.page(), part.status == StatusCode::OK) {
            (Some(page), true) => check_window(page, offset, self.size).is_ok(),
            (None, is_page) => !is_page,
            (Some(_), false) => true,
        }
    }

    /// How many items the list has, as a window within it says.
    fn total(&self, part: &StoredResponse) -> Option<u64> {
        let page = part.page()?;
        (!page.is_empty()).then_some(page.total)
    }
}

/// Whether a stored answer is a refusal that any page of its list would get.
fn refuses_list(part: &StoredResponse) -> bool {
    part.status == StatusCode::BAD_REQUEST && refuses_every_page(&part.body)
}

fn window<'p>(part: &'p StoredResponse, page: &'p Page) -> Window<'p> {
    Window {
        body: &part.body,
        page,
    }
}

/// Whether parts are of one moment: of one block, whose list is what its hash
/// says, or of one epoch.
fn is_one_moment(parts: &[Arc<StoredResponse>]) -> bool {
    let Some(cut) = cut(parts) else {
        return false;
    };
    let standings = || parts.iter().filter_map(|part| part.stamp());
    let is_open = standings().any(|standing| standing.class == Class::Live);
    let names_blocks = cut.iter().any(|window| !window.page.blocks().is_empty());
    match (is_open, names_blocks) {
        // It may span blocks, and goes on with each.
        (true, _) | (false, false) => {
            let mut epochs = standings().map(ChainStamp::epoch);
            let first = epochs.next();
            epochs.all(|epoch| Some(epoch) == first)
        }
        (false, true) => of_one_block(&cut),
    }
}

fn cut(parts: &[Arc<StoredResponse>]) -> Option<Vec<Window<'_>>> {
    parts
        .iter()
        .map(|part| Some(window(part, part.page()?)))
        .collect()
}
