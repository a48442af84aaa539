//! Pages that are cut from the stored windows of a list: of the list itself, or of one
//! transaction in its block's list, whose items are neighbours there and byte for byte
//! those of the transaction's own list.
//!
//! A page is cut together with its index, so that it is not parsed again.
//!
//! Deliberately absent: fetching missing windows. Where the windows do not contain
//! the whole page, there is none.

use std::ops::Range;

use super::{Hash, Page, Window, are_consistent, ends_before, of_one_block};

/// The page of the `limit` items from `offset` on, from neighbouring windows of the list
/// in ascending order. At or past the list's end: total 0 and no items.
///
/// `None` where the windows are inconsistent or do not contain the whole page, and
/// where `limit` is 0, which the upstream refuses.
pub(crate) fn cut_page(
    windows: &[Window<'_>],
    offset: u64,
    limit: u64,
) -> Option<(Vec<u8>, Box<Page>)> {
    if !are_consistent(windows) {
        return None;
    }
    let is_over = windows.iter().any(|window| ends_before(*window, offset));
    // Windows past the end have a total of 0; the others are equal.
    let total = match is_over {
        true => 0,
        false => {
            let totals = windows.iter().map(|window| window.page.total);
            totals.max().filter(|total| offset < *total)?
        }
    };
    cut_run(windows, &(0..total), offset, limit)
}

/// Where a transaction's items are in its block's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// All are in the windows, from one place in the list to another.
    Whole(Range<u64>),
    /// The window before the first may have more of them.
    Before,
    /// The window after the last may have more of them.
    After,
}

/// Finds a transaction in neighbouring windows of its block's whole list, which must not
/// be filtered, in ascending order.
///
/// `None` where it is absent, which proves nothing, or in more than one place; where an
/// item has no location; and where the windows are inconsistent, no neighbours, or of more than
/// one block.
pub(crate) fn find_run(windows: &[Window<'_>], tx: &Hash) -> Option<Run> {
    let is_located = |window: &Window<'_>| window.page.is_located && !window.page.is_empty();
    if !are_consistent(windows) || !of_one_block(windows) || !windows.iter().all(is_located) {
        return None;
    }
    let mut run: Option<Range<u64>> = None;
    let mut next = windows.first()?.page.offset;
    for page in windows.iter().map(|window| window.page) {
        if page.offset != next {
            return None;
        }
        next += page.len() as u64;
        for part in page.txs.iter().filter(|part| part.tx == *tx) {
            let first = page.offset + u64::from(part.first);
            let end = first + u64::from(part.count);
            run = match run {
                None => Some(first..end),
                Some(run) if run.end == first => Some(run.start..end),
                Some(_) => return None,
            };
        }
    }
    let (run, first, last) = (run?, windows.first()?.page, windows.last()?.page);
    if run.start == first.offset && first.offset > 0 {
        return Some(Run::Before);
    }
    match run.end == next && next < last.total {
        true => Some(Run::After),
        false => Some(Run::Whole(run)),
    }
}

/// The page of the `limit` items from `offset` on of a list whose items are a range of the
/// windows' list. At or past its end: total 0 and no items. `None` where the windows do not
/// contain the page, and where `limit` is 0.
pub(crate) fn cut_run(
    windows: &[Window<'_>],
    run: &Range<u64>,
    offset: u64,
    limit: u64,
) -> Option<(Vec<u8>, Box<Page>)> {
    if limit == 0 {
        return None;
    }
    let length = run.end - run.start;
    let (total, range) = match offset < length {
        true => {
            let end = offset.saturating_add(limit).min(length);
            (length, run.start + offset..run.start + end)
        }
        false => (0, 0..0),
    };
    let head = format!(r#"{{"limit":{limit},"offset":{offset},"total":{total},"results":["#);
    let (mut body, mut page) = (head.into_bytes(), Page::empty([limit, offset, total]));
    let mut at = range.start;
    for window in windows {
        let start = window.page.offset;
        let end = start.saturating_add(window.page.len() as u64);
        let end = end.min(range.end);
        if start <= at && at < end {
            if at > range.start {
                body.push(b',');
            }
            let within = usize::try_from(at - start).ok()?..usize::try_from(end - start).ok()?;
            page.append(window.page, within.clone(), body.len());
            body.extend_from_slice(window.page.items(window.body, within)?);
            at = end;
        }
    }
    body.extend_from_slice(b"]}");
    (at == range.end).then(|| (body, Box::new(page.shrunk())))
}
