//! Times in fields: HTTP-dates (RFC 9110 §5.6.7), as a cache must read them (RFC 9111 §4.2),
//! and delta-seconds (RFC 9111 §1.2.2), the numbers of directives and of `Age`.
//!
//! All three formats of a date are accepted, in any case, with GMT as the only zone. The
//! resolution is one second. Malformed dates are not repaired: the callers act
//! on a date that cannot be read (`Expires: 0` means stale).

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, header::HeaderName};

use crate::wire::unindexed;

/// Reads a date, matching names of days, months and the zone in any case.
#[must_use]
pub fn parse(value: &[u8]) -> Option<SystemTime> {
    let mut within_word = false;
    let letters = value.iter().map(|letter| {
        let is_within = std::mem::replace(&mut within_word, letter.is_ascii_alphabetic());
        char::from(match is_within {
            true => letter.to_ascii_lowercase(),
            false => letter.to_ascii_uppercase(),
        })
    });
    let text = letters.collect::<String>().replace(" Gmt", " GMT");
    httpdate::parse_http_date(&text).ok()
}

/// The date of a field that must occur once. `None` if it is absent,
/// unreadable, or has several lines that differ.
#[must_use]
pub fn field(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next()?;
    lines
        .all(|line| line == first)
        .then(|| parse(first.as_bytes()))?
}

/// The date as a field value (IMF-fixdate). A time outside the years 1970 to
/// 9999 becomes the nearest that can be written.
#[must_use]
pub fn value(time: SystemTime) -> HeaderValue {
    const LAST: u64 = 253_402_300_799;
    let seconds = since(SystemTime::UNIX_EPOCH, time).as_secs().min(LAST);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).expect("an IMF-fixdate is visible ASCII")
}

thread_local! {
    /// The last value of [`current`], with its second.
    static CURRENT: RefCell<(u64, HeaderValue)> = const {
        RefCell::new((u64::MAX, HeaderValue::from_static("")))
    };
}

/// The value of `date` in a response that is made now.
pub(crate) fn current(now: SystemTime) -> HeaderValue {
    let second = since(SystemTime::UNIX_EPOCH, now).as_secs();
    CURRENT.with_borrow_mut(|(last, field)| {
        if *last != second {
            *last = second;
            *field = unindexed(value(now));
        }
        field.clone()
    })
}

/// The greatest number of seconds, which stands for all greater ones (RFC 9111 §1.2.2).
pub(crate) const MOST: Duration = Duration::from_secs(1 << 31);

/// Reads delta-seconds: decimal digits, at most [`MOST`].
#[must_use]
pub(crate) fn seconds(text: &[u8]) -> Option<Duration> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // More digits than fit are more than the greatest number.
    let number = std::str::from_utf8(text).ok()?.parse();
    Some(number.map_or(MOST, |number| Duration::from_secs(number).min(MOST)))
}

/// How much later `later` is than `earlier`; zero if it is not later.
#[must_use]
pub(crate) fn since(earlier: SystemTime, later: SystemTime) -> Duration {
    later.duration_since(earlier).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    //! Sections are of RFC 9110 where no other is named.

    use http::header::{DATE, EXPIRES};

    use super::*;
    use crate::cache::tests_table::{fields, rows};

    const WHEN: u64 = 784_111_777;

    #[test]
    fn dates_are_read_in_three_formats_and_any_case() {
        let table = "
            date                                               | valid | section
            Sun, 06 Nov 1994 08:49:37 GMT                      | true  | §5.6.7 IMF-fixdate
            Sunday, 06-Nov-94 08:49:37 GMT                     | true  | §5.6.7 rfc850-date
            Sun Nov  6 08:49:37 1994                           | true  | §5.6.7 asctime-date
            SUN, 06 Nov 1994 08:49:37 GMT                      | true  | RFC 9111 §4.2 case-insensitive
            Sun, 06 NOV 1994 08:49:37 GMT                      | true  | RFC 9111 §4.2 case-insensitive
            Sun, 06 Nov 1994 08:49:37 gMT                      | true  | RFC 9111 §4.2 case-insensitive
            Sun, 06 Nov 1994 08:49:37 UTC                      | false | RFC 9111 §4.2 no zone but GMT
            Sun, 06 Nov 1994 08:49:37 AEST                     | false | RFC 9111 §4.2 no zone but GMT
            Sun, 06 Nov 1994 08:49:37 +0000                    | false | RFC 9111 §4.2 no zone but GMT
            Sun 06 Nov 1994 08:49:37 GMT                       | false | §5.6.7 grammar
            Sun, 06  Nov  1994 08:49:37 GMT                    | false | §5.6.7 grammar
            Sun, 06 Nov 1994 8:49:37 GMT                       | false | §5.6.7 grammar
            Sun, 06 Nov 1994 08.49.37 GMT                      | false | §5.6.7 grammar
            0                                                  | false | RFC 9111 §5.3
                                                               | false | RFC 9111 §5.3
            Sun, 06 Nov 1994 08:49:37 GMT and a good deal more | false | §5.6.7
        ";
        for [text, valid, section] in rows(table) {
            let expected =
                (valid == "true").then(|| SystemTime::UNIX_EPOCH + Duration::from_secs(WHEN));
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}: {section}");
        }
    }

    #[test]
    fn lines_with_different_dates_are_no_date() {
        const ONE: &str = "date: Sun, 06 Nov 1994 08:49:37 GMT";
        let has_date = |text: &str| field(&fields(text), &DATE).is_some();
        assert!(has_date(ONE), "§6.6.1");
        assert!(has_date(&format!("{ONE} & {ONE}")), "the same twice");
        let two = format!("{ONE} & date: Sun, 06 Nov 1994 08:49:38 GMT");
        assert!(!has_date(&two), "§5.3");
        assert!(field(&fields(ONE), &EXPIRES).is_none());
    }

    #[test]
    fn only_digits_are_a_number_of_seconds() {
        for text in ["", "-1", "+1", "1.0", " 1", "1 ", "a", "0x1", "\u{661}"] {
            assert_eq!(seconds(text.as_bytes()), None, "{text:?}: RFC 9111 §1.2.2");
        }
        assert_eq!(seconds(b"0060"), Some(Duration::from_secs(60)));
        assert_eq!(seconds(&[b'9'; 99]), Some(MOST), "RFC 9111 §1.2.2");
    }

    #[test]
    fn any_time_is_written_as_a_valid_date() {
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!(value(far), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(
            value(SystemTime::UNIX_EPOCH - Duration::from_secs(9)),
            "Thu, 01 Jan 1970 00:00:00 GMT"
        );
    }
}
