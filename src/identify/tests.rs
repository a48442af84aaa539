//! Tables of forwarding fields.

use http::HeaderName;

use super::*;

fn trust() -> TrustedProxies {
    TrustedProxies {
        networks: ["10.0.0.0/8", "2001:db8:1::/48"]
            .map(|net| net.parse().unwrap())
            .to_vec(),
    }
}

fn fields(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in pairs {
        fields.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            value.parse().unwrap(),
        );
    }
    fields
}

#[test]
fn quoted_strings_in_forwarded() {
    // Delimiters in a quoted string have no meaning (RFC 9110 §5.6.4), and a
    // malformed element is not believed.
    let proxy = "10.0.0.1";
    for (lines, client) in [
        (
            &[r#"for=203.0.113.9;by="a, for=1.1.1.1""#][..],
            "203.0.113.9",
        ),
        (&[r#"by="x;for=1.1.1.1";for=203.0.113.9"#], "203.0.113.9"),
        (&[r#"by="x\";for=1.1.1.1";for=203.0.113.9"#], "203.0.113.9"),
        (&[r#"by="x\\";for=203.0.113.9"#], "203.0.113.9"),
        (&[r#"for="203.0.113.9""#], "203.0.113.9"),
        (&[r#"for="203.0.1\13.9:80""#], "203.0.113.9"),
        (&[r#";for=203.0.113.9; proto=http;"#], "203.0.113.9"),
        (&["for=1.1.1.1, , for=203.0.113.9,"], "203.0.113.9"),
        (&[r#"for=1.1.1.1;x=", for=203.0.113.9"#], proxy),
        (&[r#"for=1.1.1.1;x=", for="203.0.113.9""#], proxy),
        (&[r#"for=1.1.1.1;x="\", for=203.0.113.9"#], proxy),
        (&[r#"for="203.0.113.9"x"#], proxy),
        (&[r#"for=20"3.0.1"13.9"#], proxy),
        (&[r#"for="203.0.113.9;x=y"#], proxy),
        (&["for=203.0.113.9;secret"], proxy),
        // Two clients in one element.
        (&["for=1.1.1.1;for=203.0.113.9"], proxy),
        (&["for=203.0.113.9;FOR=203.0.113.9"], proxy),
        (&["for=203.0.113.9, for=1.1.1.1;for=10.2.3.4"], proxy),
        // A quote does not reach into another line.
        (&[r#"for=1.1.1.1;x=""#, "for=203.0.113.9"], "203.0.113.9"),
        (
            &["for=203.0.113.9", r#"for=10.2.3.4;x="a,b""#],
            "203.0.113.9",
        ),
        (&[r#"for=1.1.1.1;x=""#, "for=10.2.3.4"], proxy),
    ] {
        let pairs: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
        let found = trust().client(proxy.parse().unwrap(), &fields(&pairs));
        assert_eq!(found.to_string(), client, "{lines:?}");
    }
}

#[test]
fn the_hops_of_a_request() {
    let xff = "x-forwarded-for";
    type Row<'r> = (&'r str, &'r [(&'r str, &'r str)], &'r [&'r str]);
    let rows: &[Row<'_>] = &[
        ("192.0.2.1", &[], &["192.0.2.1"]),
        ("::ffff:192.0.2.1", &[], &["192.0.2.1"]),
        ("192.0.2.1", &[(xff, "203.0.113.9")], &["192.0.2.1"]),
        ("10.0.0.1", &[], &["10.0.0.1"]),
        (
            "10.0.0.1",
            &[(xff, "203.0.113.9")],
            &["203.0.113.9", "10.0.0.1"],
        ),
        // Addresses before the client are only claims.
        (
            "10.0.0.1",
            &[(xff, "1.1.1.1, 203.0.113.9, 10.2.3.4")],
            &["203.0.113.9", "10.2.3.4", "10.0.0.1"],
        ),
        (
            "10.0.0.1",
            &[(xff, "1.1.1.1"), (xff, "203.0.113.9")],
            &["203.0.113.9", "10.0.0.1"],
        ),
        (
            "10.0.0.1",
            &[(xff, "10.9.9.9, 10.2.3.4")],
            &["10.9.9.9", "10.2.3.4", "10.0.0.1"],
        ),
        ("10.0.0.1", &[(xff, "203.0.113.9, junk")], &["10.0.0.1"]),
        (
            "10.0.0.1",
            &[(
                "forwarded",
                "for=1.1.1.1, for=\"[2001:db8:2::7]:1\";proto=https",
            )],
            &["2001:db8:2::7", "10.0.0.1"],
        ),
        (
            "10.0.0.1",
            &[(xff, "203.0.113.9"), ("forwarded", "for=1.1.1.1")],
            &["10.0.0.1"],
        ),
    ];
    for (peer, pairs, expected) in rows {
        let found = trust().hops(peer.parse().unwrap(), &fields(pairs));
        let found: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, *expected, "{peer} {pairs:?}");
    }
}

#[test]
fn the_client_of_a_request() {
    type Row = (
        &'static str,
        &'static [(&'static str, &'static str)],
        &'static str,
    );
    let rows: &[Row] = &[
        ("192.0.2.1", &[], "192.0.2.1"),
        // Untrusted: its fields are ignored.
        (
            "192.0.2.1",
            &[("x-forwarded-for", "203.0.113.9")],
            "192.0.2.1",
        ),
        (
            "192.0.2.1",
            &[("forwarded", "for=203.0.113.9")],
            "192.0.2.1",
        ),
        // Trusted: read from the right.
        (
            "10.0.0.1",
            &[("x-forwarded-for", "203.0.113.9")],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "1.1.1.1, 203.0.113.9")],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "203.0.113.9, 10.2.3.4")],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "10.9.9.9, 10.2.3.4")],
            "10.9.9.9",
        ),
        (
            "10.0.0.1",
            &[
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-for", "203.0.113.9"),
            ],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "203.0.113.9:4711")],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("x-forwarded-for", "203.0.113.9, junk")],
            "10.0.0.1",
        ),
        ("10.0.0.1", &[("x-forwarded-for", "")], "10.0.0.1"),
        (
            "10.0.0.1",
            &[("forwarded", "for=203.0.113.9;proto=https")],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[("forwarded", "for=1.1.1.1, For=\"[2001:db8:2::7]:1234\"")],
            "2001:db8:2::/64",
        ),
        ("10.0.0.1", &[("forwarded", "for=unknown")], "10.0.0.1"),
        ("10.0.0.1", &[("forwarded", "proto=https")], "10.0.0.1"),
        // Both: believed only where they agree.
        (
            "10.0.0.1",
            &[
                ("x-forwarded-for", "203.0.113.9"),
                ("forwarded", "for=203.0.113.9"),
            ],
            "203.0.113.9",
        ),
        (
            "10.0.0.1",
            &[
                ("x-forwarded-for", "203.0.113.9"),
                ("forwarded", "for=1.1.1.1"),
            ],
            "10.0.0.1",
        ),
        // IPv6 by /64, IPv4-mapped as IPv4.
        ("2001:db8:7:8:9:a:b:c", &[], "2001:db8:7:8::/64"),
        ("::ffff:192.0.2.1", &[], "192.0.2.1"),
        (
            "::ffff:10.0.0.1",
            &[("x-forwarded-for", "203.0.113.9")],
            "203.0.113.9",
        ),
    ];
    for (peer, pairs, client) in rows {
        let found = trust().client(peer.parse().unwrap(), &fields(pairs));
        assert_eq!(found.to_string(), *client, "{peer} {pairs:?}");
    }
}
