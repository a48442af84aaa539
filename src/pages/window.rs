//! Windows: the pages of one size, at multiples of it, in which a list is stored.
//! Which of them a client's page overlaps, whether an answer is the window that was
//! requested, and whether several can be of one moment.
//!
//! Deliberately absent: whether windows are of one epoch. A reorg may leave a
//! list's total and its blocks unchanged; only their chain stamps show it.

use super::{Block, Page};

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
    let faults = [
        (
            !page.is_plain,
            "the upstream's pages have members beside limit, offset, total and results",
        ),
        (page.limit != size, "the upstream echoes another limit"),
        (page.offset != offset, "the upstream echoes another offset"),
        (
            page.len() as u64 != expected,
            "the upstream sent fewer or more items than its total leaves",
        ),
        (
            page.is_empty() && page.total > 0,
            "the upstream has a total past the end of a list, not 0",
        ),
    ];
    let mut faults = faults.into_iter().filter(|(is_there, _)| *is_there);
    faults.next().map_or(Ok(()), |(_, fault)| Err(fault))
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
