//! Directives of requests. Sections are of RFC 9111 where no other is named.

use super::*;

#[test]
fn request_directives_are_read() {
    type Row = (&'static [&'static str], fn(&mut Directives), &'static str);
    let table: &[Row] = &[
        (&["no-cache"], |d| d.no_cache = true, "§5.2.1.4"),
        (&["no-store"], |d| d.no_store = true, "§5.2.1.5"),
        (&["no-transform"], |d| d.no_transform = true, "§5.2.1.6"),
        (&["only-if-cached"], |d| d.only_if_cached = true, "§5.2.1.7"),
        (
            &["max-age=5, max-age=3"],
            |d| d.max_age = some(3),
            "§5.2.1.1",
        ),
        (&["max-age=x"], |d| d.max_age = some(0), "§4.2.1"),
        (
            &["min-fresh=5, min-fresh=9"],
            |d| d.min_fresh = some(9),
            "§5.2.1.3",
        ),
        (
            &["min-fresh=x"],
            |d| d.min_fresh = Some(date::MOST),
            "the stricter reading",
        ),
        (
            &["max-stale"],
            |d| d.max_stale = Some(Duration::MAX),
            "§5.2.1.2",
        ),
        (&["max-stale=7"], |d| d.max_stale = some(7), "§5.2.1.2"),
        (
            &["max-stale, max-stale=7"],
            |d| d.max_stale = some(7),
            "the stricter",
        ),
        (
            &["max-stale=x"],
            |d| d.max_stale = some(0),
            "the stricter reading",
        ),
        (
            &["stale-if-error=4"],
            |d| d.stale_if_error = some(4),
            "RFC 5861 §4",
        ),
        (&["foo"], |_| {}, "§5.2.3"),
    ];
    for (lines, set, section) in table {
        let mut expected = Directives::default();
        set(&mut expected);
        assert_eq!(request(lines), expected, "{lines:?}: {section}");
    }
}

#[test]
fn pragma_counts_only_without_cache_control() {
    let mut headers = headers(PRAGMA, &["foo, No-Cache"]);
    assert!(Directives::of_request(&headers).no_cache, "§5.4");
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    assert!(!Directives::of_request(&headers).no_cache, "§5.4");
    headers.remove(CACHE_CONTROL);
    headers.insert(PRAGMA, HeaderValue::from_static("unrecognised"));
    assert_eq!(
        Directives::of_request(&headers),
        Directives::default(),
        "§5.4"
    );
}
