//! Durations and sizes as text, in proxy.toml and in flags: a whole number and a
//! unit.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serializer, de};

/// The format of a duration, for messages.
pub const DURATION: &str = "a whole number with a unit (ms, s, m, h or d), such as \"10s\"";
/// The format of a size, for messages.
const SIZE: &str = "a whole number with a unit (B, KiB, MiB or GiB), such as \"256MiB\"";

/// What a number with a unit counts.
struct Quantity {
    /// The names of the units, each with the number that it stands for; the largest first.
    units: &'static [(&'static str, u64)],
    zero: &'static str,
    /// Its format, for messages.
    format: &'static str,
    /// The most that a key may have.
    most: u64,
}

/// Milliseconds, at most a year.
const TIMES: Quantity = Quantity {
    units: &[
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
        ("ms", 1),
    ],
    zero: "0s",
    format: DURATION,
    most: 365 * 86_400_000,
};

/// Bytes, at most 16 TiB.
const SIZES: Quantity = Quantity {
    units: &[
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ],
    zero: "0B",
    format: SIZE,
    most: 16 << 40,
};

impl Quantity {
    fn parse(&self, text: &str) -> Option<u64> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let (_, factor) = self.units.iter().find(|(name, _)| *name == unit)?;
        number.parse::<u64>().ok()?.checked_mul(*factor)
    }

    fn format(&self, value: u64) -> String {
        let mut units = self.units.iter();
        match units.find(|(_, factor)| value.is_multiple_of(*factor)) {
            Some((name, factor)) if value > 0 => format!("{}{name}", value / factor),
            _ => self.zero.to_owned(),
        }
    }

    /// What a key may have that is at least so much.
    fn allowed(&self, least: u64) -> String {
        let [least, most] = [least, self.most].map(|value| self.format(value));
        format!("{}, from {least} to {most}", self.format)
    }

    /// Reads the value of a key, and refuses what is out of bounds.
    fn read<'de, D: Deserializer<'de>>(&self, least: u64, from: D) -> Result<u64, D::Error> {
        // Also one of another type, to show it.
        let value = serde_json::Value::deserialize(from)?;
        let text = value.as_str().map(str::to_owned);
        let text = text.unwrap_or_else(|| value.to_string());
        let read = self.parse(&text);
        let read = read.filter(|read| (least..=self.most).contains(read));
        read.ok_or_else(|| {
            let text: String = text.chars().take(60).collect();
            let allowed = self.allowed(least);
            de::Error::custom(format_args!("{text:?} came; allowed is {allowed}"))
        })
    }
}

/// Parses a duration, such as `10s`.
pub fn parse(text: &str) -> Option<Duration> {
    TIMES.parse(text).map(Duration::from_millis)
}

/// Formats a duration with the largest unit that divides it.
pub fn format(duration: Duration) -> String {
    TIMES.format(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Formats a size with the largest unit that divides it.
pub fn format_size(bytes: u64) -> String {
    SIZES.format(bytes)
}

/// A key of proxy.toml that is a duration of at least `MIN` milliseconds, and at most a year:
/// `#[serde(with = "Time::<1>")]`.
#[derive(Debug)]
pub struct Time<const MIN: u64>;

impl<const MIN: u64> Time<MIN> {
    /// Writes it as text.
    pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format(*time))
    }

    /// Reads it, and refuses what is out of bounds.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        TIMES.read(MIN, from).map(Duration::from_millis)
    }
}

/// A key of proxy.toml that is a number of bytes, at least `MIN`, and at most 16 TiB.
#[derive(Debug)]
pub struct Size<const MIN: u64>;

impl<const MIN: u64> Size<MIN> {
    /// Writes it as text.
    pub(crate) fn serialize<S: Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_size(*bytes))
    }

    /// Reads it, and refuses what is out of bounds.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        SIZES.read(MIN, from)
    }
}

impl<const MIN: u64> JsonSchema for Time<MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "x-allowed": TIMES.allowed(MIN)})
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
        json_schema!({"type": "string", "x-allowed": SIZES.allowed(MIN)})
    }
}

/// A key of proxy.toml that is a list of what a type reads from text; one is written without
/// brackets.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "allowed is a string or a list of strings")]
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
        Self::read(from, str::parse)
    }

    /// Reads each by a function.
    pub(crate) fn read<'de, T, E: Display, D: Deserializer<'de>>(
        from: D,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Vec<T>, D::Error> {
        let texts = match <Self as Deserialize>::deserialize(from)? {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        };
        let each = texts.iter().map(|text| parse(text));
        each.map(|read| read.map_err(de::Error::custom)).collect()
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
            assert_eq!(SIZES.parse(text), Some(bytes));
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(SIZES.parse("1MB"), None);
    }
}
