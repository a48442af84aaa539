//! Entity tags, dates and preconditions. An input is `name: value` lines: the
//! request's fields, and after an empty line those of the stored response.

#![no_main]

use http::header::{ETAG, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::HeaderMap;
use ordgate::cache::validator::{etag, none_match_fails};
use ordgate::cache::validator::{EntityTag, for_the_origin, is_not_modified, make_conditional};
use ordgate::cache::{date, range};
use ordgate_fuzz::{fields, lines, other_case};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut lines = lines(input);
    let request = fields(lines.by_ref().take_while(|line| !line.is_empty()));
    let stored = fields(lines);
    for value in request.values().chain(stored.values()) {
        tag(value.as_bytes());
        time(value.as_bytes());
    }

    let ask = |request: &HeaderMap| is_not_modified(request, &stored, false);
    let outcome = ask(&request);
    assert!(!outcome || !for_the_origin(&request));

    // If-Modified-Since counts for nothing beside If-None-Match (RFC 9110 §13.1.3).
    if request.contains_key(IF_NONE_MATCH) {
        let mut alone = request.clone();
        alone.remove(IF_MODIFIED_SINCE);
        assert_eq!(outcome, ask(&alone));
    }
    // A client that names the stored tag too has the same copy.
    if let Some(own) = EntityTag::of(&stored).filter(|_| !for_the_origin(&request)) {
        let mut named = request.clone();
        named.append(IF_NONE_MATCH, stored[ETAG].clone());
        assert!(ask(&named));
        let mut ranged = HeaderMap::new();
        ranged.insert(IF_RANGE, stored[ETAG].clone());
        assert_eq!(range::if_range_holds(&ranged, &stored), !own.weak);
    }
    let ours = etag(b"");
    let mut named = request.clone();
    named.append(IF_NONE_MATCH, ours.clone());
    assert!(none_match_fails(&named, &ours));

    // What is asked of the origin is about the stored response, and the stored
    // response would be its answer.
    let mut forward = request.clone();
    let conditional = make_conditional(&mut forward, Some(&stored));
    assert!(!forward.contains_key(RANGE) && !forward.contains_key(IF_RANGE));
    let asks = forward.contains_key(IF_NONE_MATCH) || forward.contains_key(IF_MODIFIED_SINCE);
    assert_eq!(conditional, asks);
    if conditional && !for_the_origin(&forward) {
        assert!(ask(&forward));
    }
});

/// A tag equals itself strongly where it is strong.
fn tag(value: &[u8]) {
    let Some(tag) = EntityTag::parse(value) else {
        return;
    };
    assert_eq!(tag.equals_strongly(&tag), !tag.weak);
    let prefix: &[u8] = if tag.weak { b"W/\"" } else { b"\"" };
    assert_eq!(value.trim_ascii(), [prefix, tag.opaque, b"\""].concat());
}

/// A date is read in any case, and written it is the same date.
fn time(value: &[u8]) {
    let read = date::parse(value);
    assert_eq!(read, date::parse(&other_case(value)));
    let Some(read) = read else { return };
    let written: HeaderValue = date::value(read);
    assert_eq!(date::parse(written.as_bytes()), Some(read));
    assert!(value.len() <= 40);
}
