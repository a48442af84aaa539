//! What the upstream says of its limits: how many requests a window still
//! takes, when it ends, how long to wait. Pure.
//!
//! Providers spell this in many ways; all that are met with are read, and what
//! cannot be read is not there. Invariant: nothing that is said makes us wait
//! for longer than an hour before we ask again, since a slip of the upstream's
//! clock must not stop us for a month.
//!
//! Deliberately absent: what is done about it (`upstream::told`, and
//! `upstream::keys` for a key whose quota is spent).

use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};

/// The longest wait.
pub const MOST_WAIT: Duration = Duration::from_secs(3600);
/// What is waited where it says something that cannot be read.
pub const LEAST_WAIT: Duration = Duration::from_secs(1);
/// Above this a reset is no number of seconds to go, but Unix time.
const UNIX_TIME: u64 = 1_000_000_000;
/// A window that ends later than this is none: its end is nonsense, or in
/// another unit.
const MOST_SPAN: u64 = 400 * 86_400;

/// Which window is spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// One without a name.
    Unnamed,
    /// A second's.
    Second,
    /// A minute's.
    Minute,
    /// An hour's.
    Hour,
    /// A day's.
    Day,
    /// A month's.
    Month,
}

/// The windows with names, as fields spell them, and how long each lasts.
const NAMED: [(Window, &str, u64); 5] = [
    (Window::Second, "second", 1),
    (Window::Minute, "minute", 60),
    (Window::Hour, "hour", 3600),
    (Window::Day, "day", 86_400),
    (Window::Month, "month", 31 * 86_400),
];

/// That a window takes so many more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Which window.
    pub window: Window,
    /// How many requests it still takes.
    pub left: u64,
    /// How long that holds, within our bounds.
    pub lasts: Duration,
    /// Whether it has said when the window ends; else it is the longest that
    /// it can be.
    pub told: bool,
}

/// All that an answer says of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Of each window that is spoken of.
    pub words: Vec<Word>,
    /// Where it is a quota that is spent, and not a minute: how long to ask for
    /// nothing, before one request sees how things stand.
    pub quota_spent: Option<Duration>,
}

impl Reported {
    /// For how long there is nothing left, by what it says.
    fn empty_for(&self) -> Duration {
        let empty = self.words.iter().filter(|word| word.left == 0);
        let spans = empty.map(|word| word.lasts).chain(self.quota_spent);
        spans.max().unwrap_or_default()
    }
}

/// Reads an answer's head. `wall` is the present time, for the dates in it.
pub fn read(status: StatusCode, fields: &HeaderMap, wall: SystemTime) -> Reported {
    let (one, other) = ("ratelimit-", "x-ratelimit-");
    let mut words = Vec::new();
    let mut quota = None;
    let mut add = |window, left, end: Option<u64>, longest: u64| {
        let ends = end.unwrap_or(longest);
        let lasts = bounded(ends);
        let long = ends > MOST_WAIT.as_secs() || matches!(window, Window::Day | Window::Month);
        if left == 0 && long {
            quota = Some(quota.map_or(lasts, |quota: Duration| quota.max(lasts)));
        }
        words.push(Word {
            window,
            left,
            lasts,
            told: end.is_some(),
        });
    };
    let resets = [reset(fields, one, "", wall), reset(fields, other, "", wall)];
    let lefts = [remaining(fields, one, ""), remaining(fields, other, "")];
    for (left, end) in [
        (lefts[0], resets[0].or(resets[1])),
        (lefts[1], resets[1].or(resets[0])),
    ] {
        match (left, end) {
            (Some(left), Some(end)) => add(Window::Unnamed, left, Some(end), end),
            // Of what kind of window nobody knows, but that there is nothing
            // left in it.
            (Some(0), None) => add(Window::Unnamed, 0, None, LEAST_WAIT.as_secs()),
            (Some(_) | None, _) => {}
        }
    }
    for (window, name, longest) in NAMED {
        let found = [one, other].map(|prefix| remaining(fields, prefix, name));
        let Some(left) = found.into_iter().flatten().min() else {
            continue;
        };
        let own = [one, other].map(|prefix| reset(fields, prefix, name, wall));
        // An end without a name is this window's where the number without a
        // name is this one's too, or where there is none.
        let shared = || {
            let unnamed = lefts[0].or(lefts[1]);
            let same = unnamed.is_none_or(|unnamed| unnamed == left);
            let end = resets[0].or(resets[1])?;
            (same && end <= longest).then_some(end)
        };
        let end = own.into_iter().flatten().max().or_else(shared);
        add(window, left, end, longest);
    }
    if status == StatusCode::TOO_MANY_REQUESTS
        && let Some(wait) = retry_after(fields, wall)
        && wait > MOST_WAIT.as_secs()
    {
        quota = Some(MOST_WAIT);
    }
    Reported {
        words,
        quota_spent: quota,
    }
}

/// How long to wait after a 429: `retry-after`, or else until the window ends;
/// and as long as something is spent.
pub fn throttled(fields: &HeaderMap, wall: SystemTime) -> Duration {
    let unnamed = || {
        let prefix = ["ratelimit-", "x-ratelimit-"];
        prefix
            .into_iter()
            .find(|prefix| fields.contains_key(format!("{prefix}reset")))
            .map(|prefix| end(fields, prefix, "", wall).unwrap_or(LEAST_WAIT.as_secs()))
    };
    bounded(
        retry_after(fields, wall)
            .or_else(unnamed)
            .unwrap_or(LEAST_WAIT.as_secs()),
    )
    .max(read(StatusCode::TOO_MANY_REQUESTS, fields, wall).empty_for())
}

/// `retry-after` within our bounds; `None` where there is none.
pub fn wait(fields: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    retry_after(fields, wall).map(bounded)
}

/// `retry-after`, in seconds or as a date (RFC 9110 §10.2.3); `None` where
/// there is none.
fn retry_after(fields: &HeaderMap, wall: SystemTime) -> Option<u64> {
    let value = fields.get(RETRY_AFTER)?.to_str().unwrap_or("").trim();
    let seconds = digits(value).or_else(|| {
        let date = httpdate::parse_http_date(value).ok()?;
        Some(until(date, wall))
    });
    Some(seconds.unwrap_or(LEAST_WAIT.as_secs()))
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).clamp(LEAST_WAIT, MOST_WAIT)
}

/// How many a window still takes: the fewest, where several lines differ.
fn remaining(fields: &HeaderMap, prefix: &str, window: &str) -> Option<u64> {
    numbers(fields, &name(prefix, "remaining", window)).min()
}

/// When a window ends, where that is said and makes sense.
fn reset(fields: &HeaderMap, prefix: &str, window: &str, wall: SystemTime) -> Option<u64> {
    end(fields, prefix, window, wall).filter(|seconds| *seconds <= MOST_SPAN)
}

/// When a window ends: the seconds to go, or Unix time, since providers differ.
/// The latest, where several lines do.
fn end(fields: &HeaderMap, prefix: &str, window: &str, wall: SystemTime) -> Option<u64> {
    let seconds = numbers(fields, &name(prefix, "reset", window)).max()?;
    let date = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    Some(match date {
        Some(date) if seconds > UNIX_TIME => until(date, wall),
        _ => seconds,
    })
}

fn name(prefix: &str, what: &str, window: &str) -> String {
    match window {
        "" => format!("{prefix}{what}"),
        window => format!("{prefix}{what}-{window}"),
    }
}

fn numbers<'f>(fields: &'f HeaderMap, name: &str) -> impl Iterator<Item = u64> + 'f {
    let lines = fields.get_all(name).into_iter();
    let texts = lines.filter_map(|line| line.to_str().ok());
    texts.flat_map(|text| text.split(',').filter_map(|part| digits(part.trim())))
}

/// Whole seconds until a date, rounded up; none where it has passed.
fn until(date: SystemTime, wall: SystemTime) -> u64 {
    let left = date.duration_since(wall).unwrap_or_default();
    left.as_secs() + u64::from(left.subsec_nanos() > 0)
}

/// A number of decimal digits alone; one that is too large is the largest.
fn digits(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    /// Friday, 20 November 2026, 16:00 GMT, and a fifth of a second.
    fn wall() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_190_400_200)
    }

    fn fields(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn what_is_said_of_windows() {
        use Window::{Day, Hour, Minute, Month, Second, Unnamed};
        type Row<'r> = (
            &'r [(&'static str, &'r str)],
            // Which, how many, for how long, and whether that was said.
            &'r [(Window, u64, u64, bool)],
            Option<u64>,
        );
        let rows: &[Row<'_>] = &[
            (&[], &[], None),
            (
                &[("ratelimit-remaining", "9"), ("ratelimit-reset", "30")],
                &[(Unnamed, 9, 30, true)],
                None,
            ),
            (
                &[("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "30")],
                &[(Unnamed, 9, 30, true)],
                None,
            ),
            (
                &[
                    ("x-ratelimit-remaining", "9"),
                    ("x-ratelimit-reset", "1795190431"),
                ],
                &[(Unnamed, 9, 31, true)],
                None,
            ),
            // A window that has ended, or whose end is in another unit.
            (
                &[
                    ("ratelimit-remaining", "9"),
                    ("ratelimit-reset", "1795190300"),
                ],
                &[(Unnamed, 9, 1, true)],
                None,
            ),
            (
                &[
                    ("ratelimit-remaining", "9"),
                    ("ratelimit-reset", "1795190431123"),
                ],
                &[],
                None,
            ),
            // Without an end it is of a window that nobody knows.
            (&[("ratelimit-remaining", "9")], &[], None),
            (
                &[("ratelimit-remaining", "0")],
                &[(Unnamed, 0, 1, false)],
                None,
            ),
            (
                &[
                    ("x-ratelimit-remaining-second", "19"),
                    ("x-ratelimit-remaining-minute", "400"),
                    ("ratelimit-remaining-hour", "0"),
                    ("x-ratelimit-remaining-day", "5000"),
                    ("x-ratelimit-remaining-month", "70000"),
                ],
                &[
                    (Second, 19, 1, false),
                    (Minute, 400, 60, false),
                    (Hour, 0, 3600, false),
                    (Day, 5000, 3600, false),
                    (Month, 70000, 3600, false),
                ],
                None,
            ),
            // One end, and whose it can be.
            (
                &[
                    ("ratelimit-remaining", "4"),
                    ("ratelimit-reset", "20"),
                    ("x-ratelimit-remaining-second", "4"),
                    ("x-ratelimit-remaining-minute", "4"),
                    ("x-ratelimit-remaining-hour", "90"),
                ],
                &[
                    (Unnamed, 4, 20, true),
                    (Second, 4, 1, false),
                    (Minute, 4, 20, true),
                    (Hour, 90, 3600, false),
                ],
                None,
            ),
            (
                &[
                    ("x-ratelimit-remaining-minute", "0"),
                    ("ratelimit-reset", "20"),
                ],
                &[(Minute, 0, 20, true)],
                None,
            ),
            (
                &[
                    ("x-ratelimit-remaining-minute", "7"),
                    ("x-ratelimit-reset-minute", "12"),
                    ("ratelimit-reset", "20"),
                ],
                &[(Minute, 7, 12, true)],
                None,
            ),
            // A quota that is spent.
            (
                &[("x-ratelimit-remaining-month", "0")],
                &[(Month, 0, 3600, false)],
                Some(3600),
            ),
            (
                &[
                    ("x-ratelimit-remaining-day", "0"),
                    ("x-ratelimit-reset-day", "600"),
                ],
                &[(Day, 0, 600, true)],
                Some(600),
            ),
            (
                &[("ratelimit-remaining", "0"), ("ratelimit-reset", "90000")],
                &[(Unnamed, 0, 3600, true)],
                Some(3600),
            ),
            (
                &[("ratelimit-remaining", "0"), ("ratelimit-reset", "3600")],
                &[(Unnamed, 0, 3600, true)],
                None,
            ),
            // Nonsense.
            (
                &[("ratelimit-remaining", "-1"), ("ratelimit-reset", "30")],
                &[],
                None,
            ),
            (
                &[("ratelimit-remaining", "9"), ("ratelimit-reset", "soon")],
                &[],
                None,
            ),
            (
                &[
                    ("ratelimit-remaining", "99999999999999999999999"),
                    ("ratelimit-reset", "30"),
                ],
                &[(Unnamed, u64::MAX, 30, true)],
                None,
            ),
            (
                &[("ratelimit-remaining", "9, 3"), ("ratelimit-reset", "5, 7")],
                &[(Unnamed, 3, 7, true)],
                None,
            ),
        ];
        for (pairs, words, quota) in rows {
            let read = read(StatusCode::OK, &fields(pairs), wall());
            let word = |(window, left, lasts, told): &(Window, u64, u64, bool)| Word {
                window: *window,
                left: *left,
                lasts: Duration::from_secs(*lasts),
                told: *told,
            };
            let expected = Reported {
                words: words.iter().map(word).collect(),
                quota_spent: quota.map(Duration::from_secs),
            };
            assert_eq!(read, expected, "{pairs:?}");
        }
    }

    #[test]
    fn a_wait_of_more_than_an_hour_is_a_quotas() {
        for (status, value, spent) in [
            (429, "3600", false),
            (429, "3601", true),
            (429, "99999999999999999999999", true),
            (429, "Fri, 20 Nov 2026 16:59:00 GMT", false),
            (429, "Sat, 21 Nov 2026 16:00:00 GMT", true),
            (429, "soon", false),
            (503, "86400", false),
            (200, "86400", false),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let read = read(status, &fields(&[("retry-after", value)]), wall());
            let expected = spent.then_some(MOST_WAIT);
            assert_eq!(read.quota_spent, expected, "{status} {value}");
        }
    }

    #[test]
    fn a_throttled_key_waits_for_what_is_spent() {
        for (pairs, seconds) in [
            (
                &[("retry-after", "20"), ("x-ratelimit-remaining-month", "0")][..],
                3600,
            ),
            (&[("x-ratelimit-remaining-minute", "0")], 60),
            (&[("x-ratelimit-remaining-minute", "5")], 1),
            (
                &[
                    ("retry-after", "20"),
                    ("ratelimit-remaining", "0"),
                    ("ratelimit-reset", "50"),
                ],
                50,
            ),
        ] {
            let wait = throttled(&fields(pairs), wall());
            assert_eq!(wait, Duration::from_secs(seconds), "{pairs:?}");
        }
    }

    proptest! {
        /// Whatever is said, it makes sense to us and stops us for an hour at
        /// the most.
        #[test]
        fn every_wait_is_within_bounds(
            status in 100_u16..600,
            values in proptest::collection::vec(("[0-9]{0,24}|[ -~]{0,12}", 0_usize..16), 0..12),
        ) {
            let names = [
                "retry-after", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-remaining",
                "x-ratelimit-reset", "x-ratelimit-remaining-second", "x-ratelimit-reset-second",
                "x-ratelimit-remaining-minute", "x-ratelimit-reset-minute",
                "ratelimit-remaining-hour", "ratelimit-reset-hour", "x-ratelimit-remaining-day",
                "x-ratelimit-reset-day", "x-ratelimit-remaining-month",
                "x-ratelimit-reset-month", "ratelimit-remaining-month",
            ];
            let mut said = HeaderMap::new();
            for (value, at) in values {
                said.append(HeaderName::from_static(names[at]), value.parse().unwrap());
            }
            let read = read(StatusCode::from_u16(status).unwrap(), &said, wall());
            let spans = read.words.iter().map(|word| word.lasts).chain(read.quota_spent);
            for span in spans.chain([throttled(&said, wall())]).chain(wait(&said, wall())) {
                prop_assert!((LEAST_WAIT..=MOST_WAIT).contains(&span), "{span:?}");
            }
            prop_assert!(read.words.len() <= 7);
        }
    }
}
