//! Cache-Control and Pragma: neither case nor the order and the number of lines
//! change what is said.

#![no_main]

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};
use ordgate::cache::directives::Directives;
use ordgate_fuzz::{field, lines, members, other_case};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let whole = both(lines(input));
    let flipped = other_case(input);
    assert_eq!(whole, both(lines(&flipped)), "case");
    let mut reversed: Vec<_> = lines(input).collect();
    reversed.reverse();
    assert_eq!(whole, both(reversed), "order");

    // Members on lines of their own say the same; so do all on one line, where
    // no quote is left open in any.
    let parted: Option<Vec<_>> = lines(input).map(members).collect();
    if let Some(parted) = parted
        && lines(input).all(|line| ordgate_fuzz::value(line).is_some())
    {
        let single: Vec<_> = parted.concat();
        assert_eq!(whole.directives, both(single.iter().copied()).directives);
        let joined = single.join(&b", "[..]);
        assert_eq!(whole.directives, both([&joined[..]]).directives);
    }

    let directives = &whole.directives;
    assert!(directives.s_maxage.is_none() || directives.forbid_stale());
});

#[derive(Debug, PartialEq)]
struct Both {
    directives: Directives,
    pragma: bool,
}

fn both<'l>(lines: impl IntoIterator<Item = &'l [u8]> + Clone) -> Both {
    let headers = field(&CACHE_CONTROL, lines.clone());
    let directives = Directives::of(&headers);
    // Pragma says only one thing, and only alone (RFC 9111 §5.4).
    let mut pragma: HeaderMap = field(&PRAGMA, lines);
    let alone = Directives::of_request(&pragma);
    let mut only = Directives::default();
    only.no_cache = alone.no_cache;
    assert_eq!(alone, only);
    pragma.extend(headers.clone());
    if headers.contains_key(CACHE_CONTROL) {
        assert_eq!(Directives::of_request(&pragma), directives);
    }
    Both {
        directives,
        pragma: alone.no_cache,
    }
}
