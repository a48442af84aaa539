//! Answers from disk, before a fetch. What is found is in memory again, and nothing is
//! fetched.
//!
//! Of a list, the windows are kept and not the pages: a page is cut from them here, with
//! what memory has of them.

use std::sync::Arc;

use super::windows::{List, Parts};
use super::{FIRST_PROBE, Fill, LookupKey};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::disk::{Disk, Loaded, ReadDeadline};
use crate::identify::Client;
use crate::pages::windows;
use crate::route::Route;
use crate::upstream::{Priority, RequestPriority};

/// What the disk has for a client's request.
pub(crate) enum FromDisk {
    /// A response, as good as one from memory.
    Usable(Arc<StoredResponse>),
    /// A response that names blocks which are not known to stand. It is stale.
    Unchecked(Arc<StoredResponse>),
    /// Nothing.
    Nothing,
}

impl Fill {
    /// What the disk has for a client's request that memory cannot answer.
    pub(crate) async fn recall_from_disk(&self, lookup: &LookupKey, client: Client) -> FromDisk {
        let (Some(disk), Some(route)) = (self.disk.get(), self.route(&lookup.key)) else {
            return FromDisk::Nothing;
        };
        if route.cache.mode == Mode::Chain {
            // Just after the start: one request shows whether what is there is fresh.
            self.chain.seed_settled(route.cache.tip, FIRST_PROBE).await;
        }
        let from = (client, disk.read_deadline());
        let loaded = self.load(disk, &lookup.key, route, from).await;
        match loaded.filter(|(stored, _)| self.is_answer(lookup, stored)) {
            Some((stored, stands)) => usable(stored, stands),
            None => {
                let cut = self.cut_from_disk(disk, lookup, route, from).await;
                cut.unwrap_or(FromDisk::Nothing)
            }
        }
    }

    /// The response that the disk has for a key, and whether its blocks are known to
    /// stand.
    async fn load(
        &self,
        disk: &Arc<Disk>,
        key: &Key,
        route: &Route,
        (client, deadline): (Client, ReadDeadline),
    ) -> Option<(Arc<StoredResponse>, bool)> {
        let Loaded::Response {
            stored,
            stands,
            checked,
        } = disk.load(key, client, deadline).await
        else {
            return None;
        };
        if !self.cache.store().still_holds(key, &stored, checked) {
            return None;
        }
        self.note_transactions(key, route, &stored);
        Some((stored, stands))
    }

    /// A page that is cut from windows, some of which are on disk.
    async fn cut_from_disk(
        &self,
        disk: &Arc<Disk>,
        lookup: &LookupKey,
        route: &Route,
        from: (Client, ReadDeadline),
    ) -> Option<FromDisk> {
        let priority = RequestPriority::own(Priority::Miss);
        let list = List::of(&lookup.key, route, priority)?;
        if route.cache.mode != Mode::Chain || !self.are_pages_cut(route.number) {
            return None;
        }
        let (mut parts, mut total) = (Parts::new(), None);
        let (mut is_from_disk, mut all_stand) = (false, true);
        for offset in windows(list.offset, list.limit, list.size) {
            if total.is_some_and(|total| total <= offset) {
                break;
            }
            let part = match self.fresh_window(&list, offset) {
                Some(part) => part,
                None => {
                    let key = list.window(offset)?;
                    let (stored, stands) = self.load(disk, &key, route, from).await?;
                    is_from_disk = true;
                    all_stand &= stands;
                    stored
                }
            };
            let page = part.page().filter(|_| list.is_usable(&part, offset))?;
            if !page.is_empty() {
                total = Some(page.total);
            }
            parts.push(part);
        }
        if !is_from_disk {
            return None;
        }
        let stored = match all_stand {
            true => self.cut_and_store(&list, &parts),
            false => self.cut_page(&list, &parts),
        };
        let stored = stored.filter(|stored| self.is_answer(lookup, stored))?;
        Some(usable(stored, all_stand))
    }
}

fn usable(stored: Arc<StoredResponse>, stands: bool) -> FromDisk {
    match stands {
        true => FromDisk::Usable(stored),
        false => FromDisk::Unchecked(stored),
    }
}
