//! Vary: a request matches its own key, and two that match say the same. An
//! input is a Vary line, then the `name: value` lines of one request and, after
//! an empty line, of another.

#![no_main]

use http::header::{ACCEPT_ENCODING, ACCEPT_LANGUAGE, HeaderName, VARY};
use http::{HeaderMap, HeaderValue};
use ordgate::cache::vary::Nominated;
use ordgate_fuzz::{field, fields, lines};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut lines = lines(input);
    let response = field(&VARY, lines.next());
    let one = fields(lines.by_ref().take_while(|line| !line.is_empty()));
    let two = fields(lines);
    let nominated = Nominated::of(&response);
    let (Some(first), Some(second)) = (nominated.key(&one), nominated.key(&two)) else {
        assert_eq!(nominated, Nominated::Everything);
        assert!(nominated.key(&one).is_none() && nominated.key(&two).is_none());
        return;
    };
    assert!(nominated.matches(&first, &one) && nominated.matches(&second, &two));
    let matched = nominated.matches(&first, &two);
    assert_eq!(matched, nominated.matches(&second, &one));
    assert_eq!(matched, first == second);
    let Nominated::Fields(names) = &nominated else {
        panic!("a key of no fields");
    };
    let same = |name: &HeaderName| one.get_all(name).iter().eq(two.get_all(name));
    assert!(matched || !names.iter().all(same), "{first:?} {second:?}");
    for name in names.iter().filter(|_| matched) {
        assert_eq!(one.contains_key(name), two.contains_key(name), "{name}");
        assert_eq!(gist(name, &one), gist(name, &two), "{name}");
    }
});

/// What two values of one meaning have in common by any reading: the members
/// and their weights where the field is a list of these, else the text without
/// blanks.
fn gist(name: &HeaderName, request: &HeaderMap) -> Vec<Vec<u8>> {
    let values = request.get_all(name).iter().map(HeaderValue::as_bytes);
    let text = values.collect::<Vec<_>>().join(&b","[..]);
    let text = text.into_iter().filter(|byte| !b" \t".contains(byte));
    let text: Vec<u8> = text.collect();
    if *name != ACCEPT_ENCODING && *name != ACCEPT_LANGUAGE {
        return vec![text];
    }
    let members = text
        .split(|byte| *byte == b',')
        .filter(|member| !member.is_empty());
    let mut members: Vec<_> = members.map(member).collect();
    members.sort();
    members
}

fn member(text: &[u8]) -> Vec<u8> {
    let mut member = text.to_ascii_lowercase();
    if let Some(at) = member.windows(3).position(|three| three == b";q=")
        && let Some(weight) = str::from_utf8(&member[at + 3..]).ok()
        && weight.len() <= 5
        && let Ok(weight) = weight.parse::<f64>()
    {
        let weight = format!(";q={weight:.3}");
        member.splice(at.., weight.into_bytes());
    } else {
        member.extend_from_slice(b";q=1.000");
    }
    match member.strip_prefix(b"x-") {
        Some(rest) if rest.starts_with(b"gzip;") || rest.starts_with(b"compress;") => rest.to_vec(),
        _ => member,
    }
}
