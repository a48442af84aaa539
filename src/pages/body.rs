//! One pass over an upstream body: is it JSON, is it an activity page and which
//! blocks does it name, when was the token deployed that it describes.
//!
//! serde_json does the scanning. Values that matter are read as [`RawValue`], and
//! the objects around them as members, so that no byte is scanned twice; where a
//! value begins and ends follows from where its neighbours do. Nothing but a
//! syntax error ends the pass early: a member of an unexpected form only means
//! that the body is no page, or that an item has no location.
//!
//! Deliberately absent: whether the page is the one that was requested
//! ([`check_window`](super::check_window)).

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::page::{Items, Member, Page, Span};
use super::{Block, Hash, hash};

/// What one pass over a JSON body finds.
#[derive(Clone, Debug, Default)]
pub struct BodyIndex {
    /// The body's index as an activity page, if it is one: an object in which
    /// `limit`, `offset` and `total` are each once a `u64`, and `results` is once
    /// a list, of anything.
    pub page: Option<Box<Page>>,
    /// Whether the body is an object whose `results` is an empty list.
    pub empty: bool,
    /// The height of a token's deploy: `block_height` of the object `token` (the
    /// API's section 2.2).
    pub deploy_height: Option<u32>,
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

/// The text of a body, in which parts are found by their addresses.
#[derive(Clone, Copy)]
struct Text<'b>(&'b str);

impl<'b> Text<'b> {
    fn byte(self, at: usize) -> Option<u8> {
        self.0.as_bytes().get(at).copied()
    }

    /// Where a part of the text ends in it.
    fn end_of(self, part: &'b RawValue) -> usize {
        let part = part.get();
        let start = part.as_ptr().addr().saturating_sub(self.0.as_ptr().addr());
        start + part.len()
    }

    /// The first position from `at` on that is no blank (RFC 8259 §2).
    fn skip_blanks(self, at: usize) -> usize {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        at + rest.iter().take_while(|byte| is_blank(byte)).count()
    }

    /// Where the value begins that follows a separator, or follows at once.
    fn value_after(self, at: usize, separator: u8) -> usize {
        let at = self.skip_blanks(at);
        match self.byte(at) == Some(separator) {
            true => self.skip_blanks(at + 1),
            false => at,
        }
    }

    /// Reads over a value of no interest; answers with its end.
    fn skip<A: MapAccess<'b>>(self, members: &mut A) -> Result<usize, A::Error> {
        Ok(self.end_of(members.next_value()?))
    }
}

/// A member's name. It is decoded where it has escapes; one that cannot be, such
/// as half of a surrogate pair, is still JSON.
struct Name<'b> {
    decoded: Option<Cow<'b, str>>,
}

impl<'b> Name<'b> {
    fn of(name: &'b RawValue) -> Self {
        Self {
            decoded: decode(name),
        }
    }

    /// Whether the name is written with escapes.
    fn is_escaped(&self) -> bool {
        !matches!(self.decoded, Some(Cow::Borrowed(_)))
    }
}

/// A string's text; `None` where the value is no string, or one that no text
/// equals.
fn decode(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        true => serde_json::from_str(raw.get()).ok().map(Cow::Owned),
        false => Some(Cow::Borrowed(inner)),
    }
}

/// An object that is read member by member.
trait Members<'b> {
    /// Reads the value of a member, which begins at `start`; answers with its
    /// end. Errors are those of the JSON syntax alone.
    fn read<A: MapAccess<'b>>(
        &mut self,
        name: Name<'b>,
        start: usize,
        members: &mut A,
    ) -> Result<usize, A::Error>;
}

/// A value that is read into `members` if it is an object, else skipped.
struct Value<'r, 'b, M> {
    text: Text<'b>,
    start: usize,
    members: &'r mut M,
}

struct ReadValue {
    is_object: bool,
    end: usize,
}

impl<'r, 'b, M: Members<'b>> Value<'r, 'b, M> {
    fn new(text: Text<'b>, start: usize, members: &'r mut M) -> Self {
        Self {
            text,
            start,
            members,
        }
    }
}

impl<'b, M: Members<'b>> DeserializeSeed<'b> for Value<'_, 'b, M> {
    type Value = ReadValue;

    fn deserialize<D: Deserializer<'b>>(self, deserializer: D) -> Result<ReadValue, D::Error> {
        if self.text.byte(self.start) == Some(b'{') {
            return deserializer.deserialize_map(self);
        }
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(ReadValue {
            is_object: false,
            end: self.text.end_of(raw),
        })
    }
}

impl<'b, M: Members<'b>> Visitor<'b> for Value<'_, 'b, M> {
    type Value = ReadValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'b>>(self, mut members: A) -> Result<ReadValue, A::Error> {
        let mut end = self.start + 1;
        while let Some(name) = members.next_key::<&'b RawValue>()? {
            let start = self.text.value_after(self.text.end_of(name), b':');
            end = self.members.read(Name::of(name), start, &mut members)?;
        }
        Ok(ReadValue {
            is_object: true,
            // The closing brace.
            end: self.text.skip_blanks(end) + 1,
        })
    }
}

/// A member that must occur once.
struct Once<T> {
    value: Option<T>,
    count: u32,
}

impl<T> Once<T> {
    const fn new() -> Self {
        Self {
            value: None,
            count: 0,
        }
    }

    /// Notes an occurrence, whose value may be of no use. Of a member that occurs
    /// twice, readers of JSON differ in which they take.
    fn set(&mut self, value: Option<T>) {
        self.count += 1;
        self.value = value;
    }

    fn get(self) -> Option<T> {
        self.value.filter(|_| self.count == 1)
    }
}

/// The body's outermost object.
struct Envelope<'b> {
    text: Text<'b>,
    limit: Once<(u64, Span)>,
    offset: Once<(u64, Span)>,
    total: Once<(u64, Span)>,
    results: Once<(Items, Span)>,
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
                (Member::Limit, limit_at),
                (Member::Offset, offset_at),
                (Member::Total, total_at),
                (Member::Results, results_at),
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

impl<'b> Members<'b> for Envelope<'b> {
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
                self.results.set(Some((items, Span::new(start..end))));
                return Ok(end);
            }
            "results" => {
                self.results.set(None);
                return self.text.skip(members);
            }
            "token" => {
                self.has_page_members_only = false;
                let mut token = Token::new(self.text);
                let value = Value::new(self.text, start, &mut token);
                let ReadValue { is_object, end } = members.next_value_seed(value)?;
                self.token.set(token.finish().filter(|_| is_object));
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
        number.set(value.map(|value| (value, Span::new(start..end))));
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
            self.items.push(Span::new(start..end), located);
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

impl<'b> Members<'b> for Item<'b> {
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

/// An item's location. It counts where each of three members occurs once and is
/// of its form.
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
}

impl<'b> Members<'b> for Location<'b> {
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

/// A token, of which only the height of its deploy counts.
struct Token<'b> {
    text: Text<'b>,
    block_height: Once<u32>,
    is_decoded: bool,
}

impl<'b> Token<'b> {
    const fn new(text: Text<'b>) -> Self {
        Self {
            text,
            block_height: Once::new(),
            is_decoded: true,
        }
    }

    fn finish(self) -> Option<u32> {
        self.block_height.get().filter(|_| self.is_decoded)
    }
}

impl<'b> Members<'b> for Token<'b> {
    fn read<A: MapAccess<'b>>(
        &mut self,
        name: Name<'b>,
        _start: usize,
        members: &mut A,
    ) -> Result<usize, A::Error> {
        let raw: &RawValue = members.next_value()?;
        match name.decoded.as_deref() {
            Some("block_height") => self.block_height.set(raw.get().parse().ok()),
            Some(_) => {}
            None => self.is_decoded = false,
        }
        Ok(self.text.end_of(raw))
    }
}
