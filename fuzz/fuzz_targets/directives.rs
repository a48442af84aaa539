//! Cache-Control and Pragma: neither case nor the order and the number of lines
//! change what is said.

#![no_main]

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};
use ordgate::cache::directives::{RequestDirectives, ResponseDirectives};
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
        assert_eq!(
            whole.directives(),
            both(single.iter().copied()).directives()
        );
        let joined = single.join(&b", "[..]);
        assert_eq!(whole.directives(), both([&joined[..]]).directives());
    }

    let (request, response) = (&whole.request, &whole.response);
    // Directives of both kinds are read alike.
    assert_eq!(request.no_store, response.no_store);
    assert_eq!(request.max_age, response.max_age);
    assert!(response.s_maxage.is_none() || response.forbid_stale());
});

#[derive(Debug, PartialEq)]
struct Both {
    request: RequestDirectives,
    response: ResponseDirectives,
    pragma: bool,
}

impl Both {
    fn directives(&self) -> (&RequestDirectives, &ResponseDirectives) {
        (&self.request, &self.response)
    }
}

fn both<'l>(lines: impl IntoIterator<Item = &'l [u8]> + Clone) -> Both {
    let headers = field(&CACHE_CONTROL, lines.clone());
    let response = ResponseDirectives::of(&headers);
    // Pragma says only one thing, and only alone (RFC 9111 §5.4).
    let mut pragma: HeaderMap = field(&PRAGMA, lines);
    let alone = RequestDirectives::of(&pragma);
    let only = RequestDirectives {
        no_cache: alone.no_cache,
        ..RequestDirectives::default()
    };
    assert_eq!(alone, only);
    pragma.extend(headers.clone());
    let request = RequestDirectives::of(&headers);
    if headers.contains_key(CACHE_CONTROL) {
        assert_eq!(RequestDirectives::of(&pragma), request);
    }
    Both {
        request,
        response,
        pragma: alone.no_cache,
    }
}
