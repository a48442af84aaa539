//! Tables of `validator`: each row cites its section.

use http::header::HeaderName;
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

use super::*;

const MONDAY: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
const TUESDAY: &str = "Tue, 02 Jan 2024 00:00:00 GMT";
const WEDNESDAY: &str = "Wed, 03 Jan 2024 00:00:00 GMT";

fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

#[test]
fn entity_tags_are_parsed_strictly() {
    let strong = |opaque: &'static str| {
        Some(EntityTag {
            weak: false,
            opaque: opaque.as_bytes(),
        })
    };
    let weak = |opaque: &'static str| {
        Some(EntityTag {
            weak: true,
            opaque: opaque.as_bytes(),
        })
    };
    let table = [
        ("\"xyzzy\"", strong("xyzzy"), "RFC 9110 §8.8.3"),
        ("W/\"xyzzy\"", weak("xyzzy"), "RFC 9110 §8.8.3"),
        ("\"\"", strong(""), "RFC 9110 §8.8.3"),
        ("\"a,b\\\"", strong("a,b\\"), "RFC 9110 §8.8.3, no escapes"),
        ("\"\u{fc}\"", strong("\u{fc}"), "RFC 9110 §8.8.3, obs-text"),
        ("w/\"xyzzy\"", None, "RFC 9110 §8.8.3, W has case"),
        ("W\"xyzzy\"", None, "RFC 9110 §8.8.3"),
        ("xyzzy", None, "RFC 9110 §8.8.3, unquoted"),
        ("\"a b\"", None, "RFC 9110 §8.8.3, no space"),
        ("\"a\", \"b\"", None, "RFC 9110 §8.8.3, one only"),
        ("\"a", None, "RFC 9110 §8.8.3"),
        ("", None, "RFC 9110 §8.8.3"),
    ];
    for (value, expected, section) in table {
        assert_eq!(
            EntityTag::parse(value.as_bytes()),
            expected,
            "{value:?}: {section}"
        );
    }
}

#[test]
fn strong_comparison_rejects_weak_tags() {
    let table = [
        ("W/\"1\"", "W/\"1\"", false, true),
        ("W/\"1\"", "W/\"2\"", false, false),
        ("W/\"1\"", "\"1\"", false, true),
        ("\"1\"", "\"1\"", true, true),
    ];
    for (one, two, strongly, weakly) in table {
        let one = EntityTag::parse(one.as_bytes()).unwrap();
        let two = EntityTag::parse(two.as_bytes()).unwrap();
        assert_eq!(
            (one.equals_strongly(&two), one.equals_weakly(&two)),
            (strongly, weakly),
            "RFC 9110 §8.8.3.2"
        );
    }
}

#[test]
fn preconditions_are_evaluated_in_order() {
    const INM: HeaderName = header::IF_NONE_MATCH;
    const IMS: HeaderName = header::IF_MODIFIED_SINCE;
    type Fields = &'static [(HeaderName, &'static str)];
    use PreconditionResult::{Forward, Full, NotModified};
    const TAG: Fields = &[(header::ETAG, "\"a\""), (header::LAST_MODIFIED, TUESDAY)];
    let table: &[(Fields, Fields, PreconditionResult, &str)] = &[
        (&[], TAG, Full, "RFC 9110 §13.2.2"),
        (&[(INM, "\"a\"")], TAG, NotModified, "RFC 9110 §13.1.2"),
        (
            &[(INM, "W/\"a\"")],
            TAG,
            NotModified,
            "RFC 9110 §13.1.2, weak comparison",
        ),
        (
            &[(INM, "\"a\"")],
            &[(header::ETAG, "W/\"a\"")],
            NotModified,
            "RFC 9110 §13.1.2, weak comparison",
        ),
        (&[(INM, "\"b\"")], TAG, Full, "RFC 9110 §13.1.2"),
        (
            &[(INM, "\"b\", \"a\"")],
            TAG,
            NotModified,
            "RFC 9110 §13.1.2, a list",
        ),
        (
            &[(INM, "\"b\""), (INM, "\"a\"")],
            TAG,
            NotModified,
            "RFC 9110 §5.3, lines",
        ),
        (
            &[(INM, "\"x,\"a\"")],
            TAG,
            Full,
            "RFC 9110 §8.8.3, commas are etagc",
        ),
        (
            &[(INM, "\"x,y\",\"a\"")],
            TAG,
            NotModified,
            "RFC 9110 §8.8.3, commas are etagc",
        ),
        (
            &[(INM, "b, \"a\"")],
            TAG,
            NotModified,
            "a member that is no tag is passed over",
        ),
        (
            &[(INM, "\"a\"b")],
            TAG,
            Full,
            "a member that is no tag is passed over",
        ),
        (&[(INM, "a")], TAG, Full, "RFC 9110 §8.8.3, unquoted"),
        (
            &[(INM, "a")],
            &[(header::ETAG, "a")],
            Full,
            "RFC 9110 §8.8.3, unquoted",
        ),
        (&[(INM, "*")], TAG, NotModified, "RFC 9110 §13.1.2, any"),
        (&[(INM, "*")], &[], NotModified, "RFC 9110 §13.1.2, any"),
        (&[(INM, "")], TAG, Full, "RFC 9110 §13.1.2"),
        (
            &[(INM, "\"a\""), (IMS, MONDAY)],
            TAG,
            NotModified,
            "RFC 9110 §13.2.2, precedence",
        ),
        (
            &[(INM, "\"b\""), (IMS, WEDNESDAY)],
            TAG,
            Full,
            "RFC 9110 §13.1.3, ignored",
        ),
        (
            &[(INM, "b"), (IMS, WEDNESDAY)],
            TAG,
            Full,
            "RFC 9110 §13.1.3, ignored",
        ),
        (
            &[(INM, "\"a\"")],
            &[(header::LAST_MODIFIED, TUESDAY)],
            Full,
            "RFC 9110 §13.1.2",
        ),
        (&[(IMS, TUESDAY)], TAG, NotModified, "RFC 9110 §13.1.3"),
        (&[(IMS, WEDNESDAY)], TAG, NotModified, "RFC 9110 §13.1.3"),
        (&[(IMS, MONDAY)], TAG, Full, "RFC 9110 §13.1.3"),
        (
            &[(IMS, "Tuesday, 02-Jan-24 00:00:00 GMT")],
            TAG,
            NotModified,
            "RFC 9110 §5.6.7",
        ),
        (
            &[(IMS, "yesterday")],
            TAG,
            Full,
            "RFC 9110 §13.1.3, ignored",
        ),
        (
            &[(IMS, TUESDAY), (IMS, TUESDAY)],
            TAG,
            Full,
            "RFC 9110 §13.1.3, one member",
        ),
        (
            &[(IMS, WEDNESDAY)],
            &[(header::DATE, TUESDAY)],
            NotModified,
            "RFC 9111 §4.3.2, Date",
        ),
        (
            &[(IMS, MONDAY)],
            &[(header::DATE, TUESDAY)],
            Full,
            "RFC 9111 §4.3.2, Date",
        ),
        (
            &[(IMS, TUESDAY)],
            &[],
            NotModified,
            "RFC 9111 §4.3.2, receipt",
        ),
        (&[(IMS, MONDAY)], &[], Full, "RFC 9111 §4.3.2, receipt"),
        (
            &[(header::IF_MATCH, "\"a\"")],
            TAG,
            Forward,
            "RFC 9111 §4.3.2",
        ),
        (
            &[(header::IF_UNMODIFIED_SINCE, MONDAY)],
            TAG,
            Forward,
            "RFC 9111 §4.3.2",
        ),
        (
            &[(header::IF_MATCH, "\"a\""), (INM, "\"a\"")],
            TAG,
            Forward,
            "RFC 9110 §13.2.2",
        ),
    ];
    let received = date::parse(TUESDAY.as_bytes()).unwrap();
    for (row, (request, stored, expected, section)) in table.iter().enumerate() {
        let (request, stored) = (headers(request), headers(stored));
        let stored = Representation {
            status: StatusCode::OK,
            headers: &stored,
            received,
        };
        assert_eq!(
            evaluate(&Method::GET, &request, &stored),
            *expected,
            "row {row}: {section}"
        );
        assert_eq!(
            evaluate(&Method::HEAD, &request, &stored),
            *expected,
            "row {row}: {section}"
        );
        let missing = Representation {
            status: StatusCode::NOT_FOUND,
            ..stored
        };
        if *expected == NotModified {
            assert_eq!(
                evaluate(&Method::GET, &request, &missing),
                Full,
                "row {row}: RFC 9110 §13.2.1"
            );
        }
    }
}

#[test]
fn stored_validators_replace_the_clients_conditions() {
    let asked = |chosen: &[(HeaderName, &str)], others: &[&[(HeaderName, &str)]]| {
        let mut request = headers(&[
            (header::IF_NONE_MATCH, "\"client\""),
            (header::IF_MODIFIED_SINCE, MONDAY),
            (header::RANGE, "bytes=0-1"),
            (header::IF_RANGE, "\"client\""),
            (header::ACCEPT, "*/*"),
        ]);
        let others: Vec<_> = others.iter().map(|fields| headers(fields)).collect();
        let conditional = make_conditional(&mut request, Some(&headers(chosen)), &others);
        request.remove(header::ACCEPT).unwrap();
        let line = |name| {
            request
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let conditions = (line(header::IF_NONE_MATCH), line(header::IF_MODIFIED_SINCE));
        assert_eq!(conditional, !request.is_empty(), "RFC 9111 §4.3.1");
        assert!(!request.contains_key(header::RANGE) && !request.contains_key(header::IF_RANGE));
        conditions
    };
    let some = |text: &str| Some(text.to_owned());
    let tag = (header::ETAG, "\"a\"");
    let modified = (header::LAST_MODIFIED, TUESDAY);
    assert_eq!(
        asked(std::slice::from_ref(&tag), &[]),
        (some("\"a\""), None),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[(header::ETAG, "W/\"a\"")], &[]),
        (some("W/\"a\""), None),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[tag.clone(), modified.clone()], &[]),
        (some("\"a\""), some(TUESDAY)),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[modified], &[]),
        (None, some(TUESDAY)),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[], &[]),
        (None, None),
        "RFC 9111 §4.3.1, nothing to validate by"
    );
    assert_eq!(
        asked(&[(header::ETAG, "a")], &[]),
        (None, None),
        "RFC 9110 §8.8.3, no tag"
    );
    assert_eq!(
        asked(&[(header::LAST_MODIFIED, "x")], &[]),
        (None, None),
        "RFC 9110 §8.8.2, no date"
    );
    let others: &[&[(HeaderName, &str)]] =
        &[&[(header::ETAG, "\"b\"")], std::slice::from_ref(&tag)];
    assert_eq!(
        asked(std::slice::from_ref(&tag), others),
        (some("\"a\", \"b\""), None),
        "RFC 9111 §4.3.1"
    );
}

#[test]
fn a_date_is_strong_if_it_is_a_minute_older() {
    let table = [
        (MONDAY, TUESDAY, true, "RFC 9110 §8.8.2.2"),
        (TUESDAY, TUESDAY, false, "RFC 9110 §8.8.2.2"),
        (WEDNESDAY, TUESDAY, false, "RFC 9110 §8.8.2.2"),
        (
            TUESDAY,
            "Tue, 02 Jan 2024 00:00:59 GMT",
            false,
            "RFC 9110 §8.8.2.2",
        ),
        (
            TUESDAY,
            "Tue, 02 Jan 2024 00:01:00 GMT",
            true,
            "RFC 9110 §8.8.2.2",
        ),
    ];
    for (modified, made, strong, section) in table {
        let headers = headers(&[(header::LAST_MODIFIED, modified), (header::DATE, made)]);
        assert_eq!(
            strong_date(&headers).is_some(),
            strong,
            "{modified} {made}: {section}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_list_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..40)) {
        let _ = tags(&line).count();
    }

    #[test]
    fn a_written_list_is_read_back(opaque in proptest::collection::vec("[!#-~]{0,8}", 1..8)) {
        let line = opaque.iter().map(|opaque| format!("\"{opaque}\"")).collect::<Vec<_>>().join(" , ");
        let found: Vec<_> = tags(line.as_bytes()).map(|tag| String::from_utf8(tag.opaque.to_vec()).unwrap()).collect();
        prop_assert_eq!(found, opaque);
    }
}
