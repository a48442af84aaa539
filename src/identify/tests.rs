//! Tables of the fields in which proxies report their clients.

use super::*;

/// The addresses that a request has come through.
fn hops(write_forwarded: bool, peer: &str, lines: &[(&'static str, &str)]) -> String {
    let trust = TrustedProxies {
        networks: ["10.0.0.0/8", "2001:db8:1::/48"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
        write_forwarded,
    };
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
        fields.append(HeaderName::from_static(name), value);
    }
    let peer = peer.parse().unwrap();
    let hops = trust.hops(peer, &fields);
    assert_eq!(trust.client(peer, &fields), hops[0].into());
    let hops: Vec<_> = hops.iter().map(ToString::to_string).collect();
    hops.join(" ")
}

/// Checks a table of peers, lines of the field, and hops.
fn check(name: &'static str, table: &str) {
    for row in table.trim().lines() {
        let [peer, lines, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let lines = lines.split(" / ").map(|line| (name, line));
        let found = hops(name == "forwarded", peer, &lines.collect::<Vec<_>>());
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn a_list_of_addresses_is_read_from_the_right() {
    check("x-forwarded-for", ADDRESSES);
}

// Nobody else is believed; addresses before the client's are only claims; where something else
// than an address is reported, the client is unknown.
const ADDRESSES: &str = "
192.0.2.1 | 203.0.113.9 | 192.0.2.1
::ffff:192.0.2.1 | 203.0.113.9 | 192.0.2.1
10.0.0.1 |  | 10.0.0.1
10.0.0.1 | 203.0.113.9 | 203.0.113.9 10.0.0.1
::ffff:10.0.0.1 | 203.0.113.9 | 203.0.113.9 10.0.0.1
10.0.0.1 | 203.0.113.9:4711 | 203.0.113.9 10.0.0.1
10.0.0.1 | [2001:db8:2::7]:80 | 2001:db8:2::7 10.0.0.1
10.0.0.1 | [2001:db8:2::7] | 2001:db8:2::7 10.0.0.1
10.0.0.1 | 1.1.1.1, 203.0.113.9 | 203.0.113.9 10.0.0.1
10.0.0.1 | 1.1.1.1 / 203.0.113.9 | 203.0.113.9 10.0.0.1
10.0.0.1 | é, 203.0.113.9,,  | 203.0.113.9 10.0.0.1
10.0.0.1 | 1.1.1.1, 203.0.113.9, 10.2.3.4 | 203.0.113.9 10.2.3.4 10.0.0.1
10.0.0.1 | 10.9.9.9, 2001:db8:1::1 | 10.9.9.9 2001:db8:1::1 10.0.0.1
10.0.0.1 | 203.0.113.9, junk | 10.0.0.1
10.0.0.1 | junk, 10.2.3.4 | 10.0.0.1
";

#[test]
fn forwarded_is_read_from_the_right() {
    check("forwarded", FORWARDED_LINES);
}

// An element with two clients is not read, nor is a part of a quoted string; a quote that a client
// leaves open does not reach what the proxy adds.
const FORWARDED_LINES: &str = r#"
10.0.0.1 | for=203.0.113.9;proto=https | 203.0.113.9 10.0.0.1
10.0.0.1 | For="203.0.113.9:80" | 203.0.113.9 10.0.0.1
10.0.0.1 | for=1.1.1.1, for="[2001:db8:2::7]:1" | 2001:db8:2::7 10.0.0.1
10.0.0.1 | for=1.1.1.1, , for=203.0.113.9, | 203.0.113.9 10.0.0.1
10.0.0.1 | ;for=203.0.113.9; proto=http; | 203.0.113.9 10.0.0.1
10.0.0.1 | for=203.0.113.9, for=10.2.3.4 | 203.0.113.9 10.2.3.4 10.0.0.1
10.0.0.1 | for=unknown | 10.0.0.1
10.0.0.1 | proto=https | 10.0.0.1
10.0.0.1 | for=203.0.113.9;secret | 10.0.0.1
10.0.0.1 | for=1.1.1.1;for=203.0.113.9 | 10.0.0.1
10.0.0.1 | for=203.0.113.9, for=1.1.1.1;for=10.2.3.4 | 10.0.0.1
10.0.0.1 | for=1.1.1.1;x=", for=203.0.113.9 | 203.0.113.9 10.0.0.1
10.0.0.1 | for=1.1.1.1;x=", for="203.0.113.9" | 203.0.113.9 10.0.0.1
10.0.0.1 | for=1.1.1.1;x="\ / for=203.0.113.9 | 203.0.113.9 10.0.0.1
10.0.0.1 | for=203.0.113.9;by="a, for=1.1.1.1" | 10.0.0.1
10.0.0.1 | for=203.0.113.9;host="a, for=1.1.1.1;x=";by=b | 10.0.0.1
10.0.0.1 | host="a, for=1.1.1.1;x=\"" | 10.0.0.1
10.0.0.1 | by="x;for=1.1.1.1";for=203.0.113.9 | 10.0.0.1
10.0.0.1 | for="203.0.1\13.9" | 10.0.0.1
10.0.0.1 | for="203.0.113.9"x | 10.0.0.1
10.0.0.1 | for="203.0.113.9;x=y | 10.0.0.1
"#;

#[test]
fn only_the_field_that_the_proxy_writes_is_read() {
    let lines = [
        ("x-forwarded-for", "203.0.113.8"),
        ("forwarded", "for=203.0.113.9"),
    ];
    assert_eq!(hops(false, "10.0.0.1", &lines), "203.0.113.8 10.0.0.1");
    assert_eq!(hops(true, "10.0.0.1", &lines), "203.0.113.9 10.0.0.1");
    assert_eq!(hops(false, "10.0.0.1", &lines[1..]), "10.0.0.1");
    assert_eq!(hops(true, "10.0.0.1", &lines[..1]), "10.0.0.1");
}

#[test]
fn ipv6_counts_by_its_64_bits() {
    let client = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(
        client("2001:db8:7:8:9:a:b:c").to_string(),
        "2001:db8:7:8::/64"
    );
    assert_eq!(client("2001:db8:7:8::1"), client("2001:db8:7:8:ffff::"));
    assert_ne!(client("2001:db8:7:8::1"), client("2001:db8:7:9::1"));
    assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
}
