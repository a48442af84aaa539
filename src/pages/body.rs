//! One pass over an upstream body: is it JSON, is it an activity page and which
//! blocks does it name, when was the token deployed that it describes.
//!
//! A member of an unexpected form does not end the pass: it only means that the body
//! is no page, or that an item has no location.
//!
//! Deliberately absent: whether the page is the one that was requested
//! ([`check_window`](super::check_window)).

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{Name, Once, ReadMembers, ReadValue, Text, Value, decode};
use super::page::{BodySpan, EnvelopeMember, Items, Page};
use super::{Block, Hash, hash};

/// What one pass over a JSON body finds.
#[derive(Clone, Debug, Default)]
pub struct BodyIndex {
    /// The body's index as an activity page, if it is one: an object in which
    /// `limit`, `offset` and `total` are each once a `u64`, and `results` is once
    /// a list, of anything.
    pub(crate) page: Option<Box<Page>>,
    /// Whether the body is an object whose `results` is an empty list.
    pub(crate) empty: bool,
    /// The height of a token's deploy: `block_height` of the object `token` (the
    /// API's section 2.2).
    pub(crate) deploy_height: Option<u32>,
}

impl BodyIndex {
    /// Reads a body. `None` where it is not JSON in UTF-8 (RFC 8259 §8.1).
    pub fn read(body: &[u8]) -> Option<Self> {
        let text = Text(std::str::from_utf8(body).ok()?);
        let mut envelope = Envelope::new(text);
        let mut deserializer = serde_json::Deserializer::from_str(text.0);
        let start = text.skip_blanks(0);
        let value = Value::new(text, start, &mut envelope);
        let is_object = value.deserialize(&mut deserializer).ok()?.is_object;
        deserializer.end().ok()?;
        Some(match is_object {
            true => envelope.finish(),
            false => Self::default(),
        })
    }
}

/// The body's outermost object.
struct Envelope<'b> {
    text: Text<'b>,
    limit: Once<(u64, BodySpan)>,
    offset: Once<(u64, BodySpan)>,
    total: Once<(u64, BodySpan)>,
    results: Once<(Items, BodySpan)>,
    token: Once<u32>,
    /// Whether all names can be decoded.
    is_decoded: bool,
    /// Whether all names are written without escapes.
    is_unescaped: bool,
    /// Whether there are no members but those of a page.
    has_page_members_only: bool,
}

impl<'b> Envelope<'b> {
    const fn new(text: Text<'b>) -> Self {
        Self {
            text,
            limit: Once::new(),
            offset: Once::new(),
            total: Once::new(),
            results: Once::new(),
            token: Once::new(),
            is_decoded: true,
            is_unescaped: true,
            has_page_members_only: true,
        }
    }

    fn finish(self) -> BodyIndex {
        if !self.is_decoded {
            return BodyIndex::default();
        }
        // Positions are held in 32 bits.
        let is_readable = self.is_unescaped && u32::try_from(self.text.0.len()).is_ok();
        let deploy_height = self.token.get();
        let results = self.results.get();
        let empty = results.as_ref().is_some_and(|(items, _)| items.is_empty());
        let page = || {
            let (limit, limit_at) = self.limit.get()?;
            let (offset, offset_at) = self.offset.get()?;
            let (total, total_at) = self.total.get()?;
            let (items, results_at) = results?;
            let mut envelope = [
                (EnvelopeMember::Limit, limit_at),
                (EnvelopeMember::Offset, offset_at),
                (EnvelopeMember::Total, total_at),
                (EnvelopeMember::Results, results_at),
            ];
            envelope.sort_by_key(|(_, span)| span.start);
            let plain = self.has_page_members_only;
            Some(Page::new([limit, offset, total], envelope, items, plain))
        };
        let page = if is_readable { page() } else { None };
        BodyIndex {
            page: page.map(Box::new),
            empty,
            deploy_height,
        }
    }
}

impl<'b> ReadMembers<'b> for Envelope<'b> {
    fn read<A: MapAccess<'b>>(
        &mut self,
        name: Name<'b>,
        start: usize,
        members: &mut A,
    ) -> Result<usize, A::Error> {
        self.is_unescaped &= !name.is_escaped();
        let Some(name) = name.decoded else {
            self.is_decoded = false;
            return self.text.skip(members);
        };
        let number = match &*name {
            "limit" => &mut self.limit,
            "offset" => &mut self.offset,
            "total" => &mut self.total,
            "results" if self.text.byte(start) == Some(b'[') => {
                let list = List::new(self.text, start);
                let (items, end) = members.next_value_seed(list)?;
                self.results.set(Some((items, BodySpan::new(start..end))));
                return Ok(end);
            }
            "results" => {
                self.results.set(None);
                return self.text.skip(members);
            }
            "token" => {
                self.has_page_members_only = false;
                let mut token = Location::new(self.text);
                let value = Value::new(self.text, start, &mut token);
                let ReadValue { is_object, end } = members.next_value_seed(value)?;
                self.token.set(token.finish_height().filter(|_| is_object));
                return Ok(end);
            }
            _ => {
                self.has_page_members_only = false;
                return self.text.skip(members);
            }
        };
        let raw: &RawValue = members.next_value()?;
        let end = self.text.end_of(raw);
        let value = raw.get().parse::<u64>().ok();
        number.set(value.map(|value| (value, BodySpan::new(start..end))));
        Ok(end)
    }
}

/// Reads the list of a page's items.
struct List<'b> {
    text: Text<'b>,
    start: usize,
    items: Items,
}

impl<'b> List<'b> {
    fn new(text: Text<'b>, start: usize) -> Self {
        Self {
            text,
            start,
            items: Items::default(),
        }
    }
}

impl<'b> DeserializeSeed<'b> for List<'b> {
    type Value = (Items, usize);

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'b> Visitor<'b> for List<'b> {
    type Value = (Items, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'b>>(mut self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut end = self.start + 1;
        loop {
            let start = self.text.value_after(end, b',');
            let mut item = Item::new(self.text);
            let value = Value::new(self.text, start, &mut item);
            let Some(value) = list.next_element_seed(value)? else {
                break;
            };
            end = value.end;
            let located = item.finish().filter(|_| value.is_object);
            self.items.push(BodySpan::new(start..end), located);
        }
        // The closing bracket.
        Ok((self.items, self.text.skip_blanks(end) + 1))
    }
}

/// An item, of which only its location counts.
struct Item<'b> {
    text: Text<'b>,
    location: Once<Located>,
    is_decoded: bool,
}

/// The block and the transaction in which an item happened.
#[derive(Clone, Copy)]
pub(super) struct Located {
    pub(super) block: Block,
    pub(super) tx: Hash,
}

impl<'b> Item<'b> {
    const fn new(text: Text<'b>) -> Self {
        Self {
            text,
            location: Once::new(),
            is_decoded: true,
        }
    }

    fn finish(self) -> Option<Located> {
        self.location.get().filter(|_| self.is_decoded)
    }
}

impl<'b> ReadMembers<'b> for Item<'b> {
    fn read<A: MapAccess<'b>>(
        &mut self,
        name: Name<'b>,
        start: usize,
        members: &mut A,
    ) -> Result<usize, A::Error> {
        self.is_decoded &= name.decoded.is_some();
        if name.decoded.as_deref() != Some("location") {
            return self.text.skip(members);
        }
        let mut location = Location::new(self.text);
        let value = Value::new(self.text, start, &mut location);
        let ReadValue { is_object, end } = members.next_value_seed(value)?;
        self.location.set(location.finish().filter(|_| is_object));
        Ok(end)
    }
}

/// An item's location, which counts where each of three members occurs once and is of
/// its form; or a token, of which only the height of its deploy counts.
struct Location<'b> {
    text: Text<'b>,
    block_hash: Once<Hash>,
    block_height: Once<u32>,
    tx_id: Once<Hash>,
    is_decoded: bool,
}

impl<'b> Location<'b> {
    const fn new(text: Text<'b>) -> Self {
        Self {
            text,
            block_hash: Once::new(),
            block_height: Once::new(),
            tx_id: Once::new(),
            is_decoded: true,
        }
    }

    fn finish(self) -> Option<Located> {
        let block = Block {
            height: self.block_height.get()?,
            hash: self.block_hash.get()?,
        };
        let tx = self.tx_id.get()?;
        self.is_decoded.then_some(Located { block, tx })
    }

    fn finish_height(self) -> Option<u32> {
        self.block_height.get().filter(|_| self.is_decoded)
    }
}

impl<'b> ReadMembers<'b> for Location<'b> {
    fn read<A: MapAccess<'b>>(
        &mut self,
        name: Name<'b>,
        _start: usize,
        members: &mut A,
    ) -> Result<usize, A::Error> {
        let raw: &RawValue = members.next_value()?;
        let digits = |raw| decode(raw).and_then(|text| hash(&text));
        match name.decoded.as_deref() {
            Some("block_hash") => self.block_hash.set(digits(raw)),
            Some("block_height") => self.block_height.set(raw.get().parse().ok()),
            Some("tx_id") => self.tx_id.set(digits(raw)),
            Some(_) => {}
            None => self.is_decoded = false,
        }
        Ok(self.text.end_of(raw))
    }
}
