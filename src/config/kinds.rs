//! The kinds of values that keys have: how each is read, printed, and described
//! in words and as JSON Schema.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::Spanned;
use toml::de::DeValue;

use super::key::{Kind, meant_or_allowed};
use super::pattern;
use super::problem::Path;
use crate::units;
use crate::upstream::Rate;

pub(super) const MILLI: Duration = Duration::from_millis(1);
pub(super) const DAY: Duration = Duration::from_hours(24);
pub(super) const YEAR: Duration = Duration::from_hours(24 * 365);

/// A number of seconds.
pub(super) const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A number that is not 0.
pub(super) const fn count(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}

/// Reports a value that is not allowed, and answers `None`.
pub(super) fn report<T>(path: &Path<'_>, value: &Spanned<DeValue<'_>>, allowed: &str) -> Option<T> {
    let came = received(value.get_ref());
    path.wrong(&value.span(), &came, &format!("allowed is {allowed}"));
    None
}

/// A value as messages show it: shortened, and without a password in a URL.
pub(super) fn received(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => {
            let (before, _) = text.rsplit_once('@').unwrap_or_default();
            let text = match before.contains(':') {
                true => without_user(text),
                false => text.to_string(),
            };
            format!("\"{}\"", text.chars().take(60).collect::<String>())
        }
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A URL, or what came in place of one, as messages show it: without the user and the
/// password, which end at the last `@`.
pub fn without_user(text: &str) -> String {
    let Some((before, rest)) = text.rsplit_once('@') else {
        return text.to_owned();
    };
    // Also `NAME=`, which goes before the URL on the command line.
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.=".contains(c);
    let scheme = before.split_once("://").map(|(scheme, _)| scheme);
    match scheme.filter(|scheme| scheme.chars().all(is_scheme)) {
        Some(scheme) => format!("{scheme}://[redacted]@{rest}"),
        None => format!("[redacted]@{rest}"),
    }
}

/// A string as TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub(super) fn integer_of(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// `true` or `false`.
pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<bool> {
        let read = value.get_ref().as_bool();
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &bool) -> Option<String> {
        Some(value.to_string())
    }

    fn schema(&self) -> Json {
        json!({"type": "boolean"})
    }
}

/// The types of whole numbers.
pub(super) trait Whole: Copy {
    fn of(number: u64) -> Option<Self>;
    fn number(self) -> u64;
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Whole for $type {
            fn of(number: u64) -> Option<Self> {
                Self::try_from(number).ok()
            }

            fn number(self) -> u64 {
                self as u64
            }
        }
    )*};
}
whole!(u8, u32, u64, usize);

impl Whole for NonZeroU32 {
    fn of(number: u64) -> Option<Self> {
        u32::try_from(number).ok().and_then(Self::new)
    }

    fn number(self) -> u64 {
        u64::from(self.get())
    }
}

/// A whole number within bounds.
pub(super) struct Integer<T>(RangeInclusive<u64>, PhantomData<T>);

pub(super) const fn integer<T>(bounds: RangeInclusive<u64>) -> Integer<T> {
    Integer(bounds, PhantomData)
}

impl<T: Whole> Kind for Integer<T> {
    type Value = T;

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<T> {
        let number = integer_of(value.get_ref()).filter(|number| self.0.contains(number));
        let read = number.and_then(T::of);
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &T) -> Option<String> {
        Some(value.number().to_string())
    }

    fn schema(&self) -> Json {
        json!({"type": "integer", "minimum": self.0.start(), "maximum": self.0.end()})
    }
}

/// A number from 0 to 1.
pub(super) struct Fraction;

impl Kind for Fraction {
    type Value = f64;

    fn allowed(&self) -> String {
        "a number from 0 to 1, such as 0.25".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<f64> {
        let float = value.get_ref().as_float();
        let float = float.and_then(|float| float.as_str().parse().ok());
        let number = float.or_else(|| match integer_of(value.get_ref()) {
            Some(0) => Some(0.0),
            Some(1) => Some(1.0),
            Some(_) | None => None,
        });
        let read = number.filter(|number| (0.0..=1.0).contains(number));
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &f64) -> Option<String> {
        Some(toml::Value::from(*value).to_string())
    }

    fn schema(&self) -> Json {
        json!({"type": "number", "minimum": 0, "maximum": 1})
    }
}

/// A number of requests, or `"unlimited"`.
pub(super) struct Requests;

impl Requests {
    const BOUNDS: Integer<NonZeroU32> = integer(1..=1_000_000);
}

impl Kind for Requests {
    type Value = Rate;

    fn allowed(&self) -> String {
        format!("{}, or \"{}\"", Self::BOUNDS.allowed(), Rate::UNLIMITED)
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Rate> {
        if value.get_ref().as_str() == Some(Rate::UNLIMITED) {
            return Some(Rate::Unlimited);
        }
        let number = integer_of(value.get_ref()).filter(|n| Self::BOUNDS.0.contains(n));
        let read = number.and_then(Whole::of).map(Rate::Limited);
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &Rate) -> Option<String> {
        Some(match value {
            Rate::Unlimited => quoted(Rate::UNLIMITED),
            Rate::Limited(most) => most.to_string(),
        })
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [Self::BOUNDS.schema(), {"const": Rate::UNLIMITED}]})
    }
}

/// A duration within bounds.
pub(super) struct Time(RangeInclusive<Duration>);

pub(super) const fn time(from: Duration, to: Duration) -> Time {
    Time(RangeInclusive::new(from, to))
}

impl Kind for Time {
    type Value = Duration;

    fn allowed(&self) -> String {
        format!(
            "{}, from {} to {}",
            units::DURATION,
            units::format(*self.0.start()),
            units::format(*self.0.end())
        )
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Duration> {
        let read = value.get_ref().as_str().and_then(units::parse);
        let read = read.filter(|time| self.0.contains(time));
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &Duration) -> Option<String> {
        Some(quoted(&units::format(*value)))
    }

    fn schema(&self) -> Json {
        let millis = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bounds = millis(self.0.start())..=millis(self.0.end());
        json!({"type": "string", "pattern": pattern::of_units(&bounds, &units::UNITS)})
    }
}

/// A number of bytes within bounds.
pub(super) struct ByteSize(RangeInclusive<u64>);

pub(super) const fn size(bounds: RangeInclusive<u64>) -> ByteSize {
    ByteSize(bounds)
}

impl Kind for ByteSize {
    type Value = u64;

    fn allowed(&self) -> String {
        format!(
            "{}, from {} to {}",
            units::SIZE,
            units::format_size(*self.0.start()),
            units::format_size(*self.0.end())
        )
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<u64> {
        let text = value.get_ref().as_str();
        let read = text.map_or_else(|| integer_of(value.get_ref()), units::parse_size);
        let read = read.filter(|bytes| self.0.contains(bytes));
        read.or_else(|| report(path, value, &self.allowed()))
    }

    fn print(&self, value: &u64) -> Option<String> {
        Some(quoted(&units::format_size(*value)))
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [
            {"type": "string", "pattern": pattern::of_units(&self.0, &units::SIZES)},
            integer::<u64>(self.0.clone()).schema(),
        ]})
    }
}

/// One of some names.
pub(super) struct Choice<T: 'static>(&'static [(&'static str, T)]);

pub(super) const fn choice<T>(names: &'static [(&'static str, T)]) -> Choice<T> {
    Choice(names)
}

impl<T: Copy + PartialEq> Choice<T> {
    /// The name of a value.
    pub(super) fn name(&self, value: T) -> Option<&'static str> {
        let found = self.0.iter().find(|(_, named)| *named == value);
        found.map(|(name, _)| *name)
    }

    fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

impl<T: Copy + PartialEq> Kind for Choice<T> {
    type Value = T;

    fn allowed(&self) -> String {
        format!("one of {}", self.names().join(", "))
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<T> {
        let text = value.get_ref().as_str();
        let found = self.0.iter().find(|(name, _)| text == Some(name));
        if found.is_none() {
            let came = received(value.get_ref());
            let allowed = meant_or_allowed(text.unwrap_or_default(), &self.names());
            let allowed = format!("{allowed} is {}", self.allowed());
            path.wrong(&value.span(), &came, &allowed);
        }
        found.map(|(_, value)| *value)
    }

    fn print(&self, value: &T) -> Option<String> {
        self.name(*value).map(quoted)
    }

    fn schema(&self) -> Json {
        json!({"enum": self.names()})
    }
}

/// A string that means something.
pub(super) struct ParsedText<T> {
    allowed: &'static str,
    /// What every allowed string matches, as JSON Schema has it.
    pattern: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

/// A string of which `parse` makes a value. Its error is a reason, or empty.
pub(super) const fn text<T>(
    allowed: &'static str,
    pattern: &'static str,
    parse: fn(&str) -> Result<T, String>,
) -> ParsedText<T> {
    ParsedText {
        allowed,
        pattern,
        parse,
    }
}

/// The text itself, if it is allowed.
pub(super) fn when(is_allowed: bool, text: &str) -> Result<String, String> {
    match is_allowed {
        true => Ok(text.to_owned()),
        false => Err(String::new()),
    }
}

/// Any string.
pub(super) const STRING: ParsedText<String> = text("a string", "", |text| Ok(text.to_owned()));

impl<T: Clone + std::fmt::Display> Kind for ParsedText<T> {
    type Value = T;

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<T> {
        let text = value.get_ref().as_str();
        match text.map_or(Err(String::new()), self.parse) {
            Ok(read) => Some(read),
            Err(reason) if reason.is_empty() => report(path, value, self.allowed),
            Err(reason) => report(path, value, &format!("{}: {reason}", self.allowed)),
        }
    }

    fn print(&self, value: &T) -> Option<String> {
        Some(quoted(&value.to_string()))
    }

    fn schema(&self) -> Json {
        match self.pattern {
            "" => json!({"type": "string"}),
            pattern => json!({"type": "string", "pattern": pattern}),
        }
    }
}

/// A key that may be left out and has no default.
pub(super) struct Optional<K>(K);

pub(super) const fn optional<K>(kind: K) -> Optional<K> {
    Optional(kind)
}

impl<K: Kind> Kind for Optional<K> {
    type Value = Option<K::Value>;

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        self.0.read(path, value).map(Some)
    }

    fn print(&self, value: &Self::Value) -> Option<String> {
        self.0.print(value.as_ref()?)
    }

    fn schema(&self) -> Json {
        self.0.schema()
    }
}
