//! What the upstream says of its limits: how many requests a window still
//! takes, when it ends, how long to wait. Pure.
//!
//! Providers spell this in many ways, which `reported::dialects` lists. A value
//! that cannot be read is reported to be logged; where it comes with a refusal
//! (429, 503) and nothing else says when to come back, it is also a pause of
//! [`UNREADABLE_WAIT`], since the upstream has asked for one and only its length
//! is unknown. With any other answer it is ignored:
//! a provider that writes `unlimited` or `-1` must not slow each request.
//!
//! Invariant: nothing that is said makes us wait for longer than an hour before
//! we ask again, since a slip of the upstream's clock must not stop us for a
//! month; nor less than a second, where it says to wait at all.
//!
//! Deliberately absent: what is done about it (`upstream::told`, and
//! `upstream::keys` for a key whose quota is spent).

mod dialects;
mod structured;
mod times;

use std::time::{Duration, SystemTime};

use dialects::{BUCKET, ENDS, FieldMeaning, WAITS};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use structured::{RATELIMIT, ServiceLimit};
use times::{Clocks, MAX_WINDOW};

/// The longest wait.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(3600);
/// What is waited where it says something that cannot be read.
pub(crate) const MIN_WAIT: Duration = Duration::from_secs(1);
/// How long to wait where the upstream refuses and says until when, but not so
/// that it can be read: its windows last a minute or less in most cases.
pub(crate) const UNREADABLE_WAIT: Duration = Duration::from_secs(10);

/// Which window is spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitWindow {
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
const NAMED: [(LimitWindow, &str, u64); 5] = [
    (LimitWindow::Second, "second", 1),
    (LimitWindow::Minute, "minute", 60),
    (LimitWindow::Hour, "hour", 3600),
    (LimitWindow::Day, "day", 86_400),
    (LimitWindow::Month, "month", 31 * 86_400),
];

impl LimitWindow {
    fn named(name: &str) -> Option<Self> {
        let (window, ..) = NAMED.iter().find(|(_, named, _)| *named == name)?;
        Some(*window)
    }

    /// The one that lasts so many seconds.
    fn lasting(seconds: u64) -> Self {
        let found = NAMED.iter().find(|(.., lasts)| *lasts == seconds);
        found.map_or(Self::Unnamed, |(window, ..)| *window)
    }
}

/// That a window takes so many more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedLimit {
    /// Which window.
    pub(crate) window: LimitWindow,
    /// How many requests it still takes.
    pub(crate) remaining: u64,
    /// How long that holds, within our bounds.
    pub(crate) valid_for: Duration,
    /// Whether it has said when the window ends; else it is the longest that
    /// it can be.
    pub(crate) end_is_known: bool,
}

/// A field that reports limits and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableField {
    /// Its name, one of those that are listed.
    pub(crate) field: HeaderName,
    /// What it says, which may be anything, an API key among it.
    pub(crate) value: HeaderValue,
}

/// All that an answer says of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitReport {
    /// Of each window that is spoken of.
    pub(crate) limits: Vec<ReportedLimit>,
    /// Where it is a quota that is spent, and not a minute: how long to ask for
    /// nothing, before one request sees how things stand.
    pub(crate) quota_spent: Option<Duration>,
    /// Whether the answer refuses the key, or has had enough of it (401, 403, 429).
    pub(crate) refuses_key: bool,
    /// What cannot be read.
    pub(crate) unreadable: Vec<UnreadableField>,
}

impl LimitReport {
    /// For how long there is nothing left, by what it says.
    fn exhausted_for(&self) -> Duration {
        let empty = self.limits.iter().filter(|word| word.remaining == 0);
        let spans = empty.map(|word| word.valid_for).chain(self.quota_spent);
        spans.max().unwrap_or_default()
    }

    /// Adds what is left of a window that ends in so many seconds, or, where that
    /// is not said, in `longest` at the latest.
    fn add(&mut self, window: LimitWindow, left: u64, end: Option<u64>, longest: u64) {
        let ends = end.unwrap_or(longest);
        let lasts = bounded(ends);
        let long =
            ends > MAX_WAIT.as_secs() || matches!(window, LimitWindow::Day | LimitWindow::Month);
        if left == 0 && long {
            self.quota_spent = self.quota_spent.max(Some(lasts));
        }
        self.limits.push(ReportedLimit {
            window,
            remaining: left,
            valid_for: lasts,
            end_is_known: end.is_some(),
        });
    }
}

/// Reads an answer's head. `wall` is the present time, for dates in it where it
/// does not say its own.
pub(crate) fn read(status: StatusCode, fields: &HeaderMap, wall: SystemTime) -> LimitReport {
    let found = ParsedFields::of(fields, wall);
    let mut reported = LimitReport::default();
    let unsaid = match found.unreadable.is_empty() || found.seconds_to_retry().is_some() {
        true => MIN_WAIT,
        false => UNREADABLE_WAIT,
    };
    for limit in found.unnamed() {
        let other = || found.unnamed().find_map(DialectLimit::plausible_end);
        match (limit.remaining, limit.plausible_end().or_else(other)) {
            (Some(left), Some(end)) => reported.add(LimitWindow::Unnamed, left, Some(end), end),
            // Of what kind of window nobody knows, but that there is nothing
            // left in it.
            (Some(0), None) => reported.add(LimitWindow::Unnamed, 0, None, unsaid.as_secs()),
            (Some(_) | None, _) => {}
        }
    }
    for (window, _, longest) in NAMED {
        let limits = || found.limits.iter().filter(|limit| limit.window == window);
        let Some(left) = limits().filter_map(|limit| limit.remaining).min() else {
            continue;
        };
        let own = limits().filter_map(DialectLimit::plausible_end).max();
        // An end without a name is this window's where the number without a
        // name is this one's too, or where there is none.
        let shared = || {
            let unnamed = found.unnamed().find_map(|limit| limit.remaining);
            let same = unnamed.is_none_or(|unnamed| unnamed == left);
            let end = found.unnamed().find_map(DialectLimit::plausible_end);
            end.filter(|end| same && *end <= longest)
        };
        reported.add(window, left, own.or_else(shared), longest);
    }
    for item in &found.items {
        let end = item.end.filter(|end| *end <= MAX_WINDOW);
        let longest = item.longest.filter(|longest| *longest <= MAX_WINDOW);
        match (item.remaining, end.or(longest)) {
            (left, Some(longest)) => reported.add(item.window, left, end, longest),
            (0, None) => reported.add(item.window, 0, None, unsaid.as_secs()),
            (_, None) => {}
        }
    }
    if status == StatusCode::TOO_MANY_REQUESTS
        && found.wait.is_some_and(|wait| wait > MAX_WAIT.as_secs())
    {
        reported.quota_spent = Some(MAX_WAIT);
    }
    let refuses = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::SERVICE_UNAVAILABLE,
    ];
    if !found.unreadable.is_empty() && refuses.contains(&status) {
        reported.add(LimitWindow::Unnamed, 0, None, unsaid.as_secs());
    }
    reported.refuses_key = matches!(status.as_u16(), 401 | 403 | 429);
    reported.unreadable = found.unreadable;
    reported
}

/// Whether a refusal says that nothing is left of a window, and when that ends.
pub(crate) fn is_window_exhausted(fields: &HeaderMap, wall: SystemTime) -> bool {
    let words = read(StatusCode::FORBIDDEN, fields, wall).limits;
    words
        .iter()
        .any(|word| word.remaining == 0 && word.end_is_known)
}

/// How long to wait after a 429: `retry-after`, or else until the window ends;
/// and as long as something is spent.
pub(crate) fn wait_after_429(fields: &HeaderMap, wall: SystemTime) -> Duration {
    let found = ParsedFields::of(fields, wall);
    bounded(found.seconds_to_retry().unwrap_or(0))
        .max(read(StatusCode::TOO_MANY_REQUESTS, fields, wall).exhausted_for())
}

/// `retry-after` and its like, within our bounds; `None` where there is none.
pub(crate) fn retry_after(fields: &HeaderMap, wall: SystemTime) -> Option<Duration> {
    let found = ParsedFields::of(fields, wall);
    let wait = found.wait.map(bounded);
    wait.or_else(|| found.has_wait.then_some(UNREADABLE_WAIT))
}

fn bounded(seconds: u64) -> Duration {
    Duration::from_secs(seconds).clamp(MIN_WAIT, MAX_WAIT)
}

/// What the fields of one dialect say of a window.
#[derive(Debug)]
struct DialectLimit {
    dialect: usize,
    window: LimitWindow,
    /// The fewest, where several lines differ.
    remaining: Option<u64>,
    /// The latest, of each field that says it.
    ends: [Option<u64>; ENDS],
}

impl DialectLimit {
    /// In how many seconds it ends, by the best field that says it.
    fn end(&self) -> Option<u64> {
        self.ends.iter().find_map(|end| *end)
    }

    /// The same, where a window can be as long.
    fn plausible_end(&self) -> Option<u64> {
        self.end().filter(|end| *end <= MAX_WINDOW)
    }
}

/// What fields say, each on its own.
#[derive(Debug, Default)]
struct ParsedFields {
    /// In the order of the dialects.
    limits: Vec<DialectLimit>,
    items: Vec<ServiceLimit>,
    /// In how many seconds to ask again: the latest, where several differ.
    wait: Option<u64>,
    /// Whether a field says how long to wait, readable or not.
    has_wait: bool,
    unreadable: Vec<UnreadableField>,
}

impl ParsedFields {
    fn of(fields: &HeaderMap, wall: SystemTime) -> Self {
        let clocks = Clocks::of(fields, wall);
        let mut found = Self::default();
        for (name, value) in fields {
            if let Some((dialect, window, part)) = dialects::find(name.as_str()) {
                let is_read = found.add(clocks, (dialect, window, part), name, value);
                found.note(is_read, name, value);
            }
        }
        found.limits.sort_by_key(|limit| limit.dialect);
        let (items, unreadable) = structured::read(fields, clocks);
        found.items = items;
        for value in unreadable {
            found.note(false, &RATELIMIT, value);
        }
        for (name, is_in_millis) in WAITS {
            for value in fields.get_all(name) {
                let text = value.to_str().unwrap_or("");
                let wait = match is_in_millis {
                    true => times::seconds_of_millis(text),
                    false => clocks.seconds_until(text),
                };
                found.wait = found.wait.max(wait);
                found.has_wait = true;
                found.note(wait.is_some(), &HeaderName::from_static(name), value);
            }
        }
        found
    }

    /// Adds what a line of a field says; answers whether all of it makes sense.
    fn add(
        &mut self,
        clocks: Clocks,
        (dialect, window, part): (usize, LimitWindow, FieldMeaning),
        name: &HeaderName,
        value: &HeaderValue,
    ) -> bool {
        let is_it = |limit: &DialectLimit| limit.dialect == dialect && limit.window == window;
        let at = self.limits.iter().position(is_it).unwrap_or_else(|| {
            self.limits.push(DialectLimit {
                dialect,
                window,
                remaining: None,
                ends: [None; ENDS],
            });
            self.limits.len() - 1
        });
        let limit = &mut self.limits[at];
        let text = value.to_str().unwrap_or("");
        let mut is_read = true;
        match part {
            FieldMeaning::Remaining => {
                for part in text.split(',') {
                    let left = match name.as_str() {
                        BUCKET => left_in_bucket(part),
                        // Docker Hub's has a window behind it: `76;w=21600`.
                        _ => times::count(part.split(';').next().unwrap_or("")),
                    };
                    is_read &= left.is_some();
                    limit.remaining = limit.remaining.into_iter().chain(left).min();
                }
            }
            FieldMeaning::End(rank) => {
                // A date of HTTP's has a comma.
                let parts = match clocks.seconds_until(text) {
                    Some(end) => vec![Some(end)],
                    None => text
                        .split(',')
                        .map(|part| clocks.seconds_until(part))
                        .collect(),
                };
                for end in parts {
                    is_read &= end.is_some_and(|end| end <= MAX_WINDOW);
                    limit.ends[rank] = limit.ends[rank].max(end);
                }
            }
        }
        is_read
    }

    fn note(&mut self, is_read: bool, field: &HeaderName, value: &HeaderValue) {
        if !is_read {
            self.unreadable.push(UnreadableField {
                field: field.clone(),
                value: value.clone(),
            });
        }
    }

    /// In how many seconds to come back, or when a window ends, where either is
    /// said.
    fn seconds_to_retry(&self) -> Option<u64> {
        let listed = || self.items.iter().filter_map(|item| item.end).min();
        let unnamed = || self.unnamed().find_map(DialectLimit::end);
        self.wait.or_else(unnamed).or_else(listed)
    }

    /// What is said without a window's name.
    fn unnamed(&self) -> impl Iterator<Item = &DialectLimit> {
        let limits = self.limits.iter();
        limits.filter(|limit| limit.window == LimitWindow::Unnamed)
    }
}

/// What is left of `used/limit`.
fn left_in_bucket(text: &str) -> Option<u64> {
    let (used, limit) = text.split_once('/')?;
    Some(times::count(limit)?.saturating_sub(times::count(used)?))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod dialect_tests;
