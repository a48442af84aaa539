//! Tables of parameters, and their canonical forms.

use super::*;

fn path(kind: &ParameterType, raw: &str) -> Option<String> {
    let mut out = b"kept".to_vec();
    let done = kind.write_canonical("p", raw, false, &mut out);
    let text = String::from_utf8(out).unwrap();
    let written = text.strip_prefix("kept").unwrap().to_owned();
    assert!(done.is_ok() || written.is_empty());
    done.is_ok().then_some(written)
}

fn query(kind: &ParameterType, raw: &str) -> Option<String> {
    let mut out = Vec::new();
    kind.write_canonical("p", raw, true, &mut out).ok()?;
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn hashes_are_lower_cased() {
    let upper = "AB".repeat(32);
    assert_eq!(path(&ParameterType::Hex64, &upper), Some("ab".repeat(32)));
    // A percent-encoded letter means the letter.
    let encoded = format!("%41b{}", "AB".repeat(31));
    assert_eq!(path(&ParameterType::Hex64, &encoded), Some("ab".repeat(32)));
    for bad in [
        "",
        "xyz",
        &"a".repeat(63),
        &"a".repeat(65),
        &format!("0x{}", "a".repeat(62)),
    ] {
        assert_eq!(path(&ParameterType::Hex64, bad), None, "{bad}");
    }
}

#[test]
fn heights_lose_leading_zeros() {
    let rows: &[(&str, Option<&str>)] = &[
        ("840000", Some("840000")),
        ("00840000", Some("840000")),
        ("0", Some("0")),
        ("0000000000", Some("0")),
        ("4294967295", Some("4294967295")),
        ("4294967296", None),
        ("00000840000", None),
        ("-1", None),
        ("+1", None),
        ("latest", None),
        ("", None),
        ("%zz", None),
        ("%00", None),
    ];
    for (raw, canonical) in rows {
        assert_eq!(
            path(&ParameterType::Block, raw).as_deref(),
            *canonical,
            "{raw}"
        );
    }
}

#[test]
fn hashes_of_blocks_begin_with_zeros() {
    let hash = |zeros: usize, digit: &str| "0".repeat(zeros) + &digit.repeat(64 - zeros);
    let kind = ParameterType::Block;
    // 64 decimal digits are a hash too.
    for digit in ["1", "a", "F"] {
        for zeros in 0..=64 {
            let hash = hash(zeros, digit);
            let canonical = (zeros >= 8).then(|| hash.to_ascii_lowercase());
            assert_eq!(path(&kind, &hash), canonical, "{zeros}");
        }
    }
    for bad in [&hash(64, "")[..63], &hash(64, "0").replace('0', "00")] {
        assert_eq!(path(&kind, bad), None, "{bad}");
    }
    // Percent-encoded zeros count.
    let encoded = format!("%30{}{}", "0".repeat(7), "ab".repeat(28));
    let canonical = format!("{}{}", "0".repeat(8), "ab".repeat(28));
    assert_eq!(path(&kind, &encoded), Some(canonical));
    for bad in ["g".repeat(56), "1".repeat(55) + "-"] {
        assert_eq!(path(&kind, &format!("00000000{bad}")), None, "{bad}");
    }
    let text = kind.to_string();
    assert!(
        text.ends_with("(64 hexadecimal digits with at least 8 leading zeros)"),
        "{text}"
    );
}

#[test]
fn tickers() {
    let hundred = "a".repeat(100);
    let longer = "a".repeat(101);
    let (astral, more_astral) = ("%F0%9F%90%B8".repeat(50), "%F0%9F%90%B8".repeat(51));
    let rows: &[(&str, Option<&str>)] = &[
        ("ordi", Some("ordi")),
        ("ORDI", Some("ordi")),
        ("%6Frdi", Some("ordi")),
        ("%256Frdi", Some("%256frdi")),
        ("a%2Fb%3F", Some("a%2Fb%3F")),
        ("a+b", Some("a%2Bb")),
        // The reference upstream cuts the path at an unencoded one.
        ("a;b", Some("a%3Bb")),
        ("A%3bB", Some("a%3Bb")),
        (";", Some("%3B")),
        ("a%20b", Some("a%20b")),
        ("$x", Some("%24x")),
        ("%f0%9f%90%b8", Some("%F0%9F%90%B8")),
        // Only ASCII is folded: for the rest, the database's locale decides.
        ("%C3%80", Some("%C3%80")),
        ("%00", None),
        ("%0A", None),
        ("%C2%85", None),
        ("%FF%FE", None),
        ("%zz", None),
        ("%4", None),
        ("", None),
        ("🐸", None),
        ("..a", Some("..a")),
        (&hundred, Some(&hundred)),
        (&longer, None),
        (&astral, Some(&astral)),
        (&more_astral, None),
    ];
    for (raw, canonical) in rows {
        // `%256F` decodes to `%6F`, which is text, and is folded as such.
        assert_eq!(
            path(&ParameterType::Ticker, raw).as_deref(),
            *canonical,
            "{raw}"
        );
    }
}

#[test]
fn integers() {
    let limit = ParameterType::Integer { min: 1, max: 60 };
    for good in ["1", "20", "60", "%36%30"] {
        assert!(query(&limit, good).is_some(), "{good}");
    }
    for bad in [
        "0",
        "61",
        "",
        "-1",
        "+5",
        "%2B5",
        "1e1",
        "0x10",
        "010",
        "1.0",
        " 10",
        "%2010",
        "10 ",
        "abc",
        "1;offset=3",
        "5%C2%A0",
        "99999999999999999999999",
        "٣",
    ] {
        assert_eq!(query(&limit, bad), None, "{bad}");
    }
    let offset = ParameterType::Integer {
        min: 0,
        max: (1 << 53) - 1,
    };
    assert_eq!(query(&offset, "0").as_deref(), Some("0"));
    assert_eq!(
        query(&offset, "9007199254740991").as_deref(),
        Some("9007199254740991")
    );
    assert_eq!(query(&offset, "9007199254740992"), None);
    assert_eq!(query(&offset, "00"), None);
}

#[test]
fn enumerations_and_texts() {
    let operation = ParameterType::Enumeration(["mint".into(), "burn".into()].into());
    assert_eq!(query(&operation, "mint").as_deref(), Some("mint"));
    assert_eq!(query(&operation, "Mint"), None);
    let word = ParameterType::Text {
        min: 1,
        max: 5,
        pattern: Some(("[a-z ]+".into(), Regex::new("^(?:[a-z ]+)$").unwrap())),
    };
    assert_eq!(query(&word, "a+b").as_deref(), Some("a%20b"));
    assert_eq!(path(&word, "a+b"), None);
    assert_eq!(query(&word, "abcdef"), None);
    assert_eq!(query(&word, "A"), None);
}

#[test]
fn an_error_names_parameter_value_and_bounds() {
    let limit = ParameterType::Integer { min: 1, max: 60 };
    let why = limit
        .write_canonical("limit", "99", true, &mut Vec::new())
        .unwrap_err();
    assert_eq!(
        why.to_string(),
        "limit must be an integer from 1 to 60, in decimal digits without sign, blanks or leading zeros, but \"99\" came"
    );
    let long =
        ParameterType::Hex64.write_canonical("tx_id", &"x".repeat(500), false, &mut Vec::new());
    assert_eq!(long.unwrap_err().received.chars().count(), 81);
}

proptest::proptest! {
    /// A canonical value is its own canonical form: the cache key of a forwarded
    /// target is that target.
    #[test]
    fn a_canonical_form_is_its_own_canonical_form(raw in "[a-zA-Z0-9%.+~; /é🐸-]{0,20}") {
        for kind in [
            ParameterType::Ticker,
            ParameterType::Block,
            ParameterType::Integer { min: 0, max: 1000 },
            ParameterType::Text { min: 0, max: 30, pattern: None },
        ] {
            if let Some(once) = query(&kind, &raw) {
                proptest::prop_assert_eq!(query(&kind, &once), Some(once.clone()));
                proptest::prop_assert!(once.is_ascii() && !once.contains([' ', '/', '?', '#', ';']));
            }
        }
    }
}
