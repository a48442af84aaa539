//! Forwarded and X-Forwarded-For: without trust nothing that is said counts,
//! and what a trusted proxy says stands against whatever a client said before.
//! An input's lines are those of one of the two, by its first byte.

#![no_main]

use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName};
use ordgate::identify::{Client, TrustedProxies};
use ordgate_fuzz::{field, lines};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, text)) = input.split_first() else {
        return;
    };
    let address = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let trust = TrustedProxies {
        networks: ["10.0.0.0/8", "2001:db8:1::/48"]
            .map(|net| net.parse().expect("a network"))
            .to_vec(),
    };
    let (proxy, stranger, client) = (
        address("10.0.0.1"),
        address("192.0.2.1"),
        address("203.0.113.9"),
    );
    let (name, other) = match choice & 1 == 0 {
        true => (FORWARDED, X_FORWARDED_FOR),
        false => (X_FORWARDED_FOR, FORWARDED),
    };
    let said = field(&name, lines(text));
    let by_proxy = trust.client(proxy, &said);
    assert_eq!(TrustedProxies::default().client(proxy, &said), Client::from(proxy));
    assert_eq!(trust.client(stranger, &said), Client::from(stranger));

    // Where the two fields disagree, neither counts.
    let mut both = said.clone();
    let claim = if other == FORWARDED {
        "for=203.0.113.9"
    } else {
        "203.0.113.9"
    };
    both.insert(&other, claim.parse().expect("a value"));
    let agreed = trust.client(proxy, &both);
    let expected = match said.is_empty() || by_proxy == Client::from(client) {
        true => client,
        false => proxy,
    };
    assert_eq!(agreed, Client::from(expected));

    // A proxy adds what it sees, as a line or at the end of one.
    let ways: &[&str] = match name == FORWARDED {
        true => &[
            "for=203.0.113.9",
            "for=\"203.0.113.9:80\";by=\"a, b\"",
            "proto=http;for=203.0.113.9",
        ],
        false => &["203.0.113.9", "203.0.113.9:4711"],
    };
    for way in ways {
        let mut line = said.clone();
        line.append(&name, way.parse().expect("a value"));
        assert_eq!(trust.client(proxy, &line), Client::from(client), "{way}");

        let mut lines: Vec<_> = said.get_all(&name).iter().collect();
        let Some(last) = lines.pop() else { continue };
        let mut longer = last.as_bytes().to_vec();
        longer.extend_from_slice(b", ");
        longer.extend_from_slice(way.as_bytes());
        let mut all: Vec<_> = lines.iter().map(|line| line.as_bytes()).collect();
        all.push(&longer);
        let found = trust.client(proxy, &field(&name, all));
        // A quote that the client left open makes the line unreadable; it never
        // makes another caller.
        let allowed = [Client::from(client), Client::from(proxy)];
        assert!(allowed.contains(&found), "{way}: {found:?}");
    }
    assert!(!by_proxy.to_string().is_empty());
});
