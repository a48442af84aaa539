//! Reading of JSON objects member by member, in one pass, with the positions of their
//! values.
//!
//! serde_json does the scanning. Scalars and values of no interest are read as
//! [`RawValue`], and objects as members, so that no byte is scanned twice; where a
//! value begins and ends follows from where its neighbours do. Nothing but a syntax
//! error ends the pass early.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The text of a body, in which parts are found by their addresses.
#[derive(Clone, Copy)]
pub(super) struct Text<'b>(pub(super) &'b str);

impl<'b> Text<'b> {
    pub(super) fn byte(self, at: usize) -> Option<u8> {
        self.0.as_bytes().get(at).copied()
    }

    /// Where a part of the text ends in it.
    pub(super) fn end_of(self, part: &'b RawValue) -> usize {
        let part = part.get();
        let start = part.as_ptr().addr().saturating_sub(self.0.as_ptr().addr());
        start + part.len()
    }

    /// The first position from `at` on that is no blank (RFC 8259 §2).
    pub(super) fn skip_blanks(self, at: usize) -> usize {
        let rest = self.0.as_bytes().get(at..).unwrap_or_default();
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        at + rest.iter().take_while(|byte| is_blank(byte)).count()
    }

    /// Where the value begins that follows a separator, or follows at once.
    pub(super) fn value_after(self, at: usize, separator: u8) -> usize {
        let at = self.skip_blanks(at);
        match self.byte(at) == Some(separator) {
            true => self.skip_blanks(at + 1),
            false => at,
        }
    }

    /// Reads over a value of no interest; answers with its end.
    pub(super) fn skip<A: MapAccess<'b>>(self, members: &mut A) -> Result<usize, A::Error> {
        Ok(self.end_of(members.next_value()?))
    }
}

/// A member's name. It is decoded where it has escapes; one that cannot be, such
/// as half of a surrogate pair, is still JSON.
pub(super) struct Name<'b> {
    pub(super) decoded: Option<Cow<'b, str>>,
}

impl<'b> Name<'b> {
    fn of(name: &'b RawValue) -> Self {
        Self {
            decoded: decode(name),
        }
    }

    /// Whether the name is written with escapes.
    pub(super) fn is_escaped(&self) -> bool {
        !matches!(self.decoded, Some(Cow::Borrowed(_)))
    }
}

/// A string's text; `None` where the value is no string, or one that no text
/// equals.
pub(super) fn decode(raw: &RawValue) -> Option<Cow<'_, str>> {
    let inner = raw.get().strip_prefix('"')?.strip_suffix('"')?;
    match inner.contains('\\') {
        true => serde_json::from_str(raw.get()).ok().map(Cow::Owned),
        false => Some(Cow::Borrowed(inner)),
    }
}

/// An object that is read member by member.
pub(super) trait ReadMembers<'b> {
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
pub(super) struct Value<'r, 'b, M> {
    text: Text<'b>,
    start: usize,
    members: &'r mut M,
}

pub(super) struct ReadValue {
    pub(super) is_object: bool,
    pub(super) end: usize,
}

impl<'r, 'b, M: ReadMembers<'b>> Value<'r, 'b, M> {
    pub(super) fn new(text: Text<'b>, start: usize, members: &'r mut M) -> Self {
        Self {
            text,
            start,
            members,
        }
    }
}

impl<'b, M: ReadMembers<'b>> DeserializeSeed<'b> for Value<'_, 'b, M> {
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

impl<'b, M: ReadMembers<'b>> Visitor<'b> for Value<'_, 'b, M> {
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
pub(super) struct Once<T> {
    value: Option<T>,
    count: u32,
}

impl<T> Once<T> {
    pub(super) const fn new() -> Self {
        Self {
            value: None,
            count: 0,
        }
    }

    /// Notes an occurrence, whose value may be of no use. Of a member that occurs
    /// twice, readers of JSON differ in which they take.
    pub(super) fn set(&mut self, value: Option<T>) {
        self.count += 1;
        self.value = value;
    }

    pub(super) fn get(self) -> Option<T> {
        self.value.filter(|_| self.count == 1)
    }
}
