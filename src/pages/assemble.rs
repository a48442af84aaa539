//! A client's page, cut from the stored windows of the list that it asks for.
//! Called for every answer of a paginated route.
//!
//! Deliberately absent: fetching what is missing. Where the windows do not show
//! all of the page, there is none.

use std::ops::Range;

use super::page::Numbers;
use super::{Window, agree, ends_before};

/// The body that the upstream would give for the `limit` items from `offset`
/// on, from neighbouring windows of the list, ascending. The envelope is that
/// of the first window but for its values; items, and what stands between those
/// of one window, are as they came. At or past the list's end: total 0 and no
/// items.
///
/// `None` where the windows disagree or do not show all of the page, and where
/// `limit` is 0, which the upstream refuses.
pub fn assemble(windows: &[Window<'_>], offset: u64, limit: u64) -> Option<Vec<u8>> {
    if limit == 0 || !agree(windows) {
        return None;
    }
    if let Some(window) = windows.iter().find(|window| ends_before(**window, offset)) {
        let numbers = Numbers {
            limit,
            offset,
            total: 0,
        };
        return window.page.rewrite(window.body, numbers, &[]);
    }
    // Those past the end tell 0; the others agree.
    let total = windows.iter().map(|window| window.page.total).max()?;
    let end = offset.saturating_add(limit).min(total);
    let numbers = Numbers {
        limit,
        offset,
        total,
    };
    cut(windows, offset..end, numbers)
}

/// The items of a list in a range, which must not be empty, in an envelope with
/// these numbers; `None` where the windows do not show all of them.
pub(super) fn cut(windows: &[Window<'_>], range: Range<u64>, numbers: Numbers) -> Option<Vec<u8>> {
    let mut parts = Vec::with_capacity(windows.len());
    let mut at = range.start;
    for window in windows {
        let start = window.page.offset;
        let end = start.saturating_add(window.page.len() as u64);
        let end = end.min(range.end);
        if start <= at && at < end {
            let within = usize::try_from(at - start).ok()?..usize::try_from(end - start).ok()?;
            parts.push(window.page.stretch(window.body, within)?);
            at = end;
        }
    }
    let first = windows.first()?;
    match at == range.end && !parts.is_empty() {
        true => first.page.rewrite(first.body, numbers, &parts),
        false => None,
    }
}
