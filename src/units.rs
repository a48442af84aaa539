//! Durations and sizes as text, in proxy.toml and in flags: a whole number and a
//! unit.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serializer, de};

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
const SIZES: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// The format of a duration, for messages.
pub const DURATION: &str = "a whole number with a unit (ms, s, m, h or d), such as \"10s\"";
/// The format of a size, for messages.
pub const SIZE: &str = "a whole number with a unit (B, KiB, MiB or GiB), such as \"256MiB\"";

/// Parses a duration, such as `10s`.
pub fn parse(text: &str) -> Option<Duration> {
    parse_unit(text, &UNITS).map(Duration::from_millis)
}

/// Formats a duration with the largest unit that divides it.
pub fn format(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    format_unit(millis, &UNITS, "0s")
}

/// Parses a size, such as `256MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    parse_unit(text, &SIZES)
}

/// Formats a size with the largest unit that divides it.
pub fn format_size(bytes: u64) -> String {
    format_unit(bytes, &SIZES, "0B")
}

/// A key of proxy.toml that is a duration of at least `MIN` milliseconds, and at most a year:
/// `#[serde(with = "Time::<1>")]`.
#[derive(Debug)]
pub struct Time<const MIN: u64>;

impl<const MIN: u64> Time<MIN> {
    /// A year of 365 days.
    const MAX: u64 = 365 * 86_400_000;

    fn allowed() -> String {
        let [least, most] = [MIN, Self::MAX].map(|millis| format(Duration::from_millis(millis)));
        format!("{DURATION}, from {least} to {most}")
    }

    /// Writes it as text.
    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format(*time))
    }

    /// Reads it, and refuses what is out of bounds.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = text(from)?;
        let millis = parse_unit(&text, &UNITS).filter(|millis| (MIN..=Self::MAX).contains(millis));
        let time = millis.map(Duration::from_millis);
        time.ok_or_else(|| out_of_bounds(&text, &Self::allowed()))
    }
}

/// A key of proxy.toml that is a number of bytes, at least `MIN`, and at most 16 TiB.
#[derive(Debug)]
pub struct Size<const MIN: u64>;

impl<const MIN: u64> Size<MIN> {
    const MAX: u64 = 16 << 40;

    fn allowed() -> String {
        let [least, most] = [MIN, Self::MAX].map(format_size);
        format!("{SIZE}, from {least} to {most}")
    }

    /// Writes it as text.
    pub(crate) fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_size(*bytes))
    }

    /// Reads it, and refuses what is out of bounds.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = text(from)?;
        let bytes = parse_size(&text).filter(|bytes| (MIN..=Self::MAX).contains(bytes));
        bytes.ok_or_else(|| out_of_bounds(&text, &Self::allowed()))
    }
}

/// The text of a value; one of another kind as it is written.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    let text = value.as_str().map(str::to_owned);
    Ok(text.unwrap_or_else(|| value.to_string()))
}

fn out_of_bounds<E: de::Error>(text: &str, allowed: &str) -> E {
    let text: String = text.chars().take(60).collect();
    E::custom(format_args!("{text:?} came; allowed is {allowed}"))
}

impl<const MIN: u64> JsonSchema for Time<MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "x-allowed": Self::allowed()})
    }
}

impl<const MIN: u64> JsonSchema for Size<MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "x-allowed": Self::allowed()})
    }
}

/// A key of proxy.toml that is a list of what a type reads from text; one is written without
/// brackets.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "it is there for the schema")]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub(crate) fn serialize<T: Display, S: Serializer>(
        all: &[T],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match all {
            [one] => to.collect_str(one),
            all => to.collect_seq(all.iter().map(T::to_string)),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "allowed is a string or a list of strings")]
        enum Read {
            One(String),
            Many(Vec<String>),
        }
        let texts = match Read::deserialize(from)? {
            Read::One(text) => vec![text],
            Read::Many(texts) => texts,
        };
        let each = texts
            .iter()
            .map(|text| text.parse().map_err(de::Error::custom));
        each.collect()
    }
}

fn parse_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn format_unit(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    let unit = units
        .iter()
        .find(|(_, factor)| value.is_multiple_of(*factor));
    match (value, unit) {
        (1.., Some((name, factor))) => format!("{}{name}", value / factor),
        _ => zero.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes() {
        for (text, millis) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("30d", 2_592_000_000),
            ("0s", 0),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(text), Some(duration), "{text}");
            assert_eq!(format(duration), text);
        }
        for bad in [
            "",
            "10",
            "s",
            "1.5s",
            "-1s",
            "10 s",
            "10S",
            "1w",
            "99999999999999999999s",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        for (text, bytes) in [("256MiB", 256 << 20), ("1GiB", 1 << 30), ("100B", 100)] {
            assert_eq!(parse_size(text), Some(bytes));
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size("1MB"), None);
    }
}
