//! `[cache]`: the memory of the cache, and how it treats failures.

use std::time::Duration;

use http::HeaderName;

use super::key::{Setting, keys};
use super::kinds::{DAY, MILLI, ParsedText, optional, seconds, size, text, time};
use super::problem::{FileSpan, Path};
use crate::failure_backoff;

pub(super) const FIELD: ParsedText<HeaderName> =
    text("a field name", "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", |text| {
        HeaderName::from_bytes(text.as_bytes()).map_err(|_no_name| String::new())
    });

keys! {
    /// The cache: its memory, and failures.
    pub(super) struct CacheKeys {
        /// The most memory for stored responses, with their keys, fields and index.
        max_bytes: u64 = size(1 << 20..=1 << 44) => 256 << 20, shown();
        /// How long a client waits for a fresh answer before it gets a stale one that
        /// its route allows (`stale_if_error`).
        ///
        /// The time counts from when the request went to the upstream. The fetch goes
        /// on, and its answer is stored.
        stale_wait: Duration = time(Duration::ZERO, DAY) => seconds(2);
        /// After four failures in a row, how long ordgate does not ask for the same
        /// thing again.
        ///
        /// The time doubles with each further failure, up to `max_error_ttl`. What the
        /// upstream refuses (401, 403) or has no route for is remembered at the first
        /// time. Routes with cache.mode = "respect" or "off" do not use this.
        error_ttl: Duration = time(MILLI, DAY) => seconds(1);
        /// The longest such time; at least `error_ttl`.
        max_error_ttl: Duration = time(MILLI, DAY) => seconds(30);
        /// A response field of the upstream that takes precedence over
        /// CDN-Cache-Control and Cache-Control (RFC 9213), on routes with cache.mode =
        /// "respect".
        targeted_field: Option<HeaderName> = optional(FIELD) => None,
            example("\"example-cache-control\"");
    }
}

impl CacheKeys {
    /// How long failures are remembered.
    pub(super) fn failures(&mut self, path: &Path<'_>, at: &FileSpan) -> failure_backoff::Settings {
        fit_least_and_most(
            path,
            at,
            ("error_ttl", &self.error_ttl),
            ("max_error_ttl", &mut self.max_error_ttl),
        );
        failure_backoff::Settings {
            error_ttl: *self.error_ttl,
            max_error_ttl: *self.max_error_ttl,
        }
    }
}

/// Lowers a part that the file does not set to a whole that it does, or raises a whole that
/// it does not set; reports a part that is longer than the whole.
pub(super) fn fit_part_and_whole(
    path: &Path<'_>,
    at: &FileSpan,
    (part_name, part): (&str, &mut Setting<Duration>),
    (whole_name, whole): (&str, &mut Setting<Duration>),
) {
    match (part.is_set(), whole.is_set()) {
        (false, _) => part.value = part.value.min(whole.value),
        (true, false) => whole.value = whole.value.max(part.value),
        (true, true) if **part > **whole && !part.is_wrong && !whole.is_wrong => {
            let than = (path, whole_name);
            report_length(than, part_name, part.at_or(at), ("longer", "most"));
        }
        (true, true) => {}
    }
}

/// Raises a maximum that the file does not set to a minimum that it does, and
/// reports one that is below the minimum.
pub(super) fn fit_least_and_most(
    path: &Path<'_>,
    at: &FileSpan,
    (least_name, least): (&str, &Setting<Duration>),
    (most_name, most): (&str, &mut Setting<Duration>),
) {
    if !most.is_set() {
        most.value = most.value.max(least.value);
    }
    if **most < **least && !most.is_wrong && !least.is_wrong {
        let than = (path, least_name);
        report_length(than, most_name, most.at_or(at), ("shorter", "least"));
    }
}

/// Reports that a key's value is longer or shorter than that of another one may be.
fn report_length(
    (path, other): (&Path<'_>, &str),
    name: &str,
    at: &FileSpan,
    (is, allowed): (&str, &str),
) {
    let other = path.key(other);
    let text = format!(
        "is {is} than {}; allowed is at {allowed} as long",
        other.name()
    );
    path.key(name).problem(at, text);
}
