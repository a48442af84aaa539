//! Parses durations and dates in the notations that responses use. Pure.
//!
//! A date is compared with the clock of the server that sent it, as given by the
//! response's `date` and `age`: from a server whose clock is hours ahead, a date five
//! seconds after its `date` still means five seconds. Without a valid `date`, with
//! several, or where it differs from the parsed date by more than any window, the local
//! clock is used.
//!
//! Deliberately absent: bounds on the result (`limit_report`).

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::{AGE, DATE, HeaderName};

/// The longest plausible window, in seconds. A later end is invalid or in another
/// unit.
pub(crate) const MAX_WINDOW: u64 = 400 * 86_400;

/// A bare number above this is Unix time, not seconds to go.
const UNIX_TIME: u64 = 1_000_000_000;
/// A bare number above this is in milliseconds or smaller units. As milliseconds it is
/// in 1973, as seconds in 5138.
const UNIX_SECONDS: u64 = 100_000_000_000;

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;
/// Units as Go's `Duration.String` and `ParseDuration` have them, and days.
const UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
    ("d", 86_400 * SECOND),
];
/// Units of ISO 8601 before and after the `T`. Years and months have no length.
const ISO_DAYS: [(&str, u128); 2] = [("W", 7 * 86_400 * SECOND), ("D", 86_400 * SECOND)];
const ISO_TIMES: [(&str, u128); 3] = [("H", 3600 * SECOND), ("M", 60 * SECOND), ("S", SECOND)];

/// The clocks that the dates of a response are compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// The server's clock, by `date`.
    server: Option<SystemTime>,
    own: SystemTime,
}

impl Clocks {
    /// The clocks for a response that arrived at `own` by the local clock.
    pub(crate) fn of(fields: &HeaderMap, own: SystemTime) -> Self {
        let date = only(fields, DATE).and_then(http_date);
        // A cache on the way leaves `date` unchanged (RFC 9111 §5.1).
        let age = only(fields, AGE).and_then(digits).unwrap_or(0);
        let server = date.and_then(|date| date.checked_add(Duration::from_secs(age)));
        Self { server, own }
    }

    /// Whole seconds until a date, rounded up; 0 if it has passed.
    fn until(self, date: SystemTime) -> u64 {
        let span = Duration::from_secs(MAX_WINDOW);
        let is_near = |clock: &SystemTime| {
            let ahead = date.duration_since(*clock);
            ahead.unwrap_or_else(|behind| behind.duration()) <= span
        };
        let clock = self.server.filter(is_near).unwrap_or(self.own);
        seconds(date.duration_since(clock).unwrap_or_default().as_nanos())
    }

    /// Whole seconds until an end, rounded up. The text is a number of seconds, with or
    /// without a fraction; Unix time in seconds or smaller units; a duration as in Go
    /// or ISO 8601; or a date as in HTTP or ISO 8601. `None` for anything else.
    pub(crate) fn seconds_until(self, text: &str) -> Option<u64> {
        let text = text.trim();
        if let Some(number) = number(text) {
            return Some(self.seconds_of(number));
        }
        let duration = amounts(text, &UNITS).or_else(|| iso_duration(text));
        if let Some(duration) = duration {
            return Some(seconds(duration));
        }
        let date = http_date(text).or_else(|| iso_date(text))?;
        Some(self.until(date))
    }

    /// The seconds until an end given as a bare number, in billionths.
    pub(crate) fn seconds_of(self, number: u128) -> u64 {
        if number <= u128::from(UNIX_TIME) * SECOND {
            return seconds(number);
        }
        let mut unix = number;
        while unix > u128::from(UNIX_SECONDS) * SECOND {
            unix /= 1000;
        }
        let unix = Duration::from_nanos_u128(unix);
        let date = SystemTime::UNIX_EPOCH.checked_add(unix);
        date.map_or(u64::MAX, |date| self.until(date))
    }
}

/// Whole seconds of a number of milliseconds, rounded up.
pub(crate) fn seconds_of_millis(text: &str) -> Option<u64> {
    Some(seconds(number(text.trim())? / 1000))
}

/// A number of requests; a fraction is dropped.
pub(crate) fn count(text: &str) -> Option<u64> {
    let whole = number(text.trim())? / SECOND;
    Some(u64::try_from(whole).unwrap_or(u64::MAX))
}

/// Whole seconds, rounded up.
fn seconds(nanos: u128) -> u64 {
    u64::try_from(nanos.div_ceil(SECOND)).unwrap_or(u64::MAX)
}

/// An unsigned decimal number, in billionths, saturating.
fn number(text: &str) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole = u128::from(digits(whole)?) * SECOND;
    digits(fraction)?;
    let places = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let billionths = places.fold(0, |sum, digit| sum * 10 + u128::from(digit - b'0'));
    Some(whole + billionths)
}

/// An unsigned integer of decimal digits, saturating.
fn digits(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// One or more numbers, each with its unit, such as `1h2m3.5s`.
fn amounts(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let mut sum: u128 = 0;
    let mut rest = text;
    loop {
        let (amount, after) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        let end = after.find(|c: char| !c.is_ascii_alphabetic());
        let (name, after) = after.split_at(end.unwrap_or(after.len()));
        let (_, unit) = units.iter().find(|(unit, _)| *unit == name)?;
        sum = sum.saturating_add(number(amount)?.saturating_mul(*unit) / SECOND);
        if after.is_empty() {
            return Some(sum);
        }
        rest = after;
    }
}

/// A duration such as `P1DT2H` or `PT30S`.
fn iso_duration(text: &str) -> Option<u128> {
    let text = text.strip_prefix('P')?;
    let (days, times) = match text.split_once('T') {
        Some((days, times)) => (days, Some(times)),
        None => (text, None),
    };
    let days = match (days, times) {
        ("", Some(_)) => 0,
        (days, _) => amounts(days, &ISO_DAYS)?,
    };
    let times = times.map_or(Some(0), |times| amounts(times, &ISO_TIMES))?;
    Some(days.saturating_add(times))
}

/// The value of a field that occurs exactly once.
fn only(fields: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = fields.get_all(name).iter();
    let only = values.next().filter(|_| values.next().is_none());
    only?.to_str().ok()
}

/// A date of RFC 9110 §5.6.7.
fn http_date(text: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(text.trim()).ok()
}

/// A date and time of ISO 8601 with its offset from UTC, such as
/// `2026-11-20T16:00:31.25Z`; seconds may be absent. Without an offset the time is
/// unknown.
fn iso_date(text: &str) -> Option<SystemTime> {
    let (day, rest) = text.split_at_checked(10)?;
    let mut parts = day.split('-').map(digits);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let is_day = parts.next().is_none();
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let (time, zone) = rest.split_at(rest.find(['Z', 'z', '+', '-'])?);
    let mut parts = time.split(':');
    let (hour, minute) = (digits(parts.next()?)?, digits(parts.next()?)?);
    let second = parts.next().map_or(Some(0), number)?;
    let is_time = hour < 24 && minute < 60 && second <= 60 * SECOND && parts.next().is_none();
    if !(is_day && is_time) {
        return None;
    }
    let minutes = (days(year, month, day)? * 24 + hour) * 60 + minute;
    let minutes = match zone.split_at(1) {
        ("Z" | "z", "") => minutes,
        ("+", offset) => minutes.checked_sub(offset_minutes(offset)?)?,
        ("-", offset) => minutes + offset_minutes(offset)?,
        _ => return None,
    };
    let unix = Duration::from_secs(minutes * 60) + Duration::from_nanos_u128(second);
    SystemTime::UNIX_EPOCH.checked_add(unix)
}

/// Minutes of `hh:mm`, `hhmm` or `hh`.
fn offset_minutes(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_at_checked(2)?;
    let minutes = match minutes.strip_prefix(':').unwrap_or(minutes) {
        "" => 0,
        minutes => digits(minutes)?,
    };
    let hours = digits(hours)?;
    (hours < 24 && minutes < 60).then(|| hours * 60 + minutes)
}

/// Days from 1 January 1970 to a day of the Gregorian calendar.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    const BEFORE: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    let month = usize::try_from(month).ok()?.checked_sub(1)?;
    let before = BEFORE.get(month)?;
    // The number of leap years up to a year.
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let leap_day = u64::from(month > 1) * (leaps(year) - leaps(year - 1));
    Some(365 * (year - 1970) + leaps(year - 1) - leaps(1969) + before + leap_day + day - 1)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// Friday, 20 November 2026, 16:00 GMT.
    const NOW: u64 = 1_795_190_400;

    fn at(unix: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(unix)
    }

    fn own() -> Clocks {
        Clocks::of(&HeaderMap::new(), at(NOW))
    }

    #[test]
    fn notations_of_an_end() {
        for (text, expected) in [
            // RFC 9110 §10.2.3, and with fractions (Discord, Cerebras).
            ("0", Some(0)),
            ("30", Some(30)),
            (" 30 ", Some(30)),
            ("1.5", Some(2)),
            ("0.001", Some(1)),
            ("33011.382867", Some(33_012)),
            ("99999999999999999999", Some(16_651_553_674)),
            // Unix time.
            ("1795190431", Some(31)),
            ("1795190430.123", Some(31)),
            ("1795190431000", Some(31)),
            ("1795190430001", Some(31)),
            ("1795190431000000", Some(31)),
            ("1795190431000000000", Some(31)),
            ("1795190300", Some(0)),
            // Go's durations (OpenAI, Groq).
            ("20s", Some(20)),
            ("120ms", Some(1)),
            ("6m0s", Some(360)),
            ("2m59.56s", Some(180)),
            ("1h0m0s", Some(3600)),
            ("1d", Some(86_400)),
            ("250us", Some(1)),
            ("7ns", Some(1)),
            ("99999999999999999999d", Some(u64::MAX)),
            // ISO 8601.
            ("PT30S", Some(30)),
            ("PT1M0.5S", Some(61)),
            ("P1DT2H", Some(93_600)),
            ("P1W", Some(604_800)),
            ("2026-11-20T16:00:31Z", Some(31)),
            ("2026-11-20t16:00:30.25z", Some(31)),
            ("2026-11-20 16:00:31+00:00", Some(31)),
            ("2026-11-20T17:30:31+01:30", Some(31)),
            ("2026-11-20T14:00:31-0200", Some(31)),
            ("2026-11-20T14:00:31-02", Some(31)),
            ("2026-11-20T16:01Z", Some(60)),
            ("2026-11-20T15:00:00Z", Some(0)),
            ("2028-02-29T00:00:00Z", Some(40_204_800)),
            ("2027-03-01T16:00:00Z", Some(101 * 86_400)),
            // RFC 9110 §5.6.7.
            ("Fri, 20 Nov 2026 16:00:31 GMT", Some(31)),
            ("Friday, 20-Nov-26 16:00:31 GMT", Some(31)),
            ("Fri Nov 20 16:00:31 2026", Some(31)),
            // Anything else.
            ("", None),
            ("soon", None),
            ("-1", None),
            ("+30", None),
            ("1.", None),
            (".5", None),
            ("1.5.2", None),
            ("1e3", None),
            ("0x20", None),
            ("20 s", None),
            ("20sec", None),
            ("s", None),
            ("20s5", None),
            ("-20s", None),
            ("1 minute", None),
            ("P", None),
            ("PT", None),
            ("P1DT", None),
            ("P1M", None),
            ("P1Y", None),
            ("2026-11-20", None),
            ("2026-11-20T16:00:31", None),
            ("2026-13-20T16:00:31Z", None),
            ("2026-00-20T16:00:31Z", None),
            ("2026-11-32T16:00:31Z", None),
            ("2026-11-20T24:00:31Z", None),
            ("2026-11-20T16:60:31Z", None),
            ("2026-11-20T16:00:61Z", None),
            ("2026-11-20T16:00:00:00Z", None),
            ("2026-11-20T16:00:31+99:00", None),
            // Regressions: they overflowed.
            ("2026-11-20T16:00:99999999999999999999Z", None),
            ("2026-11-20T99999999999999999999:00Z", None),
            ("2026-11-20T16:99999999999999999999Z", None),
            ("2026-11-20T16:00:31+0099999999999999999999", None),
            ("2026-11-20T16:00:31-00:99999999999999999999", None),
            ("1969-12-31T23:59:59Z", None),
            ("Tue Feb 16 2021 09:02:42 GMT+0100", None),
        ] {
            assert_eq!(own().seconds_until(text), expected, "{text}");
        }
    }

    #[test]
    fn notations_of_a_number_of_requests() {
        for (text, expected) in [
            ("9", Some(9)),
            (" 9 ", Some(9)),
            ("595.0", Some(595)),
            ("0.9", Some(0)),
            ("99999999999999999999999", Some(u64::MAX)),
            ("-1", None),
            ("unlimited", None),
            ("", None),
        ] {
            assert_eq!(count(text), expected, "{text}");
        }
        assert_eq!(seconds_of_millis("1200"), Some(2));
        assert_eq!(seconds_of_millis("874.5"), Some(1));
        assert_eq!(seconds_of_millis("1s"), None);
    }

    #[test]
    fn a_date_is_compared_with_the_servers_clock_if_known() {
        let day = 86_400;
        let dates = |unix: &[u64]| -> Vec<String> {
            let dates = unix.iter().map(|unix| httpdate::fmt_http_date(at(*unix)));
            dates.collect()
        };
        let rows: [(Vec<String>, u64, u64); 10] = [
            (Vec::new(), NOW + 45, 45),
            // Ahead, behind, and far off.
            (dates(&[NOW + 18_000]), NOW + 18_005, 5),
            (dates(&[NOW - 18_000]), NOW - 17_995, 5),
            (dates(&[day]), day + 5, 5),
            // An end that has just passed.
            (dates(&[NOW + 18_000]), NOW + 17_999, 0),
            // No valid `date`.
            (dates(&[NOW, NOW]), NOW + 45, 45),
            (vec!["soon".into()], NOW + 45, 45),
            (vec![String::new()], NOW + 45, 45),
            (dates(&[0]), NOW + 45, 45),
            (dates(&[NOW + 500 * day]), NOW + 45, 45),
        ];
        for (dates, end, expected) in rows {
            let mut fields = HeaderMap::new();
            for date in &dates {
                fields.append(DATE, HeaderValue::from_str(date).unwrap());
            }
            let clocks = Clocks::of(&fields, at(NOW));
            let spelt = [
                end.to_string(),
                format!("{end}000"),
                httpdate::fmt_http_date(at(end)),
            ];
            // A number too low for Unix time is a number of seconds.
            let spelt = spelt
                .iter()
                .filter(|text| end > UNIX_TIME || text.contains(','));
            for text in spelt {
                let until = clocks.seconds_until(text);
                assert_eq!(until, Some(expected), "{dates:?} {text}");
            }
        }
    }

    /// A cache on the way leaves `date` unchanged, and adds `age`.
    #[test]
    fn age_is_added_to_the_servers_date() {
        let rows: [(&[&str], u64); 6] = [
            (&[], 305),
            (&["300"], 5),
            (&["0"], 305),
            (&["soon"], 305),
            (&["300", "300"], 305),
            // Not plausible.
            (&["99999999999999999999"], 45),
        ];
        for (ages, expected) in rows {
            let mut fields = HeaderMap::new();
            let date = httpdate::fmt_http_date(at(NOW + 18_000));
            fields.insert(DATE, HeaderValue::from_str(&date).unwrap());
            for age in ages {
                fields.append(AGE, HeaderValue::from_static(age));
            }
            let end = NOW + 18_305;
            let own = at(end - 45);
            let until = Clocks::of(&fields, own).seconds_until(&end.to_string());
            assert_eq!(until, Some(expected), "{ages:?}");
        }
    }

    proptest! {
        /// Dates in ISO 8601 and HTTP notation agree.
        #[test]
        fn calendars_agree(unix in 0_u64..253_402_300_800) {
            let text = httpdate::fmt_http_date(at(unix));
            let word = |at: usize| text.split(' ').nth(at).unwrap();
            let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
            let month = months.find(word(2)).unwrap() / 3 + 1;
            let iso = format!("{}-{month:02}-{}T{}Z", word(3), word(1), word(4));
            prop_assert_eq!(iso_date(&iso), Some(at(unix)));
        }

        /// No text panics, and every number is parsed.
        #[test]
        fn any_text_is_handled(
            text in "[ -~]{0,30}|[0-9]{1,30}([.][0-9]{1,30})?|P?[0-9TWDHMS.]{0,12}|[0-9TZ:+-]{0,30}\
             |2026-11-20T([0-9]{1,24}:){1,2}[0-9]{1,24}(Z|[+-][0-9]{2}:?[0-9]{0,24})",
        ) {
            let read = own().seconds_until(&text);
            let is_number = text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty();
            prop_assert!(read.is_some() || !is_number);
            let _ = (count(&text), seconds_of_millis(&text));
        }
    }
}
