//! The period in which a certificate is valid (RFC 5280 §4.1.2.5). webpki, which
//! checks the rest of a certificate, does not tell it.
//!
//! Called after webpki has accepted the certificate. A certificate that is not as
//! expected has no period here, and is refused.

use std::time::{Duration, SystemTime};

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// `version`, which is optional.
const VERSION: u8 = 0xa0;

/// When a certificate in DER becomes valid, and until when it is.
pub(super) fn validity(certificate: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let certificate = Elements(certificate).next(SEQUENCE)?;
    let mut signed = Elements(Elements(certificate).next(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.next(VERSION)?;
    }
    signed.next(INTEGER)?;
    let _algorithm = signed.next(SEQUENCE)?;
    let _issuer = signed.next(SEQUENCE)?;
    let mut validity = Elements(signed.next(SEQUENCE)?);
    Some((validity.time()?, validity.time()?))
}

/// Elements in DER, one after another.
struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// The content of the next element, if it has this tag.
    fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, rest) = self.0.split_first()?;
        let (length, rest) = length(rest)?;
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (*found == tag).then_some(content)
    }

    fn time(&mut self) -> Option<SystemTime> {
        let tag = *self.0.first()?;
        let content = self.next(tag)?;
        match tag {
            UTC_TIME => {
                let (year, rest) = number(content, 2)?;
                let century = if year >= 50 { 1900 } else { 2000 };
                time(century + year, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = number(content, 4)?;
                time(year, rest)
            }
            _ => None,
        }
    }
}

/// The length of an element's content, and what follows the length.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    if *first < 0x80 {
        return Some((usize::from(*first), rest));
    }
    let octets = usize::from(*first & 0x7f);
    let (octets, rest) = rest.split_at_checked(octets)?;
    if octets.is_empty() || octets.len() > 4 {
        return None;
    }
    let length = octets
        .iter()
        .fold(0, |length, octet| length << 8 | usize::from(*octet));
    Some((length, rest))
}

/// A number of so many decimal digits, and what follows.
fn number(text: &[u8], digits: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let digit = |number: u64, digit: &u8| {
        let is_digit = digit.is_ascii_digit();
        is_digit.then(|| number * 10 + u64::from(digit - b'0'))
    };
    Some((number.iter().try_fold(0, digit)?, rest))
}

/// The time of a year and the rest of its text: `MMDDHHMMSSZ`.
fn time(year: u64, rest: &[u8]) -> Option<SystemTime> {
    let (month, rest) = number(rest, 2)?;
    let (day, rest) = number(rest, 2)?;
    let (hour, rest) = number(rest, 2)?;
    let (minute, rest) = number(rest, 2)?;
    let (second, rest) = number(rest, 2)?;
    let is_time = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && rest == b"Z";
    if !is_time {
        return None;
    }
    // A year that begins in March has the leap day at its end.
    let (year, month) = match month > 2 {
        true => (year, month - 3),
        false => (year.checked_sub(1)?, month + 9),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    /// Days from March 1 of the year 0 to 1970.
    const BEFORE_1970: u64 = 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    let seconds = seconds.saturating_sub(BEFORE_1970 * 24 * 60 * 60);
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(time: SystemTime) -> u64 {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    }

    #[test]
    fn times_are_read_as_rfc_5280_writes_them() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "260228235959Z", Some(1_772_323_199)),
            (UTC_TIME, "240229120000Z", Some(1_709_208_000)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            // Before 1970 counts as 1970: it is past in any case.
            (UTC_TIME, "500101000000Z", Some(0)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "20000301000000Z", Some(951_868_800)),
            // RFC 5280 §4.1.2.5: a certificate without a well-defined end.
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "2602282359Z", None),
            (UTC_TIME, "260228235959+0100", None),
            (UTC_TIME, "261328235959Z", None),
            (UTC_TIME, "26022823595xZ", None),
            (GENERALIZED_TIME, "20260228235959.5Z", None),
            (INTEGER, "260228235959Z", None),
        ] {
            let mut der = vec![tag, u8::try_from(text.len()).unwrap()];
            der.extend_from_slice(text.as_bytes());
            let read = Elements(&der).time().map(seconds);
            assert_eq!(read, expected, "{text}");
        }
    }

    #[test]
    fn a_certificate_cut_anywhere_or_changed_anywhere_does_no_harm() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 2, 28);
        params.not_after = rcgen::date_time_ymd(2056, 3, 1);
        let certificate = params.self_signed(&key).unwrap();
        let der = certificate.der().to_vec();
        let (from, to) = validity(&der).unwrap();
        assert_eq!((seconds(from), seconds(to)), (1_772_236_800, 2_719_094_400));
        for end in 0..der.len() {
            // What follows the dates is not needed, but the outer lengths are checked.
            assert_eq!(validity(&der[..end]), None, "{end}");
        }
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 0xff;
            // It must not panic.
            let _ = validity(&changed);
        }
    }
}
