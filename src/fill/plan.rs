//! How a key would be fetched, without fetching it: for `/explain`, and for the
//! limit on misses. It calls the functions that fetching calls, so that both
//! agree.

use std::sync::Arc;

use super::windows::List;
use super::{AnswerSource, Fill};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::TransactionLocation;
use crate::upstream::{Priority, RequestPriority};

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
    /// Whether a request goes to the upstream.
    pub(crate) fn fetches(&self) -> bool {
        match self {
            Self::CutTransaction | Self::Cut => false,
            Self::Windows { .. } | Self::Plain => true,
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
        let list = List::of(key, route, RequestPriority::own(Priority::Miss));
        let Some(list) = list.filter(|_| self.are_pages_cut(key.route())) else {
            return Plan::Plain;
        };
        if self.end_of(&list).is_some() {
            return Plan::Cut;
        }
        let wanted = self.wanted(&list, false);
        let missing = wanted.iter().filter(|(_, part)| part.is_none());
        let fetched: Vec<Key> = missing
            .filter_map(|(offset, _)| list.window(*offset))
            .collect();
        if !fetched.is_empty() {
            let disagree = false;
            return Plan::Windows { fetched, disagree };
        }
        let parts: Vec<Arc<StoredResponse>> =
            wanted.into_iter().filter_map(|(_, part)| part).collect();
        // A window that is no page, such as an error, answers for all.
        let is_other = parts.iter().any(|part| part.page().is_none());
        match is_other || self.cut_page(&list, &parts, AnswerSource::Memory).is_some() {
            true => Plan::Cut,
            false => Plan::Windows {
                fetched: list.windows(),
                disagree: true,
            },
        }
    }

    /// The keys of the windows that a page is cut from; none where it is not cut.
    pub(crate) fn windows_of(&self, key: &Key) -> Vec<Key> {
        let list = self
            .route(key)
            .and_then(|route| List::of(key, route, RequestPriority::own(Priority::Miss)));
        list.map_or_else(Vec::new, |list| list.windows())
    }

    /// Where a transaction was last seen among its block's windows, and that
    /// window's key.
    pub(crate) fn seen_in(&self, key: &Key) -> Option<(TransactionLocation, Key)> {
        let (_, location, window) = self.transaction_window(key, self.route(key)?)?;
        Some((location, window))
    }
}
