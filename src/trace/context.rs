//! Trace context: the fields `traceparent` and `tracestate` (W3C Recommendation
//! "Trace Context", level 1; level 2 for the random flag). Pure.
//!
//! A field that does not follow the Recommendation counts as absent, and so does one
//! that comes more than once. Sections are those of the Recommendation.

use std::borrow::Cow;
use std::fmt;

use http::header::GetAll;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::client_tokens::redact;

/// `traceparent` (§3.2).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate` (§3.3).
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The flag of a request whose sender records its trace (§3.2.2.5.1).
const SAMPLED: u8 = 1;
/// The flags that are known: sampled, and random (level 2). Others are sent as 0.
const KNOWN_FLAGS: u8 = 3;
/// The length of `traceparent` in version 00.
const LENGTH: usize = 55;
/// The longest `tracestate` that is passed on, in bytes (§3.3.1.5).
const MOST_STATE: usize = 512;
/// The most members of a `tracestate` (§3.3.1.1).
const MOST_MEMBERS: usize = 32;
/// The longest key and value of a member (§3.3.1.3).
const MOST_MEMBER_TEXT: usize = 256;

/// The id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

/// The id of a span; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

/// Which span a request or another span belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// The flags of `traceparent`, as far as they are known.
    flags: u8,
}

impl TraceId {
    /// A new id. `random` is uniformly distributed.
    pub(crate) fn new(random: u128) -> Self {
        Self(random.max(1))
    }

    /// Its bytes.
    pub(crate) const fn bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl SpanId {
    /// A new id. `random` is uniformly distributed.
    pub(crate) fn new(random: u64) -> Self {
        Self(random.max(1))
    }

    /// Its bytes.
    pub(crate) const fn bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl SpanContext {
    /// A span of ordgate's that is recorded. The random flag is that of the parent,
    /// or set where ordgate has made the trace's id.
    pub(crate) fn recorded(trace: TraceId, span: SpanId, parent: Option<Self>) -> Self {
        let flags = parent.map_or(KNOWN_FLAGS, |parent| parent.flags | SAMPLED);
        Self { trace, span, flags }
    }

    /// Another span of the same trace.
    pub(crate) const fn with(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// The parent of a request, if it has a valid `traceparent`.
    pub(crate) fn of(fields: &HeaderMap) -> Option<Self> {
        let mut values = fields.get_all(TRACEPARENT).iter();
        let value = values.next()?;
        match values.next() {
            None => Self::parse(value.as_bytes()),
            Some(_) => None,
        }
    }

    /// Reads a value of `traceparent` (§3.2.2, and §4.3 for later versions, of which
    /// the first 55 characters are read).
    fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(LENGTH)?;
        let [v0, v1, b'-', ids @ .., b'-', f0, f1] = head else {
            return None;
        };
        let version = hexadecimal(&[*v0, *v1])?;
        let is_whole = match version {
            0 => rest.is_empty(),
            // Never valid (§3.2.2.1).
            0xff => false,
            _ => matches!(rest, [] | [b'-', ..]),
        };
        let (trace, span) = ids.split_at_checked(32)?;
        let [b'-', span @ ..] = span else {
            return None;
        };
        let (trace, span) = (hexadecimal(trace)?, hexadecimal(span)? as u64);
        let flags = hexadecimal(&[*f0, *f1])? as u8;
        (is_whole && trace != 0 && span != 0).then_some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            flags: flags & KNOWN_FLAGS,
        })
    }

    /// Whether its sender records it.
    pub(crate) const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The flags of `traceparent`.
    pub(crate) const fn flags(self) -> u8 {
        self.flags
    }

    /// The value of `traceparent` by which a request belongs to this span.
    pub(crate) fn field(self) -> Option<HeaderValue> {
        let Self { trace, span, flags } = self;
        HeaderValue::try_from(format!("00-{trace}-{span}-{flags:02x}")).ok()
    }
}

/// The number that lower-case hexadecimal digits mean, at most 32 of them.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The `tracestate` of a request with a valid `traceparent`, its lines joined. Members
/// that do not fit into 512 bytes are left out from the end; with a malformed member, and
/// with a client token or a key of the provider, the whole is left out (§3.3.1).
pub(crate) fn state_of(fields: &HeaderMap) -> Option<Box<str>> {
    let members = members(fields.get_all(TRACESTATE))?;
    let mut text = String::new();
    for member in members {
        let length = text.len() + member.len() + usize::from(!text.is_empty());
        if length > MOST_STATE {
            break;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(member);
    }
    // It is exported and sent on, and some client may put a token or a key into it.
    let has_secret = matches!(redact(&text, MOST_STATE), Cow::Owned(_));
    (!text.is_empty() && !has_secret).then(|| text.into())
}

/// The members of all lines; `None` if one is malformed, or if there are too many.
fn members<'a>(lines: GetAll<'a, HeaderValue>) -> Option<Vec<&'a str>> {
    let mut members: Vec<&str> = Vec::new();
    for line in lines {
        let line = line.to_str().ok()?;
        for member in line
            .split(',')
            .map(|member| member.trim_matches([' ', '\t']))
        {
            // Empty members are allowed (§3.3.1.1).
            if member.is_empty() {
                continue;
            }
            let (key, value) = member.split_once('=')?;
            let has_key = |member: &str| member.split_once('=').map(|(key, _)| key) == Some(key);
            let is_full = members.len() >= MOST_MEMBERS;
            if is_full || !is_key(key) || !is_value(value) || members.iter().any(|m| has_key(m)) {
                return None;
            }
            members.push(member);
        }
    }
    Some(members)
}

/// Whether a text may be the key of a member (§3.3.1.3.1; level 2 has the same set for
/// both forms of keys).
fn is_key(key: &str) -> bool {
    let is_first = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    let is_other = |byte: &u8| is_first(byte) || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@');
    key.len() <= MOST_MEMBER_TEXT
        && key.as_bytes().first().is_some_and(is_first)
        && key.as_bytes().iter().all(is_other)
}

/// Whether a text may be the value of a member (§3.3.1.3.2).
fn is_value(value: &str) -> bool {
    let is_character = |byte: u8| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=';
    (1..=MOST_MEMBER_TEXT).contains(&value.len()) && value.bytes().all(is_character)
}

#[cfg(test)]
mod tests;
