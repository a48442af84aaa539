//! Targeted fields: read as the structured fields that they are, and all or
//! nothing.

#![no_main]

use http::header::{CACHE_CONTROL, HeaderName, HeaderValue};
use ordgate::cache::directives::{ResponseDirectives, Scope};
use ordgate::cache::targeted::TargetList;
use ordgate_fuzz::{field, lines};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut headers = field(&CDN, lines(input));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=7"));
    let found = TargetList::default().governing(&headers);

    let lines: Vec<_> = headers
        .get_all(CDN)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let joined = lines.join(&b", "[..]);
    let dictionary: Option<Dictionary> = Parser::new(&joined).parse().ok();
    let dictionary = dictionary.filter(|dictionary| !dictionary.is_empty());
    assert_eq!(found.targeted, dictionary.is_some());
    let Some(dictionary) = dictionary else {
        assert_eq!(found.directives, ResponseDirectives::of(&headers));
        return;
    };
    // Nothing of Cache-Control is left, and one line says what several said.
    headers.remove(CACHE_CONTROL);
    assert_eq!(found, TargetList::default().governing(&headers));
    assert_eq!(
        found,
        TargetList::default().governing(&field(&CDN, [&joined[..]]))
    );
    assert!(!TargetList::none().governing(&headers).targeted);

    let said = |key: &str| dictionary.iter().find(|(name, _)| name.as_str() == key);
    let directives = &found.directives;
    // What restricts counts in whatever form; what permits only in its own.
    assert_eq!(directives.no_store, said("no-store").is_some());
    assert_eq!(
        directives.must_revalidate,
        said("must-revalidate").is_some()
    );
    assert_eq!(
        directives.no_cache != Scope::Absent,
        said("no-cache").is_some()
    );
    assert_eq!(
        directives.private != Scope::Absent,
        said("private").is_some()
    );
    let item = |key: &str| match said(key) {
        Some((_, ListEntry::Item(item))) => Some(&item.bare_item),
        Some((_, ListEntry::InnerList(_))) | None => None,
    };
    assert_eq!(
        directives.public,
        matches!(item("public"), Some(BareItem::Boolean(true)))
    );
    for (key, delta) in [
        ("max-age", directives.max_age),
        ("s-maxage", directives.s_maxage),
        ("stale-while-revalidate", directives.stale_while_revalidate),
        ("stale-if-error", directives.stale_if_error),
    ] {
        assert_eq!(delta.is_some(), said(key).is_some(), "{key}");
        let seconds = match item(key) {
            Some(BareItem::Integer(number)) => i64::from(*number).clamp(0, 1 << 31),
            _ => 0,
        };
        assert_eq!(
            delta.map_or(0, |delta| i64::from(delta.as_secs())),
            seconds,
            "{key}"
        );
    }
});
