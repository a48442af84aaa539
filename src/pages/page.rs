//! A page taken apart, so that it can be cut without being parsed again.
//! Read once, when a body is stored; asked at every answer that is cut from it.
//!
//! A page holds positions, never bytes: it is of use only together with the
//! body that it was read from. It costs 8 bytes an item, 44 a run, 36 a block.
//!
//! Deliberately absent: any judgement whether it is the page that was asked
//! for, which is [`check_window`](super::check_window)'s.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::location::{Located, locate, skip};
use super::{Block, Hash};

/// A transaction's run of neighbouring items within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The transaction.
    pub tx: Hash,
    /// Its block: an index into [`Page::blocks`].
    pub block: u32,
    /// Where it begins: an index into the page's items, not into the list's.
    pub first: u32,
    /// How many items it has in this page; at least 1.
    pub len: u32,
}

/// A page taken apart: positions in its body.
#[derive(Clone, Debug)]
pub struct Page {
    /// The most items that it may have, as the upstream echoes it.
    pub limit: u64,
    /// How many of the list's items come before it, as the upstream echoes it.
    pub offset: u64,
    /// How many items the list has, as the upstream tells it: past the end of
    /// the list that is 0.
    pub total: u64,
    /// The envelope's values, in the order in which the body has them.
    envelope: [(Member, Span); 4],
    items: Box<[Span]>,
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

/// From a first byte of the body up to the one after the last. A body of 4 GiB
/// is not read at all.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Limit,
    Offset,
    Total,
    Results,
}

impl Page {
    /// Takes a body apart. `None` where it is no such page: of another shape,
    /// with a member missing or doubled, or with a number that is no `u64`. Its
    /// items may be anything.
    pub fn read(body: &[u8]) -> Option<Self> {
        // Positions are held in 32 bits.
        u32::try_from(body.len()).ok()?;
        let text = std::str::from_utf8(body).ok()?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let page = Envelope { text }.deserialize(&mut deserializer).ok()?;
        deserializer.end().ok()?;
        Some(page)
    }

    /// How many items it has.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// An item's bytes as they came; `None` where the page has no such item, or
    /// the body is not its own.
    pub fn item<'b>(&self, body: &'b [u8], at: usize) -> Option<&'b [u8]> {
        self.stretch(body, at..at.checked_add(1)?)
    }

    /// The blocks that the items' locations name, each once, in order of
    /// appearance. An item that is not located adds none.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The runs of the items that are located, in their order.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether every item has a location with block hash, height and
    /// transaction ID, each of its form; true of an empty page.
    pub fn is_located(&self) -> bool {
        self.located
    }

    /// Whether its envelope has the four members alone. Of any other we cannot
    /// tell what it would be on another page.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The bytes that it holds on the heap.
    pub fn weight(&self) -> usize {
        size_of_val(&*self.items) + size_of_val(&*self.blocks) + size_of_val(&*self.runs)
    }

    /// Neighbouring items as they came, with what the upstream wrote between
    /// them; `None` where the page has not all of them, or none was asked for.
    pub(super) fn stretch<'b>(&self, body: &'b [u8], range: Range<usize>) -> Option<&'b [u8]> {
        let spans = self.items.get(range)?;
        let whole = Span {
            start: spans.first()?.start,
            end: spans.last()?.end,
        };
        body.get(whole.range())
    }

    /// The body with other values in its envelope, which itself stays as the
    /// upstream wrote it: its members' order, the blanks between them.
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
                Member::Limit => numbers.limit,
                Member::Offset => numbers.offset,
                Member::Total => numbers.total,
                Member::Results => {
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

impl Span {
    /// Where a part of a text stands in it; `None` where it is no part of it.
    fn of(part: &str, text: &str) -> Option<Self> {
        let start = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
        let end = start.checked_add(part.len())?;
        Self::new(start..end).filter(|_| end <= text.len())
    }

    fn new(range: Range<usize>) -> Option<Self> {
        Some(Self {
            start: u32::try_from(range.start).ok()?,
            end: u32::try_from(range.end).ok()?,
        })
    }

    fn range(self) -> Range<usize> {
        // Widening: there is no target below 32 bits with threads.
        self.start as usize..self.end as usize
    }
}

/// Reads a whole page.
#[derive(Clone, Copy)]
struct Envelope<'b> {
    text: &'b str,
}

impl<'b> DeserializeSeed<'b> for Envelope<'b> {
    type Value = Page;

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<Page, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'b> Visitor<'b> for Envelope<'b> {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an activity page")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut members: A) -> Result<Page, A::Error> {
        let strange = || A::Error::custom("no member of a page, or there twice");
        let (mut limit, mut offset, mut total, mut results) = (None, None, None, None);
        let mut plain = true;
        // A name with escapes in it is not lent, and so fails.
        while let Some(name) = members.next_key::<&'b str>()? {
            let number = match name {
                "limit" => &mut limit,
                "offset" => &mut offset,
                "total" => &mut total,
                "results" => {
                    let items = members.next_value_seed(Items::new(self.text))?;
                    let span = list(self.text, name, items.spans.last()).ok_or_else(strange)?;
                    match results.replace((items, span)) {
                        None => continue,
                        Some(_) => return Err(strange()),
                    }
                }
                _ => {
                    plain = false;
                    skip(&mut members)?;
                    continue;
                }
            };
            let raw = members.next_value::<&'b RawValue>()?.get();
            let value = raw.parse::<u64>().map_err(A::Error::custom)?;
            let span = Span::of(raw, self.text).ok_or_else(strange)?;
            if number.replace((value, span)).is_some() {
                return Err(strange());
            }
        }
        let missing = A::Error::missing_field;
        let (limit, limit_at) = limit.ok_or_else(|| missing("limit"))?;
        let (offset, offset_at) = offset.ok_or_else(|| missing("offset"))?;
        let (total, total_at) = total.ok_or_else(|| missing("total"))?;
        let (items, results_at) = results.ok_or_else(|| missing("results"))?;
        let mut envelope = [
            (Member::Limit, limit_at),
            (Member::Offset, offset_at),
            (Member::Total, total_at),
            (Member::Results, results_at),
        ];
        envelope.sort_by_key(|(_, span)| span.start);
        Ok(Page {
            limit,
            offset,
            total,
            envelope,
            items: items.spans.into(),
            blocks: items.blocks.into(),
            runs: items.runs.into(),
            located: items.located,
            plain,
        })
    }
}

/// Where the list stands that was read after a name: between the name and its
/// bracket, and between its last item and the other one, there are but blanks,
/// a quote and a colon.
fn list(text: &str, name: &str, last: Option<&Span>) -> Option<Span> {
    let name = Span::of(name, text)?.range().end;
    let start = name + text.get(name..)?.find('[')?;
    let inner = last.map_or(start + 1, |last| last.range().end);
    let end = inner + text.get(inner..)?.find(']')? + 1;
    Span::new(start..end)
}

/// Reads the items of a page.
struct Items<'b> {
    text: &'b str,
    spans: Vec<Span>,
    blocks: Vec<Block>,
    /// Where each of them stands in `blocks`.
    known: BTreeMap<Block, u32>,
    runs: Vec<Run>,
    located: bool,
}

impl<'b> Items<'b> {
    fn new(text: &'b str) -> Self {
        Self {
            text,
            spans: Vec::new(),
            blocks: Vec::new(),
            known: BTreeMap::new(),
            runs: Vec::new(),
            located: true,
        }
    }

    /// Takes the next item; `None` where there are more than can be counted.
    fn take(&mut self, item: &str) -> Option<()> {
        let at = u32::try_from(self.spans.len()).ok()?;
        self.spans.push(Span::of(item, self.text)?);
        let Some(Located { block, tx }) = locate(item) else {
            self.located = false;
            return Some(());
        };
        let next = u32::try_from(self.blocks.len()).ok()?;
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
        Some(())
    }
}

impl<'b> DeserializeSeed<'b> for Items<'b> {
    type Value = Self;

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'b> Visitor<'b> for Items<'b> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of items")
    }

    fn visit_seq<A: SeqAccess<'b>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(item) = list.next_element::<&'b RawValue>()? {
            let taken = self.take(item.get());
            taken.ok_or_else(|| A::Error::custom("too many items"))?;
        }
        Ok(self)
    }
}
