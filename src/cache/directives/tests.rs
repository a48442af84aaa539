//! Tables of `directives`.

mod requests;
mod responses;
mod targeted;

use http::header::{HeaderName, HeaderValue};
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

use super::*;

fn headers(name: HeaderName, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append(&name, HeaderValue::from_str(line).unwrap());
    }
    headers
}

fn response(lines: &[&str]) -> Directives {
    Directives::of(&headers(CACHE_CONTROL, lines))
}

fn request(lines: &[&str]) -> Directives {
    Directives::of_request(&headers(CACHE_CONTROL, lines))
}

#[test]
fn a_private_response_permits_nothing_to_shared_caches() {
    let rows: &[(&[&str], &str)] = &[
        (&[], "private"),
        (&["public, max-age=60"], "private, max-age=60"),
        (&["max-age=60, PUBLIC ,S-MaxAge=90"], "private, max-age=60"),
        (
            &["s-maxage =\"90\"", "public", "no-cache"],
            "private, no-cache",
        ),
        (
            &["private=\"set-cookie, age\", max-age=5"],
            "private, max-age=5",
        ),
        (&["private, immutable"], "private, immutable"),
        (&["no-store"], "private, no-store"),
        (
            &["ext=\"public, s-maxage=1\""],
            "private, ext=\"public, s-maxage=1\"",
        ),
        (
            &["ext=\"a, public, s-maxage=1"],
            "private, ext=\"a, public, s-maxage=1",
        ),
    ];
    for (lines, expected) in rows {
        let mut fields = headers(CACHE_CONTROL, lines);
        make_private(&mut fields);
        let all: Vec<_> = fields.get_all(CACHE_CONTROL).iter().collect();
        assert_eq!(all, [expected], "{lines:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_line_makes_reading_fail(line in proptest::collection::vec(0x20u8..=0xff, 0..60)) {
        if let Ok(value) = HeaderValue::from_bytes(&line) {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, value);
            let _ = (Directives::of(&headers), Directives::of_request(&headers));
        }
    }

    /// A restriction that is a member of its own is found, whatever precedes it.
    #[test]
    fn no_text_hides_a_restriction(before in "[a-z=\"', \\\\;-]{0,30}") {
        // Except within a quoted-string that is closed later, which is not generated here.
        let directives = response(&[&format!("{before}, no-store, private, must-revalidate")]);
        prop_assert_eq!(
            (directives.no_store, directives.private, directives.must_revalidate),
            (true, true, true)
        );
    }
}

fn some(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}
