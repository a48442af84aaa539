//! The windows that a client's page is cut from, stored ones where they are
//! fresh.
//!
//! What is requested of the upstream is the canonical window: `upstream_page` items
//! at a multiple of that.

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;

use super::collapsed::Anew;
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::collapse::Lead;
use crate::pages::{Page, Window, check_window, ends_before, windows};
use crate::reason::Reason;
use crate::route::Route;
use crate::route::canonical::{page as page_of, with_page};
use crate::upstream::answer::refuses_every_page;
use crate::upstream::{Failure, RequestPriority};

/// Windows of a list, ascending.
pub(super) type Parts = Vec<Arc<StoredResponse>>;

/// The windows that a page is cut from and where they are from; or why there are
/// none.
pub(super) type Windows = Result<(Parts, AnswerSource), NoWindows>;

/// Why there are no windows.
pub(super) enum NoWindows {
    /// The upstream's answer is none.
    NotAWindow(String),
    /// The upstream refuses one, perhaps for its size or its offset. It may refuse
    /// the page itself as well.
    Refused(String),
}

/// A page of a list that a client requests.
pub(super) struct List<'k> {
    pub(super) key: &'k Key,
    pub(super) route: &'k Route,
    /// Items of a window.
    pub(super) size: u64,
    pub(super) limit: u64,
    pub(super) offset: u64,
    pub(super) priority: RequestPriority,
}

impl<'k> List<'k> {
    /// The page that a key requests, if its route has pages.
    pub(super) fn of(key: &'k Key, route: &'k Route, priority: RequestPriority) -> Option<Self> {
        let (limit, offset) = page_of(key)?;
        Some(Self {
            key,
            route,
            size: u64::from(route.chain.window?.get()),
            limit,
            offset,
            priority,
        })
    }

    /// The keys of all windows that the page overlaps.
    pub(super) fn windows(&self) -> Vec<Key> {
        let offsets = windows(self.offset, self.limit, self.size);
        offsets.filter_map(|offset| self.window(offset)).collect()
    }

    /// The key of the window at an offset.
    pub(super) fn window(&self, offset: u64) -> Option<Key> {
        with_page(self.key, self.size, offset)
    }

    /// Whether a response stored for a window is one, or an answer that the upstream
    /// gives in place of any page.
    pub(super) fn is_usable(&self, part: &StoredResponse, offset: u64) -> bool {
        match (part.page(), part.status == StatusCode::OK) {
            (Some(page), true) => check_window(page, offset, self.size).is_ok(),
            (None, is_ok) => !is_ok,
            (Some(_), false) => true,
        }
    }

    /// Why an answer to a window cannot be used, if it cannot.
    fn check(&self, part: &StoredResponse, offset: u64) -> Result<(), NoWindows> {
        if part.status == StatusCode::OK {
            let page = part.page();
            let page = page.ok_or_else(|| NoWindows::NotAWindow("an answer is no page".into()))?;
            let checked = check_window(page, offset, self.size);
            return checked.map_err(|why| NoWindows::NotAWindow(why.to_string()));
        }
        // Such as a limit that is too large for it; but where the window is the page,
        // that is the answer.
        let is_page = (self.limit, self.offset) == (self.size, offset);
        match part.status == StatusCode::BAD_REQUEST && !refuses_list(part) && !is_page {
            true => Err(NoWindows::Refused(format!(
                "it answers {} to a window",
                part.status
            ))),
            false => Ok(()),
        }
    }
}

impl Fill {
    /// Whether a route's pages are cut from windows at present.
    pub(crate) fn are_pages_cut(&self, route: u16) -> bool {
        self.window_support.is_active(route, self.clock.now())
    }

    /// Stops requesting windows of a route for a while.
    pub(super) fn suspend_windows(&self, list: &List<'_>, why: &str) {
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

    /// The windows that a page is cut from; all are fetched `anew` if their
    /// stored ones are inconsistent.
    pub(super) async fn windows(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
        anew: bool,
    ) -> Result<Windows, Failure> {
        // No request is needed past the list's end, or of a list that is refused.
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
            let fetched: Result<(_, FillAnswer), Failure> = fetched;
            let (offset, found) = match fetched {
                // The page, being smaller, may not be.
                Err(failure)
                    if failure.reason == Reason::AnswerTooLarge && list.limit < list.size =>
                {
                    let why = "a window is more than upstream.max_body_bytes".to_owned();
                    return Ok(Err(NoWindows::Refused(why)));
                }
                fetched => fetched?,
            };
            if let Err(why) = list.check(&found.stored, offset) {
                return Ok(Err(why));
            }
            from = match (from, found.from) {
                // One window that is not confirmed, or was passed on, leaves the page so.
                (_, AnswerSource::Memory) | (AnswerSource::Unconfirmed, _) => from,
                (AnswerSource::Upstream { stored: false }, _) => from,
                (AnswerSource::Upstream { .. }, AnswerSource::Disk | AnswerSource::Shared) => from,
                (_, found) => found,
            };
            parts.push(found.stored);
        }
        self.window_support.resume(list.key.route());
        Ok(Ok((parts, from)))
    }

    /// The offsets of the windows that a page is cut from, with those that are
    /// stored and fresh; none of them if they are to be fetched `anew`.
    pub(super) fn wanted(
        &self,
        list: &List<'_>,
        anew: bool,
    ) -> Vec<(u64, Option<Arc<StoredResponse>>)> {
        let stored = |offset| match anew {
            true => None,
            false => self.fresh_window(list, offset),
        };
        let offsets = windows(list.offset, list.limit, list.size);
        let mut found: Vec<_> = offsets.map(|offset| (offset, stored(offset))).collect();
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
    pub(super) fn fresh_window(&self, list: &List<'_>, offset: u64) -> Option<Arc<StoredResponse>> {
        let part = self.fresh(&list.window(offset)?);
        part.filter(|part| list.is_usable(part, offset))
    }

    /// A stored window that answers the page: it shows that the list ends before the
    /// page, or that every page of the list is refused.
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

    /// Fetches a window, or waits for the fetch that is under way.
    async fn window(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
        offset: u64,
        anew: bool,
    ) -> FillResult {
        let Some(key) = list.window(offset) else {
            return Err(Failure::new(Reason::Internal));
        };
        let stored = self.fresh(&key);
        let anew = anew || stored.is_some_and(|part| !list.is_usable(&part, offset));
        let anew = if anew { Anew::Yes } else { Anew::No };
        self.exchange(lead, &key, list.priority, anew).await
    }
}

/// Whether a stored answer is a refusal that any page of its list would get.
pub(super) fn refuses_list(part: &StoredResponse) -> bool {
    part.status == StatusCode::BAD_REQUEST && refuses_every_page(&part.body)
}

/// A stored window, to be cut.
pub(super) fn window<'p>(part: &'p StoredResponse, page: &'p Page) -> Window<'p> {
    Window {
        body: &part.body,
        page,
    }
}
