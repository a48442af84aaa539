//! The names of fields that report limits, by sender. Pure.
//!
//! The notation of a value does not follow from the field's name, so each value is
//! parsed in all notations (`limit_report::times`). Fields that count something other
//! than requests (OpenAI's tokens, Kong's response rate limiting, Hiro's
//! `x-ratelimit-cost-*`) are absent, and so are those that report the size of a limit:
//! a limit above the configured budget must not loosen it, and one below it shows in the
//! requests left.
//!
//! Deliberately absent: `ratelimit` and `ratelimit-policy`, which are structured
//! (`limit_report::structured`).

use super::LimitWindow;

/// The fields of one sender that report on a window. Each entry names its sources.
pub(crate) struct Dialect {
    /// The field with the requests left. `*` stands for the name of a window.
    pub(crate) remaining: &'static str,
    /// The fields with the end of the window, the best first; at most [`ENDS`].
    pub(crate) ends: &'static [&'static str],
}

/// The maximum number of end fields of a dialect.
pub(crate) const ENDS: usize = 2;

/// All dialects. Where several in one response give the end of an unnamed window, the
/// first counts.
pub(crate) const DIALECTS: [Dialect; 11] = [
    Dialect {
        // draft-ietf-httpapi-ratelimit-headers 0 to 6; Docker Hub, usage and limits;
        // GitLab, user and IP rate limits; Hiro, response headers.
        // In drafts 0 to 6 an end is seconds to go; in draft-polli-ratelimit-headers
        // 00 and with GitLab it may be Unix time; with Hiro it is both.
        remaining: "ratelimit-remaining",
        ends: &["ratelimit-reset"],
    },
    Dialect {
        // GitHub, rate limits for the REST API; Discord, rate limits; Envoy, rate
        // limit filter; Reddit, API rules; Atlassian, Jira rate limiting.
        // Unix time, with fractions at Discord, which also has the seconds to go;
        // seconds to go at Envoy and Reddit, which has fractions of requests; a
        // date of ISO 8601 at Atlassian.
        remaining: "x-ratelimit-remaining",
        ends: &["x-ratelimit-reset-after", "x-ratelimit-reset"],
    },
    Dialect {
        // X (Twitter), rate limits; IBM Security Verify, add-response-headers.
        remaining: "x-rate-limit-remaining",
        ends: &["x-rate-limit-reset"],
    },
    Dialect {
        // Kong, rate limiting plugin, which reports the end in `ratelimit-reset`.
        remaining: "x-ratelimit-remaining-*",
        ends: &["x-ratelimit-reset-*"],
    },
    Dialect {
        // Kong's windows with the draft's prefix; seen in practice.
        remaining: "ratelimit-remaining-*",
        ends: &["ratelimit-reset-*"],
    },
    Dialect {
        // Hiro, response headers, Bitcoin services.
        // Ordinals and Runes are Bitcoin services there.
        remaining: "x-ratelimit-remaining-bitcoin-*",
        ends: &["x-ratelimit-reset-bitcoin-*"],
    },
    Dialect {
        // Hiro, response headers, Stacks services.
        remaining: "x-ratelimit-remaining-stacks-*",
        ends: &["x-ratelimit-reset-stacks-*"],
    },
    Dialect {
        // OpenAI, rate limits; Groq, rate limits.
        // Go's durations.
        remaining: "x-ratelimit-remaining-requests",
        ends: &["x-ratelimit-reset-requests"],
    },
    Dialect {
        // Cerebras, rate limits.
        // Seconds to go, with fractions.
        remaining: "x-ratelimit-remaining-requests-*",
        ends: &["x-ratelimit-reset-requests-*"],
    },
    Dialect {
        // Anthropic, rate limits.
        // A date of RFC 3339.
        remaining: "anthropic-ratelimit-requests-remaining",
        ends: &["anthropic-ratelimit-requests-reset"],
    },
    Dialect {
        // Shopify, REST Admin API rate limits.
        // A leaky bucket: its level and its capacity. No end.
        remaining: BUCKET,
        ends: &[],
    },
];

/// The field with the requests used, and the limit: `32/40`.
pub(crate) const BUCKET: &str = "x-shopify-shop-api-call-limit";

/// The fields that report a wait, and whether their unit is milliseconds.
pub(crate) const WAITS: [(&str, bool); 4] = [
    // RFC 9110 §10.2.3.
    ("retry-after", false),
    // MailerLite, API rate limits.
    ("x-ratelimit-retry-after", false),
    // Azure, core-rest-pipeline's throttling strategy; OpenAI's libraries.
    ("retry-after-ms", true),
    ("x-ms-retry-after-ms", true),
];

/// What a field reports about a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldMeaning {
    /// The requests left.
    Remaining,
    /// Its end; the field with the lowest index is the best.
    End(usize),
}

/// The dialect of a field (its index), its window and its meaning.
pub(crate) fn find(name: &str) -> Option<(usize, LimitWindow, FieldMeaning)> {
    // Rules out almost all fields of a response.
    if !name.contains("limit") {
        return None;
    }
    DIALECTS.iter().enumerate().find_map(|(at, dialect)| {
        let left =
            window(dialect.remaining, name).map(|window| (at, window, FieldMeaning::Remaining));
        left.or_else(|| {
            let mut ends = dialect.ends.iter().enumerate();
            ends.find_map(|(rank, end)| Some((at, window(end, name)?, FieldMeaning::End(rank))))
        })
    })
}

fn window(pattern: &str, name: &str) -> Option<LimitWindow> {
    match pattern.strip_suffix('*') {
        None => (pattern == name).then_some(LimitWindow::Unnamed),
        Some(begin) => LimitWindow::named(name.strip_prefix(begin)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_recognized() {
        for dialect in &DIALECTS {
            assert!(dialect.ends.len() <= ENDS, "{}", dialect.remaining);
            let (left, window) = match dialect.remaining.strip_suffix('*') {
                Some(begin) => (format!("{begin}hour"), LimitWindow::Hour),
                None => (dialect.remaining.to_owned(), LimitWindow::Unnamed),
            };
            let (at, found, part) = find(&left).unwrap();
            assert_eq!(DIALECTS[at].remaining, dialect.remaining);
            assert_eq!((found, part), (window, FieldMeaning::Remaining));
            for (rank, end) in dialect.ends.iter().enumerate() {
                let (at, found, part) = find(&end.replace('*', "hour")).unwrap();
                assert_eq!(DIALECTS[at].remaining, dialect.remaining);
                assert_eq!((found, part), (window, FieldMeaning::End(rank)));
            }
        }
        for name in [
            "ratelimit-limit",
            "ratelimit-remaining-",
            "ratelimit-remaining-year",
            "ratelimit-remaining-minute-more",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-remaining-videos-minute",
            "x-ratelimit-cost-stacks",
            "x-ratelimit-used",
            "anthropic-ratelimit-tokens-remaining",
            "remaining",
        ] {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
