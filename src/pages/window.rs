//! Windows: the pages of one size, at multiples of it, in which a list is stored.
//! Which of them a client's page overlaps, whether an answer is the window that was
//! requested, and whether several can be of one moment.
//!
//! Deliberately absent: whether windows are of one epoch. A reorg may leave a
//! list's total and its blocks unchanged; only their chain stamps show it.

use super::{Block, Page};

/// The largest offset that is requested. Above it the upstream rounds (its numbers
/// are doubles), and would answer for another offset.
pub(crate) const MOST_OFFSET: u64 = (1 << 53) - 1;

/// One stored window: its body and its index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    /// The upstream's body.
    pub(crate) body: &'a [u8],
    /// The index of that body.
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

/// Why a page is not the window that was requested: the upstream's pages cannot be
/// cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WindowFault {
    /// The upstream caps the limit, or rounds it.
    #[error("the upstream answered with limit {given} where {asked} was asked")]
    Limit {
        /// The limit that was requested.
        asked: u64,
        /// The limit that it echoes.
        given: u64,
    },
    /// The upstream answers for another offset.
    #[error("the upstream answered with offset {given} where {asked} was asked")]
    Offset {
        /// The offset that was requested.
        asked: u64,
        /// The offset that it echoes.
        given: u64,
    },
    /// The window has fewer or more items than its total allows.
    #[error("the upstream sent {given} items where its total leaves {expected}")]
    Count {
        /// How many the total allows.
        expected: u64,
        /// How many it has.
        given: u64,
    },
    /// The envelope has further members, which may differ from page to page.
    #[error("the upstream's pages have members beside limit, offset, total and results")]
    Envelope,
    /// Past the end of a list the upstream sends its total, where a cut page has 0.
    #[error("the upstream tells a total of {total} past the end of a list, not 0")]
    PastEnd {
        /// The total that it sends.
        total: u64,
    },
}

/// Whether a page is the window of `size` items at `offset`.
///
/// # Errors
/// Why it is not.
pub(crate) fn check_window(page: &Page, offset: u64, size: u64) -> Result<(), WindowFault> {
    if !page.is_plain() {
        return Err(WindowFault::Envelope);
    }
    if page.limit != size {
        return Err(WindowFault::Limit {
            asked: size,
            given: page.limit,
        });
    }
    if page.offset != offset {
        return Err(WindowFault::Offset {
            asked: offset,
            given: page.offset,
        });
    }
    let (expected, given) = (page.total.saturating_sub(offset), page.len() as u64);
    let expected = expected.min(size);
    if given != expected {
        return Err(WindowFault::Count { expected, given });
    }
    match page.total {
        total if given == 0 && total > 0 => Err(WindowFault::PastEnd { total }),
        _ => Ok(()),
    }
}

/// Whether windows of one list can be of one moment: they have the same total, and
/// those past the end lie past the others' end. For the list of a single block,
/// [`of_one_block`] has to hold as well.
pub(crate) fn are_consistent(windows: &[Window<'_>]) -> bool {
    let mut total: Option<u64> = None;
    for window in windows.iter().filter(|window| !window.is_past_end()) {
        if *total.get_or_insert(window.page.total) != window.page.total {
            return false;
        }
    }
    let mut past = windows.iter().filter(|window| window.is_past_end());
    past.all(|window| total.is_none_or(|total| window.page.offset >= total))
}

/// Whether windows mention one block at most, as all windows of a block's or a
/// transaction's list do that are of one moment.
pub(crate) fn of_one_block(windows: &[Window<'_>]) -> bool {
    let mut blocks = windows.iter().flat_map(|window| window.page.blocks());
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
