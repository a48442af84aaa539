//! Tables of `freshness`: each row names the section that it is from.

use http::header::HeaderName;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::cache::targeted::TargetList;

/// The time of the tables: a whole second.
fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000)
}

fn at(offset: i64) -> SystemTime {
    let span = Duration::from_secs(offset.unsigned_abs());
    if offset < 0 {
        noon() - span
    } else {
        noon() + span
    }
}

/// A field of a table: text, or a date by its distance from noon.
enum Value {
    Text(&'static str),
    Date(i64),
}
use Value::{Date, Text};

type Fields<'a> = &'a [(HeaderName, Value)];

fn headers(fields: Fields<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let value = match value {
            Text(text) => HeaderValue::from_static(text),
            Date(offset) => date::value(at(*offset)),
        };
        headers.append(name, value);
    }
    headers
}

const CC: HeaderName = header::CACHE_CONTROL;
const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");

#[test]
fn lifetimes() {
    let day = 86_400;
    let table: &[(u16, Fields<'_>, u64, LifetimeSource, &str)] = &[
        (200, &[], 0, LifetimeSource::Nothing, "RFC 9111 §4.2.1"),
        (
            200,
            &[(CC, Text("max-age=60"))],
            60,
            LifetimeSource::MaxAge,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(CC, Text("max-age=60, s-maxage=5"))],
            5,
            LifetimeSource::SMaxage,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(CC, Text("s-maxage=60, max-age=0"))],
            60,
            LifetimeSource::SMaxage,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(CC, Text("max-age=60")), (header::EXPIRES, Date(-9))],
            60,
            LifetimeSource::MaxAge,
            "RFC 9111 §5.3",
        ),
        (
            200,
            &[(CC, Text("max-age=60")), (header::EXPIRES, Text("0"))],
            60,
            LifetimeSource::MaxAge,
            "RFC 9111 §5.3",
        ),
        (
            200,
            &[(CC, Text("max-age=0")), (header::EXPIRES, Date(9))],
            0,
            LifetimeSource::MaxAge,
            "RFC 9111 §5.3",
        ),
        (
            200,
            &[(header::DATE, Date(0)), (header::EXPIRES, Date(9))],
            9,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(header::DATE, Date(5)), (header::EXPIRES, Date(9))],
            4,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(header::DATE, Date(9)), (header::EXPIRES, Date(5))],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(header::DATE, Date(0)), (header::EXPIRES, Date(0))],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(header::EXPIRES, Date(9))],
            9,
            LifetimeSource::Expires,
            "RFC 9110 §6.6.1, no Date",
        ),
        (
            200,
            &[(header::DATE, Text("x")), (header::EXPIRES, Date(9))],
            9,
            LifetimeSource::Expires,
            "RFC 9110 §6.6.1",
        ),
        (
            200,
            &[(header::EXPIRES, Text("0"))],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §5.3",
        ),
        (
            200,
            &[(header::EXPIRES, Text(""))],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §5.3",
        ),
        (
            200,
            &[(header::EXPIRES, Date(9)), (header::EXPIRES, Date(7))],
            7,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[(header::EXPIRES, Date(9)), (header::EXPIRES, Text("0"))],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.1",
        ),
        (
            200,
            &[
                (header::EXPIRES, Text("0")),
                (header::LAST_MODIFIED, Date(-1000)),
            ],
            0,
            LifetimeSource::Expires,
            "RFC 9111 §4.2.2, no heuristic besides an explicit time",
        ),
        (
            200,
            &[(header::LAST_MODIFIED, Date(-1000))],
            100,
            LifetimeSource::Heuristic,
            "RFC 9111 §4.2.2",
        ),
        (
            200,
            &[(header::LAST_MODIFIED, Date(1000))],
            0,
            LifetimeSource::Heuristic,
            "RFC 9111 §4.2.2",
        ),
        (
            200,
            &[(header::LAST_MODIFIED, Text("x"))],
            0,
            LifetimeSource::Nothing,
            "RFC 9111 §4.2.2",
        ),
        (
            200,
            &[(header::LAST_MODIFIED, Date(-40 * day))],
            86_400,
            LifetimeSource::Heuristic,
            "the cap",
        ),
        (
            203,
            &[(header::LAST_MODIFIED, Date(-day))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 9110 §15.1",
        ),
        (
            204,
            &[(header::LAST_MODIFIED, Date(-day))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 9110 §15.1",
        ),
        (
            404,
            &[(header::LAST_MODIFIED, Date(-day))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 9110 §15.1",
        ),
        (
            501,
            &[(header::LAST_MODIFIED, Date(-day))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 9110 §15.1",
        ),
        (
            451,
            &[(header::LAST_MODIFIED, Date(-day))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 7725 §3",
        ),
        (
            201,
            &[(header::LAST_MODIFIED, Date(-day))],
            0,
            LifetimeSource::Nothing,
            "RFC 9110 §15.1",
        ),
        (
            302,
            &[(header::LAST_MODIFIED, Date(-day))],
            0,
            LifetimeSource::Nothing,
            "RFC 9110 §15.1",
        ),
        (
            403,
            &[(header::LAST_MODIFIED, Date(-day))],
            0,
            LifetimeSource::Nothing,
            "RFC 9110 §15.1",
        ),
        (
            503,
            &[(header::LAST_MODIFIED, Date(-day))],
            0,
            LifetimeSource::Nothing,
            "RFC 9110 §15.1",
        ),
        (
            599,
            &[(header::LAST_MODIFIED, Date(-day))],
            0,
            LifetimeSource::Nothing,
            "RFC 9110 §15.1",
        ),
        (
            599,
            &[(header::LAST_MODIFIED, Date(-day)), (CC, Text("public"))],
            8640,
            LifetimeSource::Heuristic,
            "RFC 9111 §4.2.2, public",
        ),
        (
            200,
            &[(CDN, Text("max-age=7")), (CC, Text("max-age=60"))],
            7,
            LifetimeSource::MaxAge,
            "RFC 9213 §2.2",
        ),
        (
            200,
            &[(CDN, Text("none")), (header::EXPIRES, Date(9))],
            0,
            LifetimeSource::Nothing,
            "RFC 9213 §2.2",
        ),
        (
            200,
            &[(CDN, Text("")), (header::EXPIRES, Date(9))],
            9,
            LifetimeSource::Expires,
            "RFC 9213 §2.2",
        ),
    ];
    for (row, (status, fields, seconds, source, section)) in table.iter().enumerate() {
        let headers = headers(fields);
        let governing = TargetList::default().governing(&headers);
        let status = StatusCode::from_u16(*status).unwrap();
        let lifetime = Lifetime::of(status, &headers, &governing, noon(), Heuristic::default());
        let expected = Lifetime {
            duration: Duration::from_secs(*seconds),
            source: *source,
        };
        assert_eq!(lifetime, expected, "row {row}: {section}");
    }
}

#[test]
fn ages_on_arrival() {
    // Sent five seconds before noon, answered at noon.
    let table: &[(Fields<'_>, u64, &str)] = &[
        (&[], 5, "RFC 9111 §4.2.3, the delay"),
        (&[(header::DATE, Date(0))], 5, "RFC 9111 §4.2.3"),
        (
            &[(header::DATE, Date(-9))],
            9,
            "RFC 9111 §4.2.3, the apparent age",
        ),
        (
            &[(header::DATE, Date(100))],
            5,
            "RFC 9111 §4.2.3, a fast clock",
        ),
        (
            &[(header::AGE, Text("30"))],
            35,
            "RFC 9111 §4.2.3, the corrected age value",
        ),
        (
            &[(header::AGE, Text("3")), (header::DATE, Date(-90))],
            90,
            "RFC 9111 §4.2.3",
        ),
        (
            &[(header::AGE, Text("30, 0"))],
            35,
            "RFC 9111 §5.1, the first member",
        ),
        (
            &[(header::AGE, Text("0,30"))],
            5,
            "RFC 9111 §5.1, the first member",
        ),
        (
            &[(header::AGE, Text("30")), (header::AGE, Text("0"))],
            35,
            "RFC 9111 §5.1, the first line",
        ),
        (
            &[(header::AGE, Text("0")), (header::AGE, Text("30"))],
            5,
            "RFC 9111 §5.1, the first line",
        ),
        (&[(header::AGE, Text("abc"))], 5, "RFC 9111 §5.1, ignored"),
        (&[(header::AGE, Text("-30"))], 5, "RFC 9111 §5.1, ignored"),
        (&[(header::AGE, Text("30.0"))], 5, "RFC 9111 §5.1, ignored"),
        (
            &[(header::AGE, Text("30;x=1"))],
            5,
            "RFC 9111 §5.1, ignored",
        ),
        (
            &[(header::AGE, Text("99999999999"))],
            (1 << 31) + 5,
            "RFC 9111 §1.2.2",
        ),
    ];
    for (row, (fields, seconds, section)) in table.iter().enumerate() {
        let aging = Aging::of(&headers(fields), at(-5), noon());
        assert_eq!(
            aging.current_age(noon()).as_secs(),
            *seconds,
            "row {row}: {section}"
        );
        assert_eq!(
            aging.current_age(at(7)).as_secs(),
            seconds + 7,
            "row {row}: RFC 9111 §4.2.3"
        );
        assert_eq!(
            aging.current_age(at(-700)).as_secs(),
            *seconds,
            "row {row}: a clock that went back"
        );
    }
}

#[test]
fn a_date_of_this_second_has_no_apparent_age() {
    let received = noon() + Duration::from_millis(999);
    let aging = Aging::of(&headers(&[(header::DATE, Date(0))]), received, received);
    assert_eq!(
        aging.current_age(received),
        Duration::ZERO,
        "RFC 9111 §4.2.3"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn age_only_grows_and_never_overflows(
        age in "[0-9]{0,25}",
        date in -4_000_000_000i64..4_000_000_000,
        delay in -1000i64..1000,
        first in -4_000_000_000i64..4_000_000_000,
        later in 0u64..4_000_000_000,
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(header::AGE, HeaderValue::from_str(&age).unwrap());
        headers.insert(header::DATE, date::value(at(date)));
        let aging = Aging::of(&headers, at(-delay), noon());
        let young = aging.current_age(at(first));
        let old = aging.current_age(at(first) + Duration::from_secs(later));
        prop_assert!(young <= old);
        prop_assert!(old.saturating_sub(young) <= Duration::from_secs(later));
        prop_assert!(young >= age_value(&headers).duration());
        prop_assert!(aging.field(at(first)).to_str().unwrap().parse::<u64>().unwrap() <= 1 << 31);
    }

    #[test]
    fn a_lifetime_is_what_expires_says(date in any::<i32>(), expires in any::<i32>()) {
        let (date, expires) = (i64::from(date), i64::from(expires));
        // Dates that HTTP can write.
        let (date, expires) = (date.max(-1_999_999_999), expires.max(-1_999_999_999));
        let headers = headers(&[(header::DATE, Date(date)), (header::EXPIRES, Date(expires))]);
        let lifetime =
            Lifetime::of(StatusCode::OK, &headers, &Governing::default(), noon(), Heuristic::default());
        prop_assert_eq!(i64::try_from(lifetime.duration.as_secs()).unwrap(), (expires - date).max(0));
    }
}
