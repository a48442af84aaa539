//! Tables of `freshness`. Sections are of RFC 9111 where no other is named.

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

use http::HeaderValue;

use super::*;
use crate::cache::tests_table::{fields_by, rows};

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

/// The fields of a table, in which `noon+9` is a date.
fn headers(fields: &str) -> HeaderMap {
    fields_by(fields, |text| match text.strip_prefix("noon") {
        Some(offset) => date::value(at(offset.parse().unwrap())),
        None => HeaderValue::from_str(text).unwrap(),
    })
}

#[test]
fn lifetimes() {
    let table = r#"
        status | fields                                                   | seconds | explicit | section
        200    |                                                          | 0       | no       | §4.2.1
        200    | cache-control: max-age=60                                | 60      | yes      | §4.2.1
        200    | cache-control: max-age=60, s-maxage=5                    | 5       | yes      | §4.2.1
        200    | cache-control: s-maxage=60, max-age=0                    | 60      | yes      | §4.2.1
        200    | cache-control: max-age=60 & expires: noon-9              | 60      | yes      | §5.3
        200    | cache-control: max-age=60 & expires: 0                   | 60      | yes      | §5.3
        200    | cache-control: max-age=0 & expires: noon+9               | 0       | yes      | §5.3
        200    | date: noon+0 & expires: noon+9                           | 9       | yes      | §4.2.1
        200    | date: noon+5 & expires: noon+9                           | 4       | yes      | §4.2.1
        200    | date: noon+9 & expires: noon+5                           | 0       | yes      | §4.2.1
        200    | date: noon+0 & expires: noon+0                           | 0       | yes      | §4.2.1
        200    | expires: noon+9                                          | 9       | yes      | RFC 9110 §6.6.1, no Date
        200    | date: x & expires: noon+9                                | 9       | yes      | RFC 9110 §6.6.1
        200    | expires: 0                                               | 0       | yes      | §5.3
        200    | expires:                                                 | 0       | yes      | §5.3
        200    | expires: noon+9 & expires: noon+7                        | 7       | yes      | §4.2.1
        200    | expires: noon+9 & expires: 0                             | 0       | yes      | §4.2.1
        200    | expires: 0 & last-modified: noon-1000                    | 0       | yes      | §4.2.2, no heuristic besides an explicit time
        200    | last-modified: noon-1000                                 | 100     | no       | §4.2.2
        200    | last-modified: noon+1000                                 | 0       | no       | §4.2.2
        200    | last-modified: x                                         | 0       | no       | §4.2.2
        200    | last-modified: noon-3456000                              | 86400   | no       | the cap
        203    | last-modified: noon-86400                                | 8640    | no       | RFC 9110 §15.1
        204    | last-modified: noon-86400                                | 8640    | no       | RFC 9110 §15.1
        404    | last-modified: noon-86400                                | 8640    | no       | RFC 9110 §15.1
        501    | last-modified: noon-86400                                | 8640    | no       | RFC 9110 §15.1
        451    | last-modified: noon-86400                                | 8640    | no       | RFC 7725 §3
        201    | last-modified: noon-86400                                | 0       | no       | RFC 9110 §15.1
        302    | last-modified: noon-86400                                | 0       | no       | RFC 9110 §15.1
        403    | last-modified: noon-86400                                | 0       | no       | RFC 9110 §15.1
        503    | last-modified: noon-86400                                | 0       | no       | RFC 9110 §15.1
        599    | last-modified: noon-86400                                | 0       | no       | RFC 9110 §15.1
        599    | last-modified: noon-86400 & cache-control: public        | 8640    | no       | §4.2.2, public
        200    | cdn-cache-control: max-age=7 & cache-control: max-age=60 | 7       | yes      | RFC 9213 §2.2
        200    | cdn-cache-control: none & expires: noon+9                | 0       | no       | RFC 9213 §2.2
        200    | cdn-cache-control: & expires: noon+9                     | 9       | yes      | RFC 9213 §2.2
    "#;
    for [status, fields, seconds, explicit, section] in rows(table) {
        let headers = headers(fields);
        let governing = Directives::governing(&headers);
        let found = lifetime(status.parse().unwrap(), &headers, &governing, noon());
        let stated = explicit_lifetime(&headers, &governing, noon());
        let case = format!("{status} | {fields}: {section}");
        assert_eq!(found.as_secs().to_string(), seconds, "{case}");
        assert_eq!(stated, (explicit == "yes").then_some(found), "{case}");
    }
}

/// Without a `Date`, nothing is fresh beyond its `Expires`, in whatever part of a
/// second it has arrived.
#[test]
fn without_a_date_expires_counts_from_the_receipt() {
    let table = r#"
        fields                         | millis | section
        expires: noon+9                | 8250   | RFC 9110 §6.6.1, no Date
        date: x & expires: noon+9      | 8250   | RFC 9110 §6.6.1
        expires: noon+1                | 250    | RFC 9110 §6.6.1
        expires: noon+0                | 0      | §5.3
        date: noon+0 & expires: noon+9 | 9000   | §4.2.1
        date: noon-5 & expires: noon+9 | 14000  | §4.2.1
    "#;
    let received = noon() + Duration::from_millis(750);
    for [fields, millis, section] in rows(table) {
        let headers = headers(fields);
        let governing = Directives::governing(&headers);
        let found = explicit_lifetime(&headers, &governing, received);
        let expected = Duration::from_millis(millis.parse().unwrap());
        assert_eq!(found, Some(expected), "{fields}: {section}");
    }
}

#[test]
fn ages_on_arrival() {
    // Sent five seconds before noon, answered at noon.
    let table = r#"
        fields                 | seconds    | section
                               | 5          | §4.2.3, the delay
        date: noon+0           | 5          | §4.2.3
        date: noon-9           | 9          | §4.2.3, the apparent age
        date: noon+100         | 5          | §4.2.3, a fast clock
        age: 30                | 35         | §4.2.3, the corrected age value
        age: 3 & date: noon-90 | 90         | §4.2.3
        age: 30, 0             | 35         | §5.1, the first member
        age: 0,30              | 5          | §5.1, the first member
        age: 30 & age: 0       | 35         | §5.1, the first line
        age: 0 & age: 30       | 5          | §5.1, the first line
        age: abc               | 5          | §5.1, ignored
        age: -30               | 5          | §5.1, ignored
        age: 30.0              | 5          | §5.1, ignored
        age: 30;x=1            | 5          | §5.1, ignored
        age: 99999999999       | 2147483653 | §1.2.2
    "#;
    for [fields, seconds, section] in rows(table) {
        let seconds: u64 = seconds.parse().unwrap();
        let age = age_on_arrival(&headers(fields), at(-5), noon());
        assert_eq!(age.as_secs(), seconds, "{fields}: {section}");
    }
}

#[test]
fn a_date_of_this_second_has_no_apparent_age() {
    let received = noon() + Duration::from_millis(999);
    let age = age_on_arrival(&headers("date: noon+0"), received, received);
    assert_eq!(age, Duration::ZERO, "§4.2.3");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_lifetime_is_what_expires_says(date in any::<i32>(), expires in any::<i32>()) {
        let (date, expires) = (i64::from(date), i64::from(expires));
        // Dates that HTTP can write.
        let (date, expires) = (date.max(-1_999_999_999), expires.max(-1_999_999_999));
        let headers = headers(&format!("date: noon{date:+} & expires: noon{expires:+}"));
        let found = lifetime(StatusCode::OK, &headers, &Directives::default(), noon());
        prop_assert_eq!(i64::try_from(found.as_secs()).unwrap(), (expires - date).max(0));
    }
}
