//! A span as it is exported: what was done, when, for which request, with which result.
//! Names of attributes are those of OpenTelemetry's semantic conventions, and
//! `ordgate.*` where those have none.

use std::borrow::Cow;

use http::Method;

use crate::client_tokens::redact;
use crate::clock::Moment;
use crate::trace::context::{SpanContext, SpanId};

/// The most attributes of a span, so that its size is bounded.
const MOST_ATTRIBUTES: usize = 24;
/// The longest text of an attribute, in bytes; the rest is left out.
const MOST_TEXT: usize = 1024;

/// The methods that a span is told by name (semantic conventions for HTTP).
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];
/// How much of another method is kept, in bytes.
const MOST_METHOD: usize = 32;

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
    /// A text from a request may have a client token, which is redacted.
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(redact(&text, MOST_TEXT).into_owned()))
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

/// The name of a method; `None` for one that is not standard, which may be anything.
pub(crate) fn known_method(method: &Method) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method.as_str())
}

/// The attributes for a method.
pub(crate) fn method_attributes(
    method: &Method,
) -> impl Iterator<Item = (&'static str, AttributeValue)> {
    let known = known_method(method);
    let original = known.is_none().then(|| {
        let shown = redact(method.as_str(), MOST_METHOD).into_owned();
        ("http.request.method_original", shown.into())
    });
    let name = ("http.request.method", known.unwrap_or("_OTHER").into());
    std::iter::once(name).chain(original)
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
