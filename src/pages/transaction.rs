//! A transaction's page, cut from the stored windows of its block's list: the
//! items of a transaction are neighbours in that list, and are byte for byte those
//! of the transaction's own list.
//!
//! A transaction that is not in the windows may be anywhere; its absence proves
//! nothing. The list must be the block's whole list, not one that is filtered by
//! operation, which the caller has to ensure.

use std::ops::Range;

use super::cut::cut_range;
use super::page::Numbers;
use super::{Hash, Window, are_consistent, of_one_block};

/// The neighbours of a window into which a transaction's run may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edges {
    /// The run begins at the window's first item, and the list has items before.
    pub(crate) before: bool,
    /// The run ends at the window's last item, and the list has items after.
    pub(crate) after: bool,
}

/// Which neighbours of a window are needed for a transaction's whole run; `None`
/// where the transaction is not in the window.
pub(crate) fn open_edges(window: Window<'_>, tx: &Hash) -> Option<Edges> {
    let page = window.page;
    let end = page.offset.saturating_add(page.len() as u64);
    let mut found = None;
    for run in page.runs().iter().filter(|run| run.tx == *tx) {
        let upper = u64::from(run.first) + u64::from(run.len) == page.len() as u64;
        let edges = found.get_or_insert(Edges {
            before: false,
            after: false,
        });
        edges.before |= run.first == 0 && page.offset > 0;
        edges.after |= upper && end < page.total;
    }
    found
}

/// The body that the upstream would give for the `limit` items from `offset` on of
/// a transaction's list, from neighbouring windows of its block's list in ascending
/// order. Its total is the length of the run; at or past that: total 0 and no
/// items.
///
/// `None` where the run may continue outside the windows; where the transaction is
/// absent, or in more than one place; where an item has no location; where the
/// windows are of more than one block, inconsistent or no neighbours; and where
/// `limit` is 0, which the upstream refuses.
pub(crate) fn cut_transaction_page(
    windows: &[Window<'_>],
    tx: &Hash,
    offset: u64,
    limit: u64,
) -> Option<Vec<u8>> {
    if limit == 0 || !are_consistent(windows) || !of_one_block(windows) {
        return None;
    }
    let run = whole_run(windows, tx)?;
    let total = run.end - run.start;
    if offset >= total {
        let first = windows.first()?;
        let numbers = Numbers {
            limit,
            offset,
            total: 0,
        };
        return first.page.rewrite(first.body, numbers, &[]);
    }
    let end = offset.saturating_add(limit).min(total);
    let numbers = Numbers {
        limit,
        offset,
        total,
    };
    cut_range(windows, run.start + offset..run.start + end, numbers)
}

/// The range of a transaction's run in its block's list, if the windows contain all
/// of it.
fn whole_run(windows: &[Window<'_>], tx: &Hash) -> Option<Range<u64>> {
    let mut run: Option<Range<u64>> = None;
    let mut seen: Option<Range<u64>> = None;
    let mut total = 0;
    // Windows past the list's end are empty.
    for page in windows.iter().map(|window| window.page) {
        if page.is_empty() {
            continue;
        }
        if !page.is_located() || page.blocks().len() != 1 {
            return None;
        }
        let begins = page.offset;
        let ends = begins.checked_add(page.len() as u64)?;
        seen = Some(seen.map_or(Some(begins..ends), |seen| {
            (seen.end == begins).then_some(seen.start..ends)
        })?);
        total = page.total;
        for part in page.runs().iter().filter(|part| part.tx == *tx) {
            let first = begins + u64::from(part.first);
            let end = first + u64::from(part.len);
            run = Some(run.map_or(Some(first..end), |run| {
                (run.end == first).then_some(run.start..end)
            })?);
        }
    }
    let (run, seen) = (run?, seen?);
    let begins = run.start > seen.start || seen.start == 0;
    let ends = run.end < seen.end || seen.end == total;
    (begins && ends && seen.end <= total).then_some(run)
}
