//! What an upstream body says: is it JSON, is it an activity page and which blocks does
//! it name, when was the token deployed that it describes.
//!
//! A body that is JSON of another form than a page or a token says nothing.
//!
//! Deliberately absent: whether the page is the one that was requested ([`Page::is_window`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::from_str;
use serde_json::value::RawValue;

use super::{Block, Hash, hash};

/// What a JSON body says.
#[derive(Clone, Debug, Default)]
pub struct BodyIndex {
    /// The index of the activity page that the body is, if it is one: an object with a
    /// `limit`, an `offset` and a `total`, and a list of `results`.
    pub(crate) page: Option<Box<Page>>,
    /// Whether the body is an object whose `results` is an empty list.
    pub(crate) empty: bool,
    /// The height of a token's deploy: `block_height` of the object `token`.
    pub(crate) deploy_height: Option<u32>,
}

/// An activity page: where its items stand in the body, and which blocks and transactions they
/// are of. One that was cut from windows has no transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// The body that it is.
    pub(crate) body: Bytes,
    /// The most items that it may have, as the upstream echoes it.
    pub(crate) limit: u64,
    /// How many of the list's items come before it, as the upstream echoes it.
    pub(crate) offset: u64,
    /// How many items the list has; 0 past the end of the list.
    pub(crate) total: u64,
    /// Where each item begins and ends in the body, in bytes.
    items: Vec<(u32, u32)>,
    /// The blocks that the items' locations name, each once, in order of appearance.
    pub(crate) blocks: Vec<Block>,
    /// Neighbouring items of one transaction, in their order.
    pub(crate) txs: Vec<TxItems>,
    /// Whether every item has a location with a block hash, a height and a transaction ID.
    pub(crate) is_located: bool,
    /// Whether its envelope has the four members alone. The value that another member
    /// would have on another page is not known.
    pub(crate) is_plain: bool,
}

/// Neighbouring items of one transaction within a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxItems {
    /// The transaction.
    pub(crate) tx: Hash,
    /// The first item, counted from the page's first.
    pub(crate) first: u32,
    /// How many they are; at least 1.
    pub(crate) count: u32,
}

/// The members of an object. Of several with one name the last counts.
type Members<'b> = BTreeMap<Cow<'b, str>, &'b RawValue>;

/// An item, of which only its location counts.
#[derive(Deserialize)]
struct Item<'b> {
    #[serde(borrow)]
    location: Location<'b>,
}

#[derive(Deserialize)]
struct Location<'b> {
    #[serde(borrow)]
    block_hash: Cow<'b, str>,
    block_height: u32,
    #[serde(borrow)]
    tx_id: Cow<'b, str>,
}

impl BodyIndex {
    /// Reads a body. `None` where it is not JSON in UTF-8 (RFC 8259 §8.1).
    pub fn read(body: &Bytes) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let Ok(members) = from_str::<Members<'_>>(text) else {
            from_str::<IgnoredAny>(text).ok()?;
            return Some(Self::default());
        };
        let results = members.get("results");
        let results = results.and_then(|list| from_str::<Vec<&RawValue>>(list.get()).ok());
        let number = |name| members.get(name)?.get().parse().ok();
        let page = || {
            let numbers = [number("limit")?, number("offset")?, number("total")?];
            let is_plain = members.len() == MEMBERS;
            let page = Page {
                body: body.clone(),
                is_plain,
                ..Page::empty(numbers)
            };
            Some(Box::new(page.with(results.as_ref()?)))
        };
        let token = members.get("token");
        let token = token.and_then(|token| from_str::<Members<'_>>(token.get()).ok());
        Some(Self {
            page: page(),
            empty: results.as_ref().is_some_and(Vec::is_empty),
            deploy_height: token.and_then(|token| token.get("block_height")?.get().parse().ok()),
        })
    }
}

/// The members of an activity page: limit, offset, total and results.
const MEMBERS: usize = 4;

impl Page {
    /// The page that a body is; `None` where it is none.
    pub(crate) fn read(body: &Bytes) -> Option<Box<Self>> {
        BodyIndex::read(body)?.page
    }

    /// The page with these items, which stand in its body.
    fn with(mut self, items: &[&RawValue]) -> Self {
        for (at, item) in (0..).zip(items) {
            let start = item.get().as_ptr().addr() - self.body.as_ptr().addr();
            self.items.push(span(start, item.get().len()));
            match locate(item) {
                Some((block, tx)) => {
                    self.add_block(block);
                    match self.txs.last_mut() {
                        Some(last) if last.tx == tx && last.first + last.count == at => {
                            last.count += 1;
                        }
                        _ => self.txs.push(TxItems {
                            tx,
                            first: at,
                            count: 1,
                        }),
                    }
                }
                None => self.is_located = false,
            }
        }
        self.items.shrink_to_fit();
        self.blocks.shrink_to_fit();
        self.txs.shrink_to_fit();
        self
    }

    /// A page without items and without a body, with this limit, offset and total.
    pub(super) const fn empty([limit, offset, total]: [u64; 3]) -> Self {
        Self {
            body: Bytes::new(),
            limit,
            offset,
            total,
            items: Vec::new(),
            blocks: Vec::new(),
            txs: Vec::new(),
            is_located: true,
            is_plain: true,
        }
    }

    /// Appends some of a window's items, which stand from `at` on in this page's body, and all
    /// blocks that the window names.
    pub(super) fn append(&mut self, window: &Self, range: Range<usize>, at: usize) {
        let items = window.items.get(range).unwrap_or_default();
        let begin = items.first().map_or(0, |item| item.0);
        let moved =
            |(from, to): &(u32, u32)| span(at + (from - begin) as usize, (to - from) as usize);
        self.items.extend(items.iter().map(moved));
        for block in &window.blocks {
            self.add_block(*block);
        }
    }

    fn add_block(&mut self, block: Block) {
        if !self.blocks.contains(&block) {
            self.blocks.push(block);
        }
    }

    /// How many items it has.
    pub(crate) const fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it has no items.
    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The heap memory that it uses beside its body, in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of_val(&*self.items) + size_of_val(&*self.blocks) + size_of_val(&*self.txs)
    }

    /// Neighbouring items, with what the upstream wrote between them; `None` where
    /// the page does not have all of them, or the range is empty.
    pub(super) fn items(&self, range: Range<usize>) -> Option<&[u8]> {
        let spans = self.items.get(range)?;
        let (start, end) = (spans.first()?.0, spans.last()?.1);
        // Widening: there is no target below 32 bits with threads.
        self.body.get(start as usize..end as usize)
    }
}

/// Positions are held in 32 bits: what lies above 4 GiB is not found.
fn span(start: usize, length: usize) -> (u32, u32) {
    let within = |at| u32::try_from(at).unwrap_or(u32::MAX);
    (within(start), within(start + length))
}

/// The block and the transaction in which an item happened.
fn locate(item: &RawValue) -> Option<(Block, Hash)> {
    // serde would take a list for an object, too.
    let text = Some(item.get()).filter(|text| text.starts_with('{'))?;
    let Item { location } = from_str(text).ok()?;
    let block = Block {
        height: location.block_height,
        hash: hash(&location.block_hash)?,
    };
    Some((block, hash(&location.tx_id)?))
}
