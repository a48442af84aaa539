//! Durations and sizes as text, in proxy.toml and in flags: a whole number and a
//! unit.

use std::time::Duration;

pub(crate) const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];
pub(crate) const SIZES: [(&str, u64); 4] = [
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

/// Serializes a duration as text.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format(*duration))
}

/// Serializes a size as text.
///
/// # Errors
/// The serializer's.
pub fn serialize_size<S: serde::Serializer>(bytes: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_size(*bytes))
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
