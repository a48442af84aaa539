//! Token files, good and bad.

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

#[test]
fn a_file_has_names_and_tokens() {
    let text = format!(
        "# tokens\n\n  web {A} origins=https://a.example,http://b.example:81 burst=5 # old\r\nweb\t{B}  burst=5 origins=https://a.example,http://b.example:81 expires=2027-01-31\npartner.1_x-y {} requests_per_minute=600\n",
        "0".repeat(64)
    );
    let file = TokenFile::parse(&text).unwrap();
    let names: Vec<_> = file.names.iter().map(|name| &*name.name).collect();
    assert_eq!(names, ["web", "partner.1_x-y"]);
    let web = &file.names[0].settings;
    assert_eq!(web.burst.map(NonZeroU32::get), Some(5));
    assert_eq!(web.requests_per_minute, None);
    let origins: Vec<_> = web.origins.as_ref().unwrap().iter().collect();
    assert_eq!(origins, ["https://a.example", "http://b.example:81"]);
    let partner = &file.names[1].settings;
    assert_eq!(partner.requests_per_minute.map(NonZeroU32::get), Some(600));
    let tokens = file.tokens.iter();
    let tokens: Vec<_> = tokens
        .map(|token| (token.digest[0], token.name, token.expires.is_some()))
        .collect();
    assert_eq!(tokens, [(0xaa, 0, false), (0xbb, 0, true), (0, 1, false)]);
    assert_eq!(TokenFile::parse(""), Ok(TokenFile::default()));
}

#[test]
fn problems_have_line_and_column_and_not_what_is_there() {
    const SECRET: &str = "og_5ecret5ecret5ecret5ecret5ecret5ecret5ecret5ecret5e";
    for (text, expected) in [
        ("web", "f:1:4: the SHA-256 of the token is missing"),
        (
            "\n web # none",
            "f:2:5: the SHA-256 of the token is missing",
        ),
        (SECRET, "f:1:1: a line begins with a name"),
        (&format!("{SECRET} {A}"), "f:1:1: a line begins with a name"),
        (
            &format!("web {SECRET}"),
            "f:1:5: this is a token; the file must have its SHA-256",
        ),
        (
            &format!("web {}", &A[1..]),
            "f:1:5: the SHA-256 of the token must be 64 hex digits",
        ),
        (
            &format!("web {}g", &A[1..]),
            "f:1:5: the SHA-256 of the token must be 64 hex digits",
        ),
        (
            &format!("web {}é", &A[2..]),
            "f:1:5: the SHA-256 of the token must be 64 hex digits",
        ),
        (
            &format!("wéb {A}"),
            "f:1:1: a line begins with a name: 1 to 64 of",
        ),
        (&format!("-web {A}"), "f:1:1: a line begins with a name"),
        (
            &format!("{} {A}", "n".repeat(65)),
            "f:1:1: a line begins with a name",
        ),
        (
            &format!("web {A} {SECRET}"),
            "f:1:70: allowed here is requests_per_minute=N, burst=N",
        ),
        (&format!("web {A} Burst=3"), "f:1:70: allowed here is"),
        (
            &format!("web {A} burst=0"),
            "f:1:70: burst must be a number from 1 to 60000000",
        ),
        (
            &format!("web {A} burst=+1"),
            "f:1:70: burst must be a number",
        ),
        (&format!("web {A} burst="), "f:1:70: burst must be a number"),
        (
            &format!("web {A} requests_per_minute=60000001"),
            "f:1:70: requests_per_minute must be",
        ),
        (
            &format!("web {A} burst=1 burst=1"),
            "f:1:78: burst is twice in this line",
        ),
        (
            &format!("web {A} expires=soon"),
            "f:1:70: expires must be a date of RFC 3339",
        ),
        (
            &format!("web {A} origins="),
            "f:1:70: origins must be origins without a path",
        ),
        (
            &format!("web {A} origins=https://a/"),
            "f:1:70: origins must be",
        ),
        (
            &format!("web {A} origins=https://a/b"),
            "f:1:70: origins must be",
        ),
        (
            &format!("web {A} origins=https://u@a"),
            "f:1:70: origins must be origins without a path, separated by commas, such as https://app.example,https://b.example:8443: write it without the user",
        ),
        (
            &format!("web {A} origins=https://a,https://b.example:443"),
            "f:1:70: origins must be",
        ),
        (
            &format!("web {A} origins=https://a,"),
            "f:1:70: origins must be",
        ),
        (
            &format!("web {A}\nother {A}"),
            "f:2:7: the same token is in line 1",
        ),
        (
            &format!("web {A}\nweb {B} burst=1"),
            "f:2:1: this line and line 1 have the same name and different settings",
        ),
    ] {
        let problems = TokenFile::parse(text).unwrap_err();
        let said = problems[0].of_file("f");
        assert!(said.starts_with(expected), "{text}: {said}");
        assert_eq!(problems.len(), 1, "{text}: {problems:?}");
        for secret in ["5ecret", "aaaa", "BBBB"] {
            assert!(!said.contains(secret), "{said}");
        }
    }
}

#[test]
fn the_number_of_tokens_is_bounded() {
    let lines = |n: usize| -> String { (0..n).map(|n| format!("n{n} {n:064x}\n")).collect() };
    assert_eq!(
        TokenFile::parse(&lines(MAX_TOKENS)).unwrap().names.len(),
        MAX_TOKENS
    );
    let more = TokenFile::parse(&lines(MAX_TOKENS + 1)).unwrap_err();
    assert_eq!(
        more[0].of_file("f"),
        "f:10001:1: there are more than 10000 tokens, the most that are allowed"
    );
}
