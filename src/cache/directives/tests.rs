//! Tables of `directives`: each row names the section that it is from.

use http::HeaderValue;
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

use super::*;

fn headers(name: HeaderName, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(&name, HeaderValue::from_str(line).unwrap());
    }
    headers
}

fn response(lines: &[&str]) -> ResponseDirectives {
    ResponseDirectives::of(&headers(header::CACHE_CONTROL, lines))
}

fn request(lines: &[&str]) -> RequestDirectives {
    RequestDirectives::of(&headers(header::CACHE_CONTROL, lines))
}

#[test]
fn max_age_of_a_response() {
    let table: &[(&[&str], Option<u32>, &str)] = &[
        (&["max-age=3600"], Some(3600), "RFC 9111 §5.2.2.1"),
        (
            &["MaX-aGe=3600"],
            Some(3600),
            "RFC 9111 §5.2, names in any case",
        ),
        (&["max-age=003600"], Some(3600), "RFC 9111 §1.2.2, digits"),
        (
            &["max-age=\"3600\""],
            Some(3600),
            "RFC 9111 §5.2, both forms",
        ),
        (
            &["max-age=\"36\\00\""],
            Some(3600),
            "RFC 9110 §5.6.4, escapes",
        ),
        (&["foobar, max-age=3600"], Some(3600), "RFC 9111 §5.2.3"),
        (
            &["foobar=\"x\\\"y\", max-age=3600"],
            Some(3600),
            "RFC 9110 §5.6.4",
        ),
        (
            &["max-age=2147483647"],
            Some(2_147_483_647),
            "RFC 9111 §1.2.2",
        ),
        (&["max-age=2147483648"], Some(1 << 31), "RFC 9111 §1.2.2"),
        (
            &["max-age=2147483649"],
            Some(1 << 31),
            "RFC 9111 §1.2.2, overflow",
        ),
        (
            &["max-age=99999999999999999999"],
            Some(1 << 31),
            "RFC 9111 §1.2.2, overflow",
        ),
        (&["max-age=0"], Some(0), "RFC 9111 §5.2.2.1"),
        (
            &["max-age=-3600"],
            Some(0),
            "RFC 9111 §4.2.1, invalid is stale",
        ),
        (
            &["max-age=3600.0"],
            Some(0),
            "RFC 9111 §4.2.1, invalid is stale",
        ),
        (
            &["max-age=a3600"],
            Some(0),
            "RFC 9111 §4.2.1, invalid is stale",
        ),
        (
            &["max-age=3600a"],
            Some(0),
            "RFC 9111 §4.2.1, invalid is stale",
        ),
        (
            &["max-age='3600'"],
            Some(0),
            "RFC 9111 §4.2.1, no quotes of HTTP",
        ),
        (&["max-age"], Some(0), "RFC 9111 §4.2.1, invalid is stale"),
        (&["max-age="], Some(0), "RFC 9111 §4.2.1, invalid is stale"),
        (
            &["max-age=\"\""],
            Some(0),
            "RFC 9111 §4.2.1, invalid is stale",
        ),
        (
            &["max-age =3600"],
            Some(0),
            "RFC 9111 §5.2, no space within",
        ),
        (
            &["max-age= 3600"],
            Some(0),
            "RFC 9111 §5.2, no space within",
        ),
        (
            &["max-age=3600, max-age=1800"],
            Some(1800),
            "RFC 9111 §4.2.1, several",
        ),
        (
            &["max-age=1, max-age=1800"],
            Some(1),
            "RFC 9111 §4.2.1, several",
        ),
        (
            &["max-age=1800", "max-age=1"],
            Some(1),
            "RFC 9111 §4.2.1, several lines",
        ),
        (
            &["max-age=1800, max-age=x"],
            Some(0),
            "RFC 9111 §4.2.1, several, one invalid",
        ),
        (
            &["extension=\"max-age=3600\", max-age=1"],
            Some(1),
            "RFC 9110 §5.6.4, text is text",
        ),
        (
            &["max-age=1, extension=\"max-age=3600\""],
            Some(1),
            "RFC 9110 §5.6.4, text is text",
        ),
        (
            &["extension=\"max-age=3600\", max-age=\"1\""],
            Some(1),
            "RFC 9110 §5.6.4, text is text",
        ),
        (
            &["extension=\"max-age=3600\""],
            None,
            "RFC 9110 §5.6.4, text is text",
        ),
        (
            &["extension=\"a", "max-age=3600"],
            Some(3600),
            "an unclosed quote ends with its line",
        ),
        (&["x-max-age=3600"], None, "RFC 9111 §5.2.3"),
        (&[""], None, "RFC 9111 §5.2"),
        (&[], None, "RFC 9111 §5.2"),
    ];
    for (lines, expected, section) in table {
        assert_eq!(
            response(lines).max_age.map(Delta::as_secs),
            *expected,
            "{lines:?}: {section}"
        );
    }
}

#[test]
fn a_response_says_what_it_says() {
    let zero = ResponseDirectives::default;
    let some = |seconds| Some(Delta::from_secs(seconds));
    let fields = |names: &[&'static str]| {
        Scope::Fields(
            names
                .iter()
                .map(|name| HeaderName::from_static(name))
                .collect(),
        )
    };
    let table: &[(&[&str], ResponseDirectives, &str)] = &[
        (
            &["no-store"],
            ResponseDirectives {
                no_store: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.5",
        ),
        (
            &["No-StOrE"],
            ResponseDirectives {
                no_store: true,
                ..zero()
            },
            "RFC 9111 §5.2",
        ),
        (
            &["no-store=x"],
            ResponseDirectives {
                no_store: true,
                ..zero()
            },
            "an argument takes nothing back",
        ),
        (
            &["no-transform"],
            ResponseDirectives {
                no_transform: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.6",
        ),
        (
            &["must-understand"],
            ResponseDirectives {
                must_understand: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.3",
        ),
        (
            &["must-understand=1"],
            zero(),
            "what lifts no-store must be well-formed",
        ),
        (
            &["must-revalidate"],
            ResponseDirectives {
                must_revalidate: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.2",
        ),
        (
            &["proxy-revalidate"],
            ResponseDirectives {
                proxy_revalidate: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.8",
        ),
        (
            &["public"],
            ResponseDirectives {
                public: true,
                ..zero()
            },
            "RFC 9111 §5.2.2.9",
        ),
        (&["public=yes"], zero(), "what permits must be well-formed"),
        (
            &["immutable"],
            ResponseDirectives {
                immutable: true,
                ..zero()
            },
            "RFC 8246 §2",
        ),
        (
            &["s-maxage=5"],
            ResponseDirectives {
                s_maxage: some(5),
                ..zero()
            },
            "RFC 9111 §5.2.2.10",
        ),
        (
            &["stale-while-revalidate=5, stale-if-error=6"],
            ResponseDirectives {
                stale_while_revalidate: some(5),
                stale_if_error: some(6),
                ..zero()
            },
            "RFC 5861 §3, §4",
        ),
        (
            &["stale-if-error=x"],
            ResponseDirectives {
                stale_if_error: some(0),
                ..zero()
            },
            "RFC 5861 §4",
        ),
        (
            &["no-cache"],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "RFC 9111 §5.2.2.4",
        ),
        (
            &["no-cache=\"a, B\""],
            ResponseDirectives {
                no_cache: fields(&["a", "b"]),
                ..zero()
            },
            "RFC 9111 §5.2.2.4, qualified",
        ),
        (
            &["no-cache=\"a\", no-cache=\"b, a\""],
            ResponseDirectives {
                no_cache: fields(&["a", "b"]),
                ..zero()
            },
            "RFC 9111 §5.2.2.4, qualified twice",
        ),
        (
            &["no-cache=a"],
            ResponseDirectives {
                no_cache: fields(&["a"]),
                ..zero()
            },
            "RFC 9111 §5.2, both forms",
        ),
        (
            &["no-cache=\"a\"", "no-cache"],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "RFC 9111 §4.2.1, the most restrictive",
        ),
        (
            &["no-cache=\"\""],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "no list is no limit",
        ),
        (
            &["no-cache=\"a b\""],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "no field name",
        ),
        (
            &["no-cache=\"vary\""],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "a field that the cache decides by",
        ),
        (
            &["no-cache=\"a"],
            ResponseDirectives {
                no_cache: Scope::Whole,
                ..zero()
            },
            "an unclosed quote",
        ),
        (
            &["private=\"set-cookie\""],
            ResponseDirectives {
                private: fields(&["set-cookie"]),
                ..zero()
            },
            "RFC 9111 §5.2.2.7, qualified",
        ),
        (
            &["private"],
            ResponseDirectives {
                private: Scope::Whole,
                ..zero()
            },
            "RFC 9111 §5.2.2.7",
        ),
        (
            &["no-store max-age=5"],
            ResponseDirectives {
                no_store: true,
                max_age: some(0),
                ..zero()
            },
            "a lost comma frees nothing",
        ),
        (
            &["max-age=5 no-store"],
            ResponseDirectives {
                no_store: true,
                max_age: some(0),
                ..zero()
            },
            "a lost comma frees nothing",
        ),
        (
            &["extension=\"x, no-store"],
            ResponseDirectives {
                no_store: true,
                ..zero()
            },
            "an unclosed quote hides nothing",
        ),
        (
            &["public no-transform"],
            ResponseDirectives {
                no_transform: true,
                ..zero()
            },
            "a lost comma permits nothing",
        ),
    ];
    for (lines, expected, section) in table {
        assert_eq!(response(lines), *expected, "{lines:?}: {section}");
    }
}

#[test]
fn a_request_says_what_it_says() {
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
fn pragma_speaks_only_without_cache_control() {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn anything_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..60)) {
        if let Ok(value) = HeaderValue::from_bytes(&line) {
            let mut headers = HeaderMap::new();
            headers.insert(header::CACHE_CONTROL, value);
            let _ = (ResponseDirectives::of(&headers), RequestDirectives::of(&headers));
        }
    }

    /// A restriction that stands as a member of its own is seen whatever stands before it.
    #[test]
    fn nothing_hides_a_restriction(before in "[a-z=\"', \\\\;-]{0,30}") {
        // Save within a quoted-string that is closed later, which does not happen here.
        let directives = response(&[&format!("{before}, no-store, private, must-revalidate")]);
        prop_assert_eq!(
            (directives.no_store, directives.private, directives.must_revalidate),
            (true, Scope::Whole, true)
        );
    }
}
