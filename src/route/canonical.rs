//! Reads the parts of a canonical target, such as its page or its block, and
//! makes similar targets. Pure.
//!
//! The targets were written by [`Route::canonical`](super::Route::canonical), so
//! nothing is validated again.

use std::ops::Range;

use crate::cache::key::Key;
use crate::pages::{Hash, hash};

/// How a canonical target names a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockReference {
    /// The block at a height.
    Height(u32),
    /// The block with a hash.
    Hash(Hash),
}

/// A segment of the path, counted from 0.
pub(crate) fn segment(target: &str, number: usize) -> Option<&str> {
    target.get(segment_range(target, number)?)
}

fn segment_range(target: &str, number: usize) -> Option<Range<usize>> {
    let path = path(target);
    let start = 1 + memchr::memchr_iter(b'/', path.as_bytes()).nth(number)?;
    let end = path[start..].find('/').map_or(path.len(), |at| start + at);
    Some(start..end)
}

/// The block that a segment names.
pub(crate) fn block(target: &str, number: usize) -> Option<BlockReference> {
    let text = segment(target, number)?;
    match text.len() {
        64 => Some(BlockReference::Hash(hash(text)?)),
        _ => Some(BlockReference::Height(text.parse().ok()?)),
    }
}

/// The same key with another value in a segment.
pub(crate) fn with_segment(key: &Key, number: usize, value: &str) -> Option<Key> {
    let target = key.target();
    let Range { start, end } = segment_range(target, number)?;
    let target = [&target[..start], value, &target[end..]].concat();
    Some(Key::of(key.route(), &target))
}

/// The limit and the offset of a key.
pub(crate) fn page(key: &Key) -> Option<(u64, u64)> {
    let (_, query) = key.target().split_once('?')?;
    let number = |name| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(own, _)| *own == name)?.1.parse().ok()
    };
    Some((number("limit")?, number("offset")?))
}

/// The key of another page of the same list.
pub(crate) fn with_page(key: &Key, limit: u64, offset: u64) -> Option<Key> {
    page(key)?;
    let (path, query) = key.target().split_once('?')?;
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some(("limit", _)) => format!("limit={limit}"),
        Some(("offset", _)) => format!("offset={offset}"),
        _ => pair.to_owned(),
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    Some(Key::of(key.route(), &format!("{path}?{query}")))
}

/// Whether a key's query has only a limit and an offset, so that it is a page of
/// the whole list.
pub(crate) fn is_whole_list(key: &Key) -> bool {
    let query = key.target().split_once('?').map_or("", |(_, query)| query);
    let page = |pair: &str| pair.starts_with("limit=") || pair.starts_with("offset=");
    query.split('&').all(|pair| pair.is_empty() || page(pair))
}

/// The path of a target.
pub(crate) fn path(target: &str) -> &str {
    &target[..target.find('?').unwrap_or(target.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str) -> Key {
        Key::of(7, target)
    }

    const BLOCK: &str = "/runes/v1/blocks/840000/activity?limit=20&offset=40&operation_type=mint";

    #[test]
    fn segments() {
        assert_eq!(segment(BLOCK, 3), Some("840000"));
        assert_eq!(segment(BLOCK, 4), Some("activity"));
        assert_eq!(segment(BLOCK, 5), None);
        assert_eq!(segment("/tokens/ordi", 1), Some("ordi"));
        assert_eq!(block(BLOCK, 3), Some(BlockReference::Height(840_000)));
        let hash = "0".repeat(63) + "a";
        let other = with_segment(&key(BLOCK), 3, &hash).unwrap();
        assert_eq!(other.route(), 7);
        assert_eq!(
            other.target(),
            format!("/runes/v1/blocks/{hash}/activity?limit=20&offset=40&operation_type=mint")
        );
        let mut expected = [0; 32];
        expected[31] = 10;
        assert_eq!(
            block(other.target(), 3),
            Some(BlockReference::Hash(expected))
        );
        assert_eq!(block("/blocks/x", 1), None);
    }

    #[test]
    fn pages() {
        let block = key(BLOCK);
        assert_eq!(page(&block), Some((20, 40)));
        let other = with_page(&block, 60, 120).unwrap();
        assert_eq!(
            other.target(),
            "/runes/v1/blocks/840000/activity?limit=60&offset=120&operation_type=mint"
        );
        assert_eq!(page(&key("/a?offset=1&limit=2")), Some((2, 1)));
        assert_eq!(
            with_page(&key("/a?offset=1&limit=2"), 3, 400).map(|key| key.target().to_owned()),
            Some("/a?offset=400&limit=3".to_owned())
        );
        assert_eq!(page(&key("/a?limit=2")), None);
        assert_eq!(page(&key("/a?xlimit=2&limits=3&offset=1")), None);
        assert!(!is_whole_list(&block));
        assert!(is_whole_list(&key("/a?limit=1&offset=3")));
        assert!(is_whole_list(&key("/a")));
    }
}
