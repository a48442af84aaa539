//! Cache-Status: whatever is written is one member of a structured list, and
//! says what was meant. Four bytes say what was done; then a name, a key and a
//! detail, one on each line.

#![no_main]

use http::{HeaderMap, StatusCode};
use ordgate::cache::status::{CACHE_STATUS, CacheStatus, Forward};
use ordgate_fuzz::lines;
use sfv::{BareItem, List, ListEntry, Parser};

const FORWARD: [Forward; 7] = [
    Forward::Bypass,
    Forward::Method,
    Forward::UriMiss,
    Forward::VaryMiss,
    Forward::Request,
    Forward::Stale,
    Forward::Partial,
];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some(([flags, forward, status, ttl], text)) = input.split_first_chunk() else {
        return;
    };
    let text: Vec<_> = lines(text).map(String::from_utf8_lossy).collect();
    let part = |at: usize| text.get(at).map(|text| &**text);
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let name = part(0).unwrap_or_default();
    let seconds = match flag(5) {
        true => i64::from(*ttl as i8),
        false => (i64::MAX >> (ttl & 63)) * if flag(6) { -1 } else { 1 },
    };
    let said = CacheStatus {
        hit: flag(0),
        forward: FORWARD.get(usize::from(*forward & 7)).copied(),
        forward_status: flag(1).then(|| StatusCode::from_u16(100 + u16::from(*status)).unwrap()),
        ttl: flag(2).then_some(seconds),
        stored: flag(3),
        collapsed: flag(4),
        key: part(1),
        detail: part(2),
    };
    let mut headers = HeaderMap::new();
    said.append("origin", &mut headers);
    said.append(name, &mut headers);
    let value = &headers.get_all(CACHE_STATUS).iter().last().unwrap();
    let list: List = match Parser::new(value.as_bytes()).parse() {
        Ok(list) => list,
        Err(error) => panic!("{value:?}: {error}"),
    };
    let [ListEntry::Item(item)] = &list[..] else {
        panic!("{value:?} is no single item");
    };
    assert_eq!(text_of(&item.bare_item), Some(printable(name)));
    let parameter = |key: &str| {
        let mut all = item.params.iter();
        all.find(|(name, _)| name.as_str() == key)
            .map(|(_, value)| value)
    };
    let is_true = |key: &str| match parameter(key) {
        None => false,
        Some(BareItem::Boolean(true)) => true,
        Some(other) => panic!("{key} is {other:?}"),
    };
    let integer = |key: &str| match parameter(key) {
        None => None,
        Some(BareItem::Integer(number)) => Some(i64::from(*number)),
        Some(other) => panic!("{key} is {other:?}"),
    };
    let went = said.forward.filter(|_| !said.hit);
    assert_eq!(is_true("hit"), said.hit);
    assert_eq!(is_true("stored"), said.stored && went.is_some());
    assert_eq!(is_true("collapsed"), said.collapsed && went.is_some());
    assert_eq!(
        parameter("fwd").and_then(text_of).as_deref(),
        went.map(Forward::as_str)
    );
    let forwarded = said.forward_status.filter(|_| went.is_some());
    assert_eq!(
        integer("fwd-status"),
        forwarded.map(|status| i64::from(status.as_u16()))
    );
    let most = 999_999_999_999_999;
    assert_eq!(integer("ttl"), said.ttl.map(|ttl| ttl.clamp(-most, most)));
    assert_eq!(parameter("key").and_then(text_of), said.key.map(printable));
    assert!(matches!(parameter("key"), None | Some(BareItem::String(_))));
    assert_eq!(
        parameter("detail").and_then(text_of),
        said.detail.map(printable)
    );
});

/// What a String can hold of a text.
fn printable(text: &str) -> String {
    let shown = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
    text.chars().map(shown).collect()
}

fn text_of(item: &BareItem) -> Option<String> {
    match item {
        BareItem::Token(token) => Some(token.as_str().to_owned()),
        BareItem::String(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}
