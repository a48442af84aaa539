//! A transaction's page, cut from the stored windows of its block's list: a
//! transaction's items stand together in that list, and look there as they do
//! in the list of their own.
//!
//! Called where a transaction is asked for whose block is known. What the
//! windows do not show is not inferred: a transaction that is not in them may
//! be anywhere.
//!
//! Deliberately absent: whether the list is the whole of its block's. One that
//! is filtered by operation is not, and must not be asked here.

use std::ops::Range;

use super::assemble::cut;
use super::page::Numbers;
use super::{Hash, Window, agree};

/// Where a transaction's run goes on, or may: the neighbours of a window that
/// are needed to see it whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edges {
    /// It touches the lower edge, and the list has items before.
    pub before: bool,
    /// It touches the upper edge, and the list has items after.
    pub after: bool,
}

/// Which neighbours of a window are needed to see the whole of a transaction's
/// run; `None` where the transaction is not in it.
pub fn touches(window: Window<'_>, tx: &Hash) -> Option<Edges> {
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

/// The body that the upstream would give for the `limit` items from `offset` on
/// of a transaction's list, from neighbouring windows, ascending, of its
/// block's. Its total is the length of the run; at or past that: total 0 and no
/// items.
///
/// `None` where the run is not seen whole, that is where it touches an edge of
/// the windows that is not the list's own; where the transaction is not there,
/// or in more than one place; where an item may be of any transaction, the
/// windows are of more than one block, disagree or are no neighbours; and where
/// `limit` is 0, which the upstream refuses.
pub fn transaction(windows: &[Window<'_>], tx: &Hash, offset: u64, limit: u64) -> Option<Vec<u8>> {
    if limit == 0 || !agree(windows) {
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
    cut(windows, run.start + offset..run.start + end, numbers)
}

/// Where a transaction's run stands in its block's list, if it is seen whole.
fn whole_run(windows: &[Window<'_>], tx: &Hash) -> Option<Range<u64>> {
    let mut run: Option<Range<u64>> = None;
    let mut seen: Option<Range<u64>> = None;
    let mut total = 0;
    // What lies past the end shows nothing of the list.
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
