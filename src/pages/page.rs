//! The index of an activity page: where its items stand in the body, and which
//! blocks and transactions they belong to. A page is indexed once, when its body
//! arrives ([`BodyIndex`]), so that it can be cut without being
//! parsed again.
//!
//! An index holds positions, never bytes: it is of use only together with the
//! body that it was read from. It takes 8 bytes an item, 44 a run, 36 a block.
//!
//! Deliberately absent: whether it is the page that was requested
//! ([`check_window`](super::check_window)).

use std::collections::BTreeMap;
use std::ops::Range;

use super::body::{BodyIndex, Located};
use super::{Block, Hash};

/// Neighbouring items of one transaction within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The transaction.
    pub(crate) tx: Hash,
    /// Its block: an index into [`Page::blocks`].
    pub(crate) block: u32,
    /// The first item: an index into the page's items, not into the list's.
    pub(crate) first: u32,
    /// How many items it has in this page; at least 1.
    pub(crate) len: u32,
}

/// The index of an activity page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The most items that it may have, as the upstream echoes it.
    pub(crate) limit: u64,
    /// How many of the list's items come before it, as the upstream echoes it.
    pub(crate) offset: u64,
    /// How many items the list has; 0 past the end of the list.
    pub(crate) total: u64,
    /// The envelope's values, in the order in which the body has them.
    envelope: [(EnvelopeMember, BodySpan); 4],
    items: Box<[BodySpan]>,
    blocks: Box<[Block]>,
    runs: Box<[Run]>,
    located: bool,
    plain: bool,
}

/// The numbers of an envelope, to be written in place of those that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) limit: u64,
    pub(super) offset: u64,
    pub(super) total: u64,
}

/// A range of a body, of which the first 4 GiB count.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodySpan {
    pub(super) start: u32,
    end: u32,
}

/// A member of a page's envelope.
#[derive(Clone, Copy, Debug)]
pub(super) enum EnvelopeMember {
    Limit,
    Offset,
    Total,
    Results,
}

impl Page {
    /// The index of a body; `None` where it is no activity page.
    pub(crate) fn read(body: &[u8]) -> Option<Box<Self>> {
        BodyIndex::read(body)?.page
    }

    pub(super) fn new(
        [limit, offset, total]: [u64; 3],
        envelope: [(EnvelopeMember, BodySpan); 4],
        items: Items,
        plain: bool,
    ) -> Self {
        Self {
            limit,
            offset,
            total,
            envelope,
            items: items.spans.into(),
            blocks: items.blocks.into(),
            runs: items.runs.into(),
            located: !items.has_unlocated,
            plain,
        }
    }

    /// How many items it has.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has no items.
    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The blocks that the items' locations name, each once, in order of
    /// appearance.
    pub(crate) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The runs of the items that have a location, in their order.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether every item has a location with a well-formed block hash, height and
    /// transaction ID; true of an empty page.
    pub(crate) fn is_located(&self) -> bool {
        self.located
    }

    /// Whether its envelope has the four members alone. The value that another
    /// member would have on another page is not known.
    pub(crate) fn is_plain(&self) -> bool {
        self.plain
    }

    /// The heap memory that it uses, in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of_val(&*self.items) + size_of_val(&*self.blocks) + size_of_val(&*self.runs)
    }

    /// Neighbouring items, with what the upstream wrote between them; `None` where
    /// the page does not have all of them, or the range is empty.
    pub(super) fn items<'b>(&self, body: &'b [u8], range: Range<usize>) -> Option<&'b [u8]> {
        let spans = self.items.get(range)?;
        let whole = BodySpan {
            start: spans.first()?.start,
            end: spans.last()?.end,
        };
        body.get(whole.range())
    }

    /// The body with other values in its envelope. The order of its members and
    /// the blanks between them stay as the upstream wrote them.
    pub(super) fn rewrite(
        &self,
        body: &[u8],
        numbers: Numbers,
        results: &[&[u8]],
    ) -> Option<Vec<u8>> {
        let items: usize = results.iter().map(|part| part.len() + 1).sum();
        let mut written = Vec::with_capacity(items + ENVELOPE);
        let mut at = 0;
        for (member, span) in self.envelope {
            let Range { start, end } = span.range();
            written.extend_from_slice(body.get(at..start)?);
            at = end;
            let number = match member {
                EnvelopeMember::Limit => numbers.limit,
                EnvelopeMember::Offset => numbers.offset,
                EnvelopeMember::Total => numbers.total,
                EnvelopeMember::Results => {
                    written.push(b'[');
                    for (at, part) in results.iter().enumerate() {
                        if at > 0 {
                            written.push(b',');
                        }
                        written.extend_from_slice(part);
                    }
                    written.push(b']');
                    continue;
                }
            };
            written.extend_from_slice(number.to_string().as_bytes());
        }
        written.extend_from_slice(body.get(at..)?);
        Some(written)
    }
}

/// Enough for an envelope without blanks, its numbers at their longest.
const ENVELOPE: usize = 112;

impl BodySpan {
    pub(super) fn new(range: Range<usize>) -> Self {
        let within = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: within(range.start),
            end: within(range.end),
        }
    }

    fn range(self) -> Range<usize> {
        // Widening: there is no target below 32 bits with threads.
        self.start as usize..self.end as usize
    }
}

/// The items of a page while it is read.
#[derive(Default)]
pub(super) struct Items {
    spans: Vec<BodySpan>,
    blocks: Vec<Block>,
    /// The position of each in `blocks`.
    known: BTreeMap<Block, u32>,
    runs: Vec<Run>,
    has_unlocated: bool,
}

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds the next item. Counts fit in 32 bits, since a page's positions do.
    pub(super) fn push(&mut self, span: BodySpan, located: Option<Located>) {
        let at = self.spans.len() as u32;
        self.spans.push(span);
        let Some(Located { block, tx }) = located else {
            self.has_unlocated = true;
            return;
        };
        let next = self.blocks.len() as u32;
        let index = *self.known.entry(block).or_insert(next);
        if index == next {
            self.blocks.push(block);
        }
        match self.runs.last_mut() {
            Some(run) if (run.tx, run.block, run.first + run.len) == (tx, index, at) => {
                run.len += 1;
            }
            _ => self.runs.push(Run {
                tx,
                block: index,
                first: at,
                len: 1,
            }),
        }
    }
}
