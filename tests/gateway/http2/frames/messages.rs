//! Messages (RFC 9113 §8).

use super::Expected::Status;
use super::{MALFORMED, PROTOCOL, check, raw, with};
use crate::support::TOKEN;
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, block, frame, get};

#[tokio::test]
async fn section_8_malformed_requests() {
    let [method, scheme, authority, path] = get(TOKEN);
    let length = |value| {
        frame(
            HEADERS,
            END_HEADERS,
            1,
            &block(&[method, scheme, authority, path, ("content-length", value)]),
        )
    };
    check(vec![
        (
            "§8.1.1 a shorter body than content-length",
            [length("4"), frame(DATA, END_STREAM, 1, b"xyz")].concat(),
            MALFORMED,
        ),
        (
            "§8.1.1 content-length without a body",
            with(&[("content-length", "4")]),
            MALFORMED,
        ),
        (
            "§8.1.1 content-length that is no number",
            with(&[("content-length", "x")]),
            MALFORMED,
        ),
        (
            "§8.1.1 two lengths",
            with(&[("content-length", "0"), ("content-length", "1")]),
            MALFORMED,
        ),
        (
            "§8.2.1 a name in upper case",
            with(&[("X-Y", "1")]),
            PROTOCOL,
        ),
        (
            "§8.2.1 a name with a blank",
            with(&[("x y", "1")]),
            PROTOCOL,
        ),
        ("§8.2.1 an empty name", with(&[("", "1")]), PROTOCOL),
        ("§8.2.1 a value with LF", with(&[("x", "a\nb")]), PROTOCOL),
        ("§8.2.1 a value with NUL", with(&[("x", "a\0b")]), PROTOCOL),
        (
            "§8.2.1 a value with a blank before it",
            with(&[("x", " 1")]),
            Status(400),
        ),
        (
            "§8.2.1 a value with a tab after it",
            with(&[("x", "1\t")]),
            Status(400),
        ),
        (
            "§8.2.2 connection",
            with(&[("connection", "close")]),
            MALFORMED,
        ),
        ("§8.2.2 keep-alive", with(&[("keep-alive", "1")]), MALFORMED),
        (
            "§8.2.2 proxy-connection",
            with(&[("proxy-connection", "close")]),
            MALFORMED,
        ),
        (
            "§8.2.2 transfer-encoding",
            with(&[("transfer-encoding", "chunked")]),
            MALFORMED,
        ),
        ("§8.2.2 upgrade", with(&[("upgrade", "h2c")]), MALFORMED),
        (
            "§8.2.2 te other than trailers",
            with(&[("te", "gzip")]),
            MALFORMED,
        ),
        (
            "§8.2.2 te of trailers",
            with(&[("te", "trailers")]),
            Status(200),
        ),
        (
            "§8.2.3 crumbs of cookies",
            with(&[("cookie", "a=1"), ("cookie", "b=2")]),
            Status(200),
        ),
        (
            "§8.2.3 more crumbs of a cookie than fields are allowed",
            with(&[("cookie", "a=1"); 150]),
            Status(200),
        ),
        (
            "§8.3 an unknown pseudo-header field",
            raw(&[method, scheme, authority, path, (":x", "1")]),
            PROTOCOL,
        ),
        (
            "§8.3 a pseudo-header field after another field",
            raw(&[method, scheme, ("x", "1"), authority, path]),
            MALFORMED,
        ),
        (
            "§8.3 a pseudo-header field twice",
            raw(&[method, scheme, authority, path, path]),
            MALFORMED,
        ),
        (
            "§8.3 a response's pseudo-header field",
            raw(&[method, scheme, authority, path, (":status", "200")]),
            MALFORMED,
        ),
        (
            "§8.3.1 no method",
            raw(&[scheme, authority, path]),
            MALFORMED,
        ),
        (
            "§8.3.1 no scheme",
            raw(&[method, authority, path]),
            MALFORMED,
        ),
        (
            "§8.3.1 no path",
            raw(&[method, scheme, authority]),
            MALFORMED,
        ),
        (
            "§8.3.1 an empty path",
            raw(&[method, scheme, authority, (":path", "")]),
            MALFORMED,
        ),
        (
            "§8.3.1 a path without a slash",
            raw(&[method, scheme, authority, (":path", "runes")]),
            MALFORMED,
        ),
        (
            "§8.3.1 an asterisk",
            raw(&[(":method", "OPTIONS"), scheme, authority, (":path", "*")]),
            Status(400),
        ),
        (
            "§8.3.1 neither :authority nor host",
            raw(&[method, scheme, path]),
            Status(400),
        ),
        (
            "§8.3.1 host in place of :authority",
            raw(&[method, scheme, path, ("host", "localhost")]),
            Status(200),
        ),
        (
            "§8.3.1 host beside :authority",
            with(&[("host", "LOCALHOST:80")]),
            Status(200),
        ),
        (
            "§8.3.1 host other than :authority",
            with(&[("host", "elsewhere")]),
            Status(400),
        ),
        (
            "§8.3.1 two hosts",
            with(&[("host", "localhost"), ("host", "localhost")]),
            Status(400),
        ),
        (
            "RFC 9112 §6.3 two lengths",
            with(&[("content-length", "0"), ("content-length", "0")]),
            Status(400),
        ),
        (
            "§8.3.1 userinfo",
            raw(&[method, scheme, (":authority", "u@localhost"), path]),
            Status(400),
        ),
        (
            "§8.3.1 another scheme",
            raw(&[method, (":scheme", "ftp"), authority, path]),
            Status(400),
        ),
        (
            "§8.5 CONNECT",
            raw(&[(":method", "CONNECT"), authority]),
            Status(400),
        ),
        (
            "§8.5 CONNECT with a path",
            raw(&[(":method", "CONNECT"), scheme, authority, path]),
            MALFORMED,
        ),
        (
            "RFC 8441 §4 an extended CONNECT",
            raw(&[
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                scheme,
                authority,
                path,
            ]),
            MALFORMED,
        ),
    ])
    .await;
}
