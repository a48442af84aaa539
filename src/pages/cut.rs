//! A page that is cut from the stored windows of its list.
//!
//! Deliberately absent: fetching missing windows. Where the windows do not contain
//! the whole page, there is none.

use std::ops::Range;

use super::page::Numbers;
use super::{Window, are_consistent, ends_before};

/// The body that the upstream would give for the `limit` items from `offset` on,
/// from neighbouring windows of the list in ascending order. The envelope is that
/// of the first window with other values; items, and the bytes between items of
/// one window, are unchanged. At or past the list's end: total 0 and no items.
///
/// `None` where the windows are inconsistent or do not contain the whole page, and
/// where `limit` is 0, which the upstream refuses.
pub(crate) fn cut_page(windows: &[Window<'_>], offset: u64, limit: u64) -> Option<Vec<u8>> {
    if limit == 0 || !are_consistent(windows) {
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
    // Windows past the end have a total of 0; the others are equal.
    let total = windows.iter().map(|window| window.page.total).max()?;
    let end = offset.saturating_add(limit).min(total);
    let numbers = Numbers {
        limit,
        offset,
        total,
    };
    cut_range(windows, offset..end, numbers)
}

/// The items of a list in a range, which must not be empty, in an envelope with
/// these numbers; `None` where the windows do not contain all of them.
pub(super) fn cut_range(
    windows: &[Window<'_>],
    range: Range<u64>,
    numbers: Numbers,
) -> Option<Vec<u8>> {
    let mut parts = Vec::with_capacity(windows.len());
    let mut at = range.start;
    for window in windows {
        let start = window.page.offset;
        let end = start.saturating_add(window.page.len() as u64);
        let end = end.min(range.end);
        if start <= at && at < end {
            let within = usize::try_from(at - start).ok()?..usize::try_from(end - start).ok()?;
            parts.push(window.page.items(window.body, within)?);
            at = end;
        }
    }
    let first = windows.first()?;
    match at == range.end && !parts.is_empty() {
        true => first.page.rewrite(first.body, numbers, &parts),
        false => None,
    }
}
