//! A span as it is exported: what was done, when, for which request, with which result.
//! Names of attributes are those of OpenTelemetry's semantic conventions, and
//! `ordgate.*` where those have none.

use std::borrow::Cow;

use crate::clock::Moment;
use crate::trace::context::{SpanContext, SpanId};

/// The most attributes of a span, so that its size is bounded.
const MOST_ATTRIBUTES: usize = 24;
/// The longest text of an attribute, in bytes; the rest is left out.
const MOST_TEXT: usize = 1024;

/// What a span is of (OpenTelemetry's span kind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A step within ordgate.
    Internal,
    /// A request of a client.
    Server,
    /// A request to the upstream.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
    /// Whether something is so.
    Flag(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(mut text: String) -> Self {
        let mut end = text.len().min(MOST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self::Text(Cow::Owned(text))
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<u32> for AttributeValue {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A span. Its size is bounded: some 30 KB if every attribute had its longest text.
#[derive(Clone, Debug)]
pub struct SpanRecord {
    /// Its trace, id and flags.
    pub context: SpanContext,
    /// The span that it is part of.
    pub parent: Option<SpanId>,
    /// Whether the parent is a span of another process.
    pub is_parent_remote: bool,
    /// The `tracestate` of the client's request.
    pub state: Option<Box<str>>,
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it is of.
    pub kind: SpanKind,
    /// When it began.
    pub began: Moment,
    /// When it ended.
    pub ended: Moment,
    /// Its attributes; each name once.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Spans of other traces that it waited for.
    pub links: Vec<SpanContext>,
    /// Whether it has failed.
    pub failed: bool,
}

impl SpanRecord {
    /// Sets an attribute, beyond the most attributes none.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        let value = value.into();
        let known = self.attributes.iter().position(|(known, _)| *known == name);
        match known {
            Some(at) => self.attributes[at].1 = value,
            None if self.attributes.len() < MOST_ATTRIBUTES => self.attributes.push((name, value)),
            None => {}
        }
    }
}
