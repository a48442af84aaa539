//! The header fields of each dialect, and fields that cannot be parsed.

use super::tests::{Row, fields, limits, wall};
use super::*;

/// Each dialect as its sender writes it.
#[test]
fn dialects() {
    use LimitWindow::{Day, Hour, Minute, Month, Second, Unnamed};
    let rows: &[(&str, &[Row])] = &[
        // Drafts 0 to 6.
        (
            "ratelimit-limit: 100, 100;w=60 | ratelimit-remaining: 50 | ratelimit-reset: 50",
            &[(Unnamed, 50, 50, true)],
        ),
        // Docker Hub.
        (
            "ratelimit-limit: 100;w=21600 | ratelimit-remaining: 0;w=21600",
            &[(Unnamed, 0, 1, false)],
        ),
        // GitLab.
        (
            "ratelimit-observed: 67 | ratelimit-remaining: 533 | \
             ratelimit-reset: 1795190460 | \
             ratelimit-resettime: Fri, 20 Nov 2026 16:01:00 GMT",
            &[(Unnamed, 533, 60, true)],
        ),
        // GitHub.
        (
            "x-ratelimit-limit: 60 | x-ratelimit-remaining: 56 | x-ratelimit-used: 4 | \
             x-ratelimit-reset: 1795191000",
            &[(Unnamed, 56, 600, true)],
        ),
        // Discord: the remaining seconds take precedence over the time.
        (
            "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1795208464.57 | \
             x-ratelimit-reset-after: 64.57",
            &[(Unnamed, 0, 65, true)],
        ),
        // Envoy.
        (
            "x-ratelimit-limit: 10, 10;w=1;name=\"per-ip\", 1000;w=3600 | \
             x-ratelimit-remaining: 9 | x-ratelimit-reset: 1",
            &[(Unnamed, 9, 1, true)],
        ),
        // Reddit.
        (
            "x-ratelimit-remaining: 595.0 | x-ratelimit-reset: 221",
            &[(Unnamed, 595, 221, true)],
        ),
        // Atlassian.
        (
            "x-ratelimit-remaining: 0 | x-ratelimit-reset: 2026-11-20T16:05Z",
            &[(Unnamed, 0, 300, true)],
        ),
        // X (Twitter).
        (
            "x-rate-limit-limit: 2000 | x-rate-limit-remaining: 1999 | \
             x-rate-limit-reset: 1795191300",
            &[(Unnamed, 1999, 900, true)],
        ),
        // Kong.
        (
            "ratelimit-limit: 6 | ratelimit-remaining: 4 | ratelimit-reset: 47 | \
             x-ratelimit-limit-minute: 6 | x-ratelimit-remaining-minute: 4 | \
             x-ratelimit-remaining-hour: 190 | x-ratelimit-reset-hour: 1100",
            &[
                (Unnamed, 4, 47, true),
                (Minute, 4, 47, true),
                (Hour, 190, 1100, true),
            ],
        ),
        (
            "ratelimit-remaining-second: 3 | ratelimit-remaining-day: 1000 | \
             ratelimit-reset-day: 3000",
            &[(Second, 3, 1, false), (Day, 1000, 3000, true)],
        ),
        // Hiro.
        (
            "ratelimit-limit: 500 | ratelimit-remaining: 499 | \
             ratelimit-reset: 1795190437 | x-ratelimit-cost-bitcoin: 1 | \
             x-ratelimit-limit-bitcoin-minute: 500 | \
             x-ratelimit-remaining-bitcoin-second: 19 | \
             x-ratelimit-remaining-bitcoin-minute: 499 | \
             x-ratelimit-remaining-bitcoin-month: 70000 | \
             x-ratelimit-reset-bitcoin-month: 1000",
            &[
                (Unnamed, 499, 37, true),
                (Second, 19, 1, false),
                (Minute, 499, 37, true),
                (Month, 70_000, 1000, true),
            ],
        ),
        (
            "x-ratelimit-remaining-stacks-minute: 12 | \
             x-ratelimit-reset-stacks-minute: 30 | \
             x-ratelimit-remaining-bitcoin-minute: 400",
            &[(Minute, 12, 30, true)],
        ),
        // OpenAI. Tokens are not requests.
        (
            "x-ratelimit-remaining-requests: 59 | x-ratelimit-reset-requests: 1s | \
             x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 6m0s",
            &[(Unnamed, 59, 1, true)],
        ),
        // Cerebras.
        (
            "x-ratelimit-remaining-requests-day: 14396 | \
             x-ratelimit-reset-requests-day: 3301.382867",
            &[(Day, 14_396, 3302, true)],
        ),
        // Anthropic.
        (
            "anthropic-ratelimit-requests-remaining: 3 | \
             anthropic-ratelimit-requests-reset: 2026-11-20T16:00:58Z | \
             anthropic-ratelimit-tokens-remaining: 0",
            &[(Unnamed, 3, 58, true)],
        ),
        // An end applies to the numbers that have none.
        (
            "ratelimit-remaining: 5 | x-ratelimit-remaining: 6 | x-ratelimit-reset: 40",
            &[(Unnamed, 5, 40, true), (Unnamed, 6, 40, true)],
        ),
        // Shopify.
        ("x-shopify-shop-api-call-limit: 32/40", &[]),
        (
            "x-shopify-shop-api-call-limit: 40/40",
            &[(Unnamed, 0, 1, false)],
        ),
        (
            "x-shopify-shop-api-call-limit: 41/40",
            &[(Unnamed, 0, 1, false)],
        ),
        // Drafts 7 and 8; Cloudflare; ordgate.
        (
            "ratelimit: limit=100, remaining=50, reset=5",
            &[(Unnamed, 50, 5, true)],
        ),
        // Unix time instead of the remaining seconds of the drafts; some servers send it.
        (
            "ratelimit: limit=100, remaining=0, reset=1795190405",
            &[(Unnamed, 0, 5, true)],
        ),
        (
            "ratelimit: \"a\";r=0;t=1795190405000",
            &[(Unnamed, 0, 5, true)],
        ),
        (
            "ratelimit: \"default\";r=50;t=30 | ratelimit-policy: \"burst\";q=100;w=60",
            &[(Unnamed, 50, 30, true)],
        ),
        (
            "ratelimit: \"minute\";r=7, \"day\";r=0, \"x\";r=0, \"y\";r=8 | \
             ratelimit-policy: \"minute\";q=9;w=60, \"day\";q=9;w=86400",
            &[
                (Minute, 7, 60, false),
                (Day, 0, 3600, false),
                (Unnamed, 0, 1, false),
            ],
        ),
    ];
    let mut tested = Vec::new();
    for (text, expected) in rows {
        // By the server's clock it is 16:00; by ordgate's, hours earlier.
        let mut headers = fields(text);
        let date = "Fri, 20 Nov 2026 16:00:00 GMT".parse().unwrap();
        headers.insert(http::header::DATE, date);
        let own = wall() - Duration::from_secs(5 * 3600);
        let read = read(StatusCode::OK, &headers, own);
        assert_eq!(limits(&read), *expected, "{text}");
        assert_eq!(read.unreadable, Vec::new(), "{text}");
        let names = headers.keys();
        let names = names.filter_map(|name| dialects::find(name.as_str()));
        tested.extend(names.map(|(at, _, part)| (at, part)));
    }
    for (at, dialect) in dialects::DIALECTS.iter().enumerate() {
        let ends = (0..dialect.ends.len()).map(FieldMeaning::End);
        for part in ends.chain([FieldMeaning::Remaining]) {
            assert!(
                tested.contains(&(at, part)),
                "{} {part:?}",
                dialect.remaining
            );
        }
    }
}

#[test]
fn waits_in_all_formats() {
    for (text, seconds) in [
        // RFC 9110 §10.2.3: delta-seconds. Some servers send fractions.
        ("retry-after: 30", 30),
        ("retry-after: 0", 1),
        ("retry-after: 3601", 3600),
        ("retry-after: 99999999999999999999999", 3600),
        ("retry-after: +30", 10),
        ("retry-after: -30", 10),
        ("retry-after: 30.5", 31),
        ("retry-after: ", 10),
        // RFC 9110 §5.6.7: three forms of a date.
        ("retry-after: Fri, 20 Nov 2026 16:00:31 GMT", 31),
        ("retry-after: Friday, 20-Nov-26 16:00:31 GMT", 31),
        ("retry-after: Fri Nov 20 16:00:31 2026", 31),
        ("retry-after: Fri, 20 Nov 2026 15:00:00 GMT", 1),
        ("retry-after: Sat, 21 Nov 2026 16:00:00 GMT", 3600),
        // Without it, the end of the rate limit's window.
        ("", 1),
        ("ratelimit-reset: 30", 30),
        ("x-ratelimit-reset: 30", 30),
        ("x-ratelimit-reset: 1795190431", 31),
        ("x-ratelimit-reset: 1795190369", 1),
        ("x-ratelimit-reset: 99999999999999999999999", 3600),
        ("x-ratelimit-reset: 1795190431123", 31),
        ("x-ratelimit-reset: soon", 10),
        ("x-ratelimit-reset: 40 | ratelimit-reset: 30", 30),
        ("retry-after: 20 | ratelimit-reset: 30", 20),
        // Other formats and fields.
        ("retry-after: 20", 20),
        ("retry-after: 1.5", 2),
        ("retry-after: 20s", 20),
        ("retry-after: PT2M", 120),
        ("retry-after: 1795190431", 31),
        ("retry-after-ms: 4200", 5),
        ("x-ms-retry-after-ms: 120", 1),
        ("x-ratelimit-retry-after: 59", 59),
        ("retry-after: 3 | retry-after-ms: 4200", 5),
        ("retry-after: 3 | retry-after: 7", 7),
        ("retry-after: soon | retry-after: 7", 7),
        ("retry-after: soon", 10),
        // An unreadable value is ignored if the window's end is reported.
        ("retry-after: soon | ratelimit-reset: 30", 30),
        ("ratelimit: remaining=4, reset=9", 9),
        ("ratelimit: \"a\";r=4;t=9, \"b\";r=4;t=5", 5),
        ("ratelimit: \"a\";r=0;t=9, \"b\";r=4;t=5", 9),
        ("retry-after: 2 | ratelimit: \"a\";r=0;t=9", 9),
        ("ratelimit: \"a\";r=0;t=1795190431", 31),
    ] {
        let wait = wait_after_429(&fields(text), wall());
        assert_eq!(wait, Duration::from_secs(seconds), "{text}");
    }
    assert_eq!(retry_after(&fields(""), wall()), None);
    let unreadable = fields("retry-after: soon");
    assert_eq!(retry_after(&unreadable, wall()), Some(UNREADABLE_WAIT));
}

#[test]
fn unreadable_fields() {
    for (name, value, is_read) in [
        ("ratelimit-remaining", "many", false),
        ("ratelimit-remaining", "-1", false),
        ("ratelimit-remaining", "", false),
        ("ratelimit-remaining", "9, many", false),
        ("ratelimit-remaining", "9", true),
        ("x-ratelimit-remaining-minute", "unlimited", false),
        ("x-ratelimit-reset", "soon", false),
        ("x-ratelimit-reset", "99999999999999", false),
        ("x-ratelimit-reset", "40000000", false),
        ("x-ratelimit-reset", "0", true),
        ("x-ratelimit-reset", "Fri, 20 Nov 2026 16:05:00 GMT", true),
        ("x-shopify-shop-api-call-limit", "40", false),
        ("ratelimit", "&", false),
        ("ratelimit", "\"a\";r=1;t=2", true),
        ("retry-after", "soon", false),
        ("retry-after-ms", "20s", false),
        // Fields that are not listed are ignored.
        ("ratelimit-limit", "many", true),
        ("x-ratelimit-remaining-tokens", "many", true),
        ("ratelimit-policy", "&", true),
    ] {
        let headers = fields(&format!("{name}: {value}"));
        let unreadable: Vec<_> = match is_read {
            true => Vec::new(),
            false => vec![UnreadableField {
                field: HeaderName::from_static(name),
                value: value.parse().unwrap(),
            }],
        };
        for (status, refuses) in [
            (200, false),
            (404, false),
            (500, false),
            (429, true),
            (503, true),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let read = read(status, &headers, wall());
            assert_eq!(read.unreadable, unreadable, "{name}: {value}");
            let pauses = read.limits.iter().any(|limit| {
                limit.remaining == 0
                    && limit.valid_for <= UNREADABLE_WAIT
                    && limit.window == LimitWindow::Unnamed
            });
            assert_eq!(pauses, refuses && !is_read, "{status} {name}: {value}");
        }
    }
}
