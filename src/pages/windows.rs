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

impl Page {
    /// Whether it is the window of `size` items at `offset`; else the upstream's pages cannot be
    /// cut: they have further members, the upstream caps limits or echoes other numbers than it
    /// was sent, or its totals are not those of its lists, and 0 past their end.
    pub(crate) fn is_window(&self, offset: u64, size: u64) -> bool {
        let expected = self.total.saturating_sub(offset).min(size);
        self.is_plain
            && (self.limit, self.offset, self.len() as u64) == (size, offset, expected)
            && (!self.is_empty() || self.total == 0)
    }

    /// Whether it is a window at or past its list's end.
    const fn is_past_end(&self) -> bool {
        self.is_empty() && self.total == 0
    }

    /// Whether it proves that its list ends at `offset` or before.
    pub(crate) fn ends_before(&self, offset: u64) -> bool {
        match self.is_past_end() {
            true => self.offset <= offset,
            false => !self.is_empty() && self.total <= offset,
        }
    }
}

/// Whether windows of one list can be of one moment: they have the same total, and
/// those past the end lie past the others' end. For the list of a single block,
/// [`of_one_block`] has to hold as well.
pub(crate) fn are_consistent(windows: &[&Page]) -> bool {
    let total = windows.iter().map(|window| window.total).max();
    windows.iter().all(|window| match window.is_past_end() {
        true => Some(window.offset) >= total,
        false => Some(window.total) == total,
    })
}

/// Whether windows name one block at most, as all windows of a block's or a
/// transaction's list do that are of one moment.
pub(crate) fn of_one_block(windows: &[&Page]) -> bool {
    let mut blocks = windows.iter().flat_map(|window| &window.blocks);
    let first: Option<&Block> = blocks.next();
    blocks.all(|block| Some(block) == first)
}

/// The page of the `limit` items from `offset` on, from neighbouring windows of the list
/// in ascending order. At or past the list's end: total 0 and no items.
///
/// `None` where the windows are inconsistent or do not contain the whole page, and
/// where `limit` is 0, which the upstream refuses.
pub(crate) fn cut_page(windows: &[&Page], offset: u64, limit: u64) -> Option<Box<Page>> {
    let is_over = windows.iter().any(|window| window.ends_before(offset));
    let total = windows.iter().map(|window| window.total).max()?;
    if !are_consistent(windows) || !is_over && offset >= total {
        return None;
    }
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
pub(crate) fn find_run(windows: &[&Page], tx: &Hash) -> Option<Run> {
    let is_located = |window: &&Page| window.is_located && !window.is_empty();
    if !are_consistent(windows) || !of_one_block(windows) || !windows.iter().all(is_located) {
        return None;
    }
    let mut run: Option<Range<u64>> = None;
    let mut next = windows.first()?.offset;
    for page in windows {
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
    let (run, first, last) = (run?, windows.first()?, windows.last()?);
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
    windows: &[&Page],
    run: &Range<u64>,
    offset: u64,
    limit: u64,
) -> Option<Box<Page>> {
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
        let start = window.offset;
        let end = start.saturating_add(window.len() as u64);
        let end = end.min(range.end);
        if start <= at && at < end {
            if at > range.start {
                body.push(b',');
            }
            let within = usize::try_from(at - start).ok()?..usize::try_from(end - start).ok()?;
            page.append(window, within.clone(), body.len());
            body.extend_from_slice(window.items(within)?);
            at = end;
        }
    }
    body.extend_from_slice(b"]}");
    page.body = body.into_boxed_slice().into();
    (at == range.end).then(|| Box::new(page))
}
