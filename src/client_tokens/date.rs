//! Dates of RFC 3339, such as `2027-01-31` and `2027-01-31T12:00:00Z`.

use std::time::{Duration, SystemTime};

/// The time of a date. A date without a time of day means its first moment, 00:00
/// UTC. `None` where the text is not a date since 1970.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let (date, time) = match text.split_once(['T', 't']) {
        Some((date, time)) => (date, Some(time)),
        None => (text, None),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year < 1970 || !(1..=days).contains(&day) {
        return None;
    }
    let midnight = days_since_1970(year, month, day) * 86_400;
    let seconds = midnight + time.map_or(Some(0), time_of_day)?;
    let seconds = u64::try_from(seconds).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Seconds since midnight UTC. Fractions of a second are dropped.
fn time_of_day(text: &str) -> Option<i64> {
    let (local, offset) = match text.strip_suffix(['Z', 'z']) {
        Some(local) => (local, 0),
        None => {
            let at = text.rfind(['+', '-'])?;
            let [hours, minutes] = numbers(&text[at + 1..], ':', [2, 2])?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours * 3600 + minutes * 60;
            let is_east = text[at..].starts_with('+');
            (&text[..at], if is_east { offset } else { -offset })
        }
    };
    let (whole, fraction) = local.split_once('.').unwrap_or((local, "0"));
    let [hour, minute, second] = numbers(whole, ':', [2, 2, 2])?;
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    // The 60 is a leap second.
    let is_valid = hour < 24 && minute < 60 && second <= 60 && is_fraction;
    is_valid.then_some(hour * 3600 + minute * 60 + second - offset)
}

/// Numbers with so many digits each, separated by a character.
fn numbers<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        // `date -u -d TEXT +%s`
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("1970-01-01T00:00:01Z", Some(1)),
            ("2000-02-29", Some(951_782_400)),
            ("2024-02-29T23:59:59Z", Some(1_709_251_199)),
            ("2024-03-01", Some(1_709_251_200)),
            ("2027-01-31", Some(1_801_353_600)),
            ("2027-01-31T12:00:00Z", Some(1_801_396_800)),
            ("2027-01-31t12:00:00z", Some(1_801_396_800)),
            ("2027-01-31T12:00:00.999Z", Some(1_801_396_800)),
            ("2027-01-31T12:00:00+02:00", Some(1_801_389_600)),
            ("2027-01-31T12:00:00-05:30", Some(1_801_416_600)),
            ("2016-12-31T23:59:60Z", Some(1_483_228_800)),
            ("9999-12-31", Some(253_402_214_400)),
            ("2100-02-29", None),
            ("2023-02-29", None),
            ("2027-13-01", None),
            ("2027-00-01", None),
            ("2027-04-31", None),
            ("2027-01-00", None),
            ("1969-12-31", None),
            ("1970-01-01T00:00:00+01:00", None),
            ("2027-1-31", None),
            ("27-01-31", None),
            ("2027-01-31T", None),
            ("2027-01-31T12:00:00", None),
            ("2027-01-31T24:00:00Z", None),
            ("2027-01-31T12:60:00Z", None),
            ("2027-01-31T12:00:00.Z", None),
            ("2027-01-31T12:00:00+24:00", None),
            ("2027-01-31 12:00:00Z", None),
            ("+027-01-31", None),
            ("", None),
        ] {
            let expected = expected.map(|n| SystemTime::UNIX_EPOCH + Duration::from_secs(n));
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
