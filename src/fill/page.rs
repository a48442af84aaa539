//! Pages cut from windows.
//!
//! A client's page is cut from the windows that it overlaps and stored under its
//! own key, so that the next request for it is a plain hit. Windows are joined only
//! if they are of one moment.
//!
//! If the upstream's answers are no windows (it caps pages lower, its totals are
//! inconsistent), the page itself is requested, and windows are tried again later.

use std::ops::ControlFlow;
use std::sync::Arc;

use http::StatusCode;

use super::collapsed::Anew;
use super::windows::{List, NoWindows, Parts, refuses_list, window};
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::purge::CheckedPurge;
use crate::chain::{ChainStamp, Class};
use crate::client_tokens::shown_path;
use crate::collapse::Lead;
use crate::log_writer::LogInterval;
use crate::pages::{self, Page, Window, are_consistent, of_one_block};

/// How often windows that are inconsistent are fetched again.
const MOST_RETRIES: usize = 2;

impl Fill {
    /// Answers a page from windows, or requests the page itself.
    pub(super) async fn answer_page(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
    ) -> FillResult {
        let refused = match self.answer_from_windows(lead, list).await {
            ControlFlow::Break(found) => return found,
            ControlFlow::Continue(refused) => refused,
        };
        let found = self
            .exchange(lead, list.key, list.priority, Anew::No)
            .await?;
        // The page is answered, so the window was refused for itself.
        if let Some(why) = refused.filter(|_| found.stored.status == StatusCode::OK) {
            self.suspend_windows(list, &why);
        }
        Ok(found)
    }

    /// Answers a page from windows. Continues where the page itself has to be
    /// requested, with the reason for which the upstream refused a window, if it did.
    async fn answer_from_windows(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        list: &List<'_>,
    ) -> ControlFlow<FillResult, Option<String>> {
        for attempt in 0..=MOST_RETRIES {
            // Inconsistent windows are of different moments.
            let anew = attempt > 0;
            let (parts, from) = match self.windows(lead, list, anew).await {
                Ok(Ok(found)) => found,
                Ok(Err(NoWindows::NotAWindow(why))) => {
                    self.suspend_windows(list, &why);
                    return ControlFlow::Continue(None);
                }
                Ok(Err(NoWindows::Refused(why))) => return ControlFlow::Continue(Some(why)),
                Err(failure) => return ControlFlow::Break(Err(failure)),
            };
            // A part that is no page answers the whole request.
            if let Some(other) = parts.iter().find(|part| part.page().is_none()) {
                let stored = other.clone();
                if is_kept(from) {
                    self.store_for_list(list, &stored);
                }
                return ControlFlow::Break(Ok(FillAnswer { stored, from }));
            }
            let cut = match is_kept(from) {
                true => self.cut_and_store(list, &parts),
                false => self.cut_page(list, &parts, from),
            };
            if let Some(stored) = cut {
                if self.cache.store().response_was_purged(list.key, &stored) {
                    continue;
                }
                return ControlFlow::Break(Ok(FillAnswer { stored, from }));
            }
        }
        if (self.inconsistent_windows).is_due(LogInterval::MINUTE, self.clock.now()) {
            tracing::info!(
                route = &*list.route.name,
                target_path = &*shown_path(list.key.target()),
                "the windows of a list stay inconsistent: the page itself is requested; others are logged a minute later at the earliest"
            );
        }
        ControlFlow::Continue(None)
    }

    /// Stores an answer in place of a window for the page as well; and, where it
    /// answers every page of the list, for the first window, which is looked up for
    /// all pages ([`end_of`](Self::end_of)). A purge of one of a list's keys purges
    /// all of them, so they may share it.
    fn store_for_list(&self, list: &List<'_>, answer: &Arc<StoredResponse>) {
        let first = list.window(0).filter(|_| refuses_list(answer));
        let keys = [Some(list.key.clone()), first];
        for key in keys.into_iter().flatten() {
            if !self.cache.store().response_was_purged(&key, answer) {
                self.cache.store().insert(key, answer.clone());
            }
        }
    }

    /// Cuts a page from consistent windows, and stores it.
    pub(super) fn cut_and_store(
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
    pub(super) fn cut_page(
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
            let content_type = cut.metadata.content_type.clone();
            cut.metadata = Metadata::of(content_type, ClientFreshness::Nothing);
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
            metadata: Metadata::of(least.metadata.content_type.clone(), freshness),
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
