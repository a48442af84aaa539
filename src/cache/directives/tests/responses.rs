//! Directives of responses.

use super::*;

#[test]
fn max_age_of_a_response_is_read_in_all_spellings() {
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
fn response_directives_are_read() {
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
