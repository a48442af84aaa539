//! Tables of framings, and messages split at every byte.

use super::*;

const BOUNDS: HeadBounds = HeadBounds {
    head: 512,
    target: 128,
    fields: 8,
};

fn progress(text: &str) -> ScanProgress {
    RequestScanner::new(BOUNDS).scan(text.as_bytes())
}

#[test]
fn heads_that_are_refused() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(200));
    let endless = format!("GET /{}", "x".repeat(300));
    let big = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n",
        "y".repeat(600)
    );
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(9));
    let rows: &[(&str, HeadFault)] = &[
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", HeadFault::BareLf),
        ("GET / HTTP/1.1\r\nHost: a\n\r\n", HeadFault::BareLf),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", HeadFault::BareLf),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nx: a\rb\r\n\r\n",
            HeadFault::BareCr,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nx: 1\r\n 2\r\n\r\n",
            HeadFault::ObsFold,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nx : 1\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n: 1\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nnothing\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            HeadFault::TwoFramings,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            HeadFault::TwoFramings,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            HeadFault::BadContentLength,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\n",
            HeadFault::BadContentLength,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n",
            HeadFault::BadContentLength,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
            HeadFault::BadContentLength,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            HeadFault::BadTransferEncoding,
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            HeadFault::BadTransferEncoding,
        ),
        ("GET / HTTP/1.1\r\n\r\n", HeadFault::HostMissing),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            HeadFault::HostInvalid,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            HeadFault::HostInvalid,
        ),
        (
            "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
            HeadFault::HostInvalid,
        ),
        (
            "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
            HeadFault::BadRequestLine,
        ),
        (
            "G\u{e4}T / HTTP/1.1\r\nHost: a\r\n\r\n",
            HeadFault::BadRequestLine,
        ),
        ("GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault::BadTarget),
        ("GET /a<b HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault::BadTarget),
        ("G ET/ HTTP/1.1\r\nHost: a\r\n\r\n", HeadFault::BadTarget),
        (
            "GET /a?\u{1} HTTP/1.1\r\nHost: a\r\n\r\n",
            HeadFault::BadTarget,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nA(b): c\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nb: \u{0}\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nb: \u{7f}\r\n\r\n",
            HeadFault::BadFieldLine,
        ),
        ("GET /\r\n\r\n", HeadFault::BadRequestLine),
        (
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            HeadFault::BadRequestLine,
        ),
        (
            "GET / x HTTP/1.1\r\nHost: a\r\n\r\n",
            HeadFault::BadRequestLine,
        ),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", HeadFault::BadVersion),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n", HeadFault::BadVersion),
        ("\u{16}\u{3}\u{1}", HeadFault::BadRequestLine),
        ("\u{16}", HeadFault::BadRequestLine),
        ("\u{0}", HeadFault::BadRequestLine),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: x, upgrade\r\n\r\n",
            HeadFault::Upgrade,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nconnection: Upgrade\r\nupgrade: h2c ,TLS/1.3\r\n\r\n",
            HeadFault::Upgrade,
        ),
        (&long, HeadFault::TargetTooLong),
        (&endless, HeadFault::TargetTooLong),
        (&big, HeadFault::HeadTooLarge),
        (&many, HeadFault::HeadTooLarge),
    ];
    for (text, fault) in rows {
        let found = progress(text);
        assert_eq!(found.fault, Some(*fault), "{text:?}");
        assert_eq!(found.passed, 0, "{text:?}");
    }
}

#[test]
fn a_malformed_chunk_is_refused_after_its_head_has_passed() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, passed) in [
        ("x\r\n", 0),
        ("-1\r\n", 0),
        ("0x3\r\n", 0),
        ("3 \r\nabcX\r\n", 7),
        ("3\r\nabc\n", 6),
        ("0\r\nbad\r\n", 3),
    ] {
        let found = progress(&format!("{head}{body}"));
        assert!(found.fault.is_some(), "{body:?}");
        assert_eq!(found.passed, head.len() + passed, "{body:?}");
    }
}

#[test]
fn an_upgrade_that_is_not_requested_passes() {
    for fields in [
        "upgrade: websocket\r\n",
        "connection: upgrade\r\n",
        "upgrade: h2c\r\nconnection: Upgrade, HTTP2-Settings\r\n",
        "upgrade: ,\r\nconnection: upgrade\r\n",
        "upgrade: websocket\r\nconnection: upgraded\r\n",
        "upgrade: websocket\r\nconnection: x\r\n",
        "upgrades: websocket\r\nconnection: upgrade\r\n",
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let found = progress(&text);
        assert_eq!((found.fault, found.passed), (None, text.len()), "{fields}");
    }
    let old = "GET / HTTP/1.0\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    assert_eq!(progress(old).fault, None, "HTTP/1.0 has no Upgrade");
}

#[test]
fn valid_messages_pass_however_they_are_split() {
    let text = "\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n\
                POST /b HTTP/1.1\r\nhost: [::1]:80\r\ncontent-length: 5\r\n\r\nGET /\
                PUT /c HTTP/1.1\r\nHOST: b\r\ntransfer-encoding: Chunked\r\n\r\n\
                3;x=y\r\nab\n\r\n0\r\nx: y\r\n\r\n\
                GET /d HTTP/1.0\r\n\r\n";
    let whole = progress(text);
    assert_eq!(
        (whole.passed, whole.fault, whole.heads),
        (text.len(), None, 4)
    );
    for size in 1..text.len() {
        let mut scan = RequestScanner::new(BOUNDS);
        let (mut held, mut passed, mut heads) = (Vec::new(), 0, 0);
        for piece in text.as_bytes().chunks(size) {
            held.extend_from_slice(piece);
            let found = scan.scan(&held);
            assert_eq!(found.fault, None, "in pieces of {size}");
            held.drain(..found.passed);
            passed += found.passed;
            heads += found.heads;
        }
        assert_eq!((passed, heads), (text.len(), 4), "in pieces of {size}");
    }
}

#[test]
fn lines_that_are_too_long_are_refused_however_they_are_split() {
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, fault) in [
        (format!("1;{}\r\n", "x".repeat(1020)), None),
        (
            format!("1;{}\r\n", "x".repeat(1021)),
            Some(HeadFault::BadChunk),
        ),
        (format!("0\r\nx:{}\r\n", "y".repeat(508)), None),
        (
            format!("0\r\nx:{}\r\n", "y".repeat(509)),
            Some(HeadFault::HeadTooLarge),
        ),
    ] {
        let text = format!("{head}{body}");
        let whole = progress(&text);
        assert_eq!(whole.fault, fault, "{} bytes", body.len());
        let mut scan = RequestScanner::new(BOUNDS);
        let (mut passed, mut cut) = (0, None);
        for come in 1..=text.len() {
            let found = scan.scan(&text.as_bytes()[passed..come]);
            passed += found.passed;
            cut = cut.or(found.fault);
        }
        assert_eq!((passed, cut), (whole.passed, fault));
    }
}

#[test]
fn messages_before_a_fault_pass() {
    let good = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let found = progress(&format!("{good}GET / HTTP/1.1\nHost: a\r\n\r\n"));
    assert_eq!((found.passed, found.heads), (good.len(), 1));
    assert_eq!(found.fault, Some(HeadFault::BareLf));
}

#[test]
fn each_fault_has_its_code() {
    for fault in HeadFault::ALL {
        assert_eq!(HeadFault::from_code(fault as u8), Some(fault));
    }
    assert_eq!(HeadFault::from_code(0), None);
    assert_eq!(HeadFault::from_code(99), None);
}

/// Lines of heads, valid and invalid.
fn heads() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::{Strategy, prop};
    let line = prop::sample::select(vec![
        "GET / HTTP/1.1\r\n",
        "GET /a/b?c=%20 HTTP/1.1\r\n",
        "GET /a|b HTTP/1.1\r\n",
        "GET /#a HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "GET /\tHTTP/1.1\r\n",
        "host: a\r\n",
        "Host: 127.0.0.1:8080 \r\n",
        "host:\r\n",
        "host: a/b\r\n",
        "host: a\n",
        "accept-charset: utf-8, \u{fc}\r\n",
        "if-modified-since: a long time ago, or so\r\n",
        "x: a\tb\r\n",
        "x: \u{7f}12345678\r\n",
        "x: 1234567\r8\r\n",
        "y: 123456789012345678901234567890\r\n",
        "y : 1\r\n",
        " y: 1\r\n",
        "z\r\n",
        "content-length: 3\r\n",
        "transfer-encoding: chunked\r\n",
        "\r\n",
        "\r\n",
    ]);
    prop::collection::vec(line, 0..6).prop_map(|lines| lines.concat())
}

proptest::proptest! {
    /// The fast path accepts no head that the check by lines refuses or reads
    /// otherwise.
    #[test]
    fn the_fast_path_agrees_with_the_check_by_lines(
        head in heads(),
        first in 0..3_usize,
        fields in 1..4_usize,
        most in 20..200_usize,
    ) {
        let begins = ["GET / HTTP/1.1\r\nhost: a\r\n", "GET / HTTP/1.1\r\n", ""];
        let text = format!("{}{head}\r\nGET", begins[first]);
        let bounds = HeadBounds { head: most, target: 8, fields };
        if let Some(length) = plain_head(text.as_bytes(), bounds) {
            let by_lines = RequestScanner::new(bounds).head_by_lines(text.as_bytes());
            proptest::prop_assert_eq!(by_lines, Ok(Some((length, ScanState::Head))));
        }
    }
}
