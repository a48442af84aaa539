//! Directives of requests.

use super::*;

#[test]
fn request_directives_are_read() {
    let zero = RequestDirectives::default;
    let some = |seconds| Some(Delta::from_secs(seconds));
    let within = |seconds| Some(MaxStale::Within(Delta::from_secs(seconds)));
    let table: &[(&[&str], RequestDirectives, &str)] = &[
        (
            &["no-cache"],
            RequestDirectives {
                no_cache: true,
                ..zero()
            },
            "RFC 9111 §5.2.1.4",
        ),
        (
            &["no-store"],
            RequestDirectives {
                no_store: true,
                ..zero()
            },
            "RFC 9111 §5.2.1.5",
        ),
        (
            &["no-transform"],
            RequestDirectives {
                no_transform: true,
                ..zero()
            },
            "RFC 9111 §5.2.1.6",
        ),
        (
            &["only-if-cached"],
            RequestDirectives {
                only_if_cached: true,
                ..zero()
            },
            "RFC 9111 §5.2.1.7",
        ),
        (
            &["max-age=5, max-age=3"],
            RequestDirectives {
                max_age: some(3),
                ..zero()
            },
            "RFC 9111 §5.2.1.1",
        ),
        (
            &["max-age=x"],
            RequestDirectives {
                max_age: some(0),
                ..zero()
            },
            "RFC 9111 §4.2.1",
        ),
        (
            &["min-fresh=5, min-fresh=9"],
            RequestDirectives {
                min_fresh: some(9),
                ..zero()
            },
            "RFC 9111 §5.2.1.3",
        ),
        (
            &["min-fresh=x"],
            RequestDirectives {
                min_fresh: Some(Delta::MAX),
                ..zero()
            },
            "the stricter reading",
        ),
        (
            &["max-stale"],
            RequestDirectives {
                max_stale: Some(MaxStale::Any),
                ..zero()
            },
            "RFC 9111 §5.2.1.2",
        ),
        (
            &["max-stale=7"],
            RequestDirectives {
                max_stale: within(7),
                ..zero()
            },
            "RFC 9111 §5.2.1.2",
        ),
        (
            &["max-stale, max-stale=7"],
            RequestDirectives {
                max_stale: within(7),
                ..zero()
            },
            "the stricter",
        ),
        (
            &["max-stale=x"],
            RequestDirectives {
                max_stale: within(0),
                ..zero()
            },
            "the stricter reading",
        ),
        (
            &["stale-if-error=4"],
            RequestDirectives {
                stale_if_error: some(4),
                ..zero()
            },
            "RFC 5861 §4",
        ),
        (&["foo"], zero(), "RFC 9111 §5.2.3"),
    ];
    for (lines, expected, section) in table {
        assert_eq!(request(lines), *expected, "{lines:?}: {section}");
    }
}

#[test]
fn pragma_counts_only_without_cache_control() {
    let mut headers = headers(header::PRAGMA, &["foo, No-Cache"]);
    assert!(RequestDirectives::of(&headers).no_cache, "RFC 9111 §5.4");
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("max-age=60"),
    );
    assert!(!RequestDirectives::of(&headers).no_cache, "RFC 9111 §5.4");
    headers.remove(header::CACHE_CONTROL);
    headers.insert(header::PRAGMA, HeaderValue::from_static("unrecognised"));
    assert_eq!(
        RequestDirectives::of(&headers),
        RequestDirectives::default(),
        "RFC 9111 §5.4"
    );
}
