//! Windows: the pages of one size, at multiples of it, in which a list is stored.
//! Which of them a client's page overlaps, whether an answer is the window that was
//! requested, whether several can be of one moment, and the pages that are cut from them:
//! of the list itself, or of one transaction in its block's list, whose items are
//! neighbours there and byte for byte those of the transaction's own list.
//!
//! A page is cut together with its index, so that it is not parsed again.
//!
//! Deliberately absent: fetching missing windows, and whether windows are of one epoch. A
//! reorg may leave a list's total and its blocks unchanged; only their chain stamps show it.

use std::ops::Range;

use super::{Block, Hash, Page};

/// The largest offset that is requested. Above it the upstream rounds (its numbers
/// are doubles), and would answer for another offset.
pub(super) const MOST_OFFSET: u64 = (1 << 53) - 1;

/// One stored window: its body, and what was read of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    /// The upstream's body.
    pub(crate) body: &'a [u8],
    /// The page that it is.
    pub(crate) page: &'a Page,
}

impl Window<'_> {
    /// Whether it lies at or past its list's end.
    fn is_past_end(self) -> bool {
        self.page.is_empty() && self.page.total == 0
    }
}

/// The offsets of the windows of `size` items that the `limit` items from `offset`
/// on overlap, ascending and at most [`MOST_OFFSET`]. None where `limit` or `size`
/// is 0.
pub(crate) fn windows(offset: u64, limit: u64, size: u64) -> impl Iterator<Item = u64> {
    let within = offset.checked_rem(size).filter(|_| limit > 0);
    let first = within.map(|within| offset - within);
    let last = offset.saturating_add(limit.saturating_sub(1));
    let last = last.min(MOST_OFFSET);
    std::iter::successors(first, move |at| at.checked_add(size)).take_while(move |at| *at <= last)
}

/// Whether a page is the window of `size` items at `offset`.
///
/// # Errors
/// Why it is not: the upstream's pages cannot be cut.
pub(crate) fn check_window(page: &Page, offset: u64, size: u64) -> Result<(), &'static str> {
    let expected = page.total.saturating_sub(offset).min(size);
    Err(if !page.is_plain {
        "the upstream's pages have members beside limit, offset, total and results"
    } else if page.limit != size {
        "the upstream echoes another limit"
    } else if page.offset != offset {
        "the upstream echoes another offset"
    } else if page.len() as u64 != expected {
        "the upstream sent fewer or more items than its total leaves"
    } else if page.is_empty() && page.total > 0 {
        "the upstream has a total past the end of a list, not 0"
    } else {
        return Ok(());
    })
}

/// Whether windows of one list can be of one moment: they have the same total, and
/// those past the end lie past the others' end. For the list of a single block,
/// [`of_one_block`] has to hold as well.
pub(crate) fn are_consistent(windows: &[Window<'_>]) -> bool {
    let mut within = windows.iter().filter(|window| !window.is_past_end());
    let total = within.next().map(|window| window.page.total);
    let mut past = windows.iter().filter(|window| window.is_past_end());
    within.all(|window| Some(window.page.total) == total)
        && past.all(|window| total.is_none_or(|total| window.page.offset >= total))
}

/// Whether windows name one block at most, as all windows of a block's or a
/// transaction's list do that are of one moment.
pub(crate) fn of_one_block(windows: &[Window<'_>]) -> bool {
    let mut blocks = windows.iter().flat_map(|window| &window.page.blocks);
    let first: Option<&Block> = blocks.next();
    blocks.all(|block| Some(block) == first)
}

/// Whether a window proves that its list ends at `offset` or before.
pub(crate) fn ends_before(window: Window<'_>, offset: u64) -> bool {
    if window.is_past_end() {
        return window.page.offset <= offset;
    }
    !window.page.is_empty() && window.page.total <= offset
}

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
    (at == range.end).then(|| (body, Box::new(page)))
}
