//! Compression: what is sent in which coding, once for each stored response, and
//! what its tags mean.

mod bounds;
mod plain;

use std::io::Read;

use crate::support::{Answer, Gateway, Reply, Setup, TOKEN, Upstream, until};

/// The codings, as they are named in fields.
const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

/// A JSON body of about this many bytes that is easy to compress.
fn text(bytes: usize) -> String {
    let items: Vec<_> = (0..bytes / 32)
        .map(|n| format!("{{\"number\":{n:>19}}}"))
        .collect();
    format!("{{\"items\":[{}]}}", items.join(","))
}

/// The upstream, which answers everything with a body of this many bytes.
fn upstream(bytes: usize) -> Upstream {
    let upstream = Upstream::start();
    upstream.always(Reply::json(text(bytes)));
    upstream
}

/// Decodes a body by its own coding.
fn decoded(answer: &Answer) -> Vec<u8> {
    let (mut body, bytes) = (Vec::new(), &answer.body[..]);
    match answer.field("content-encoding") {
        None => body.extend_from_slice(bytes),
        Some("zstd") => zstd::stream::copy_decode(bytes, &mut body).unwrap(),
        Some("br") => drop(
            brotli::Decompressor::new(bytes, 4096)
                .read_to_end(&mut body)
                .unwrap(),
        ),
        Some("gzip") => drop(
            flate2::read::GzDecoder::new(bytes)
                .read_to_end(&mut body)
                .unwrap(),
        ),
        Some(other) => panic!("{other}"),
    }
    body
}

/// The tag of a body in a coding.
fn tag_in(tag: &str, coding: &str) -> String {
    format!("{}-{coding}\"", tag.strip_suffix('"').unwrap())
}

/// How many bodies came to a result, in all codings.
fn count(gateway: &Gateway, result: &str) -> u64 {
    let codings = CODINGS.map(|coding| format!("/compression/codings/{coding}/{result}"));
    codings.iter().map(|figure| gateway.figure(figure)).sum()
}

/// Has a stored response compressed: it is stored, and then wanted in a coding.
async fn compress(gateway: &Gateway, target: &str, coding: &str) {
    let before = count(gateway, "made");
    gateway.get(target).await;
    let fields = [("accept-encoding", coding)];
    gateway.request("GET", target, &fields).await;
    until("it is compressed", || count(gateway, "made") > before).await;
}

#[tokio::test]
async fn a_stored_answer_is_compressed_once_in_each_coding() {
    let upstream = upstream(8000);
    let gateway = Setup::before(&upstream).manual().start();
    let plain = gateway.get(TOKEN).await;
    assert_eq!(plain.must("vary"), "accept-encoding", "on a miss");
    let tag = plain.must("etag").to_owned();
    for (made, coding) in (1..).zip(CODINGS) {
        let accept = [("accept-encoding", coding)];
        let first = gateway.request("GET", TOKEN, &accept).await;
        assert_eq!(first.body, plain.body, "it does not wait");
        assert_eq!(first.must("etag"), tag);
        until("it is compressed", || count(&gateway, "made") == made).await;
        let answer = gateway.request("GET", TOKEN, &accept).await;
        assert_eq!(answer.must("content-encoding"), coding);
        assert_eq!(answer.must("etag"), tag_in(&tag, coding));
        assert_eq!(answer.number("content-length"), answer.body.len() as u64);
        assert!(answer.body.len() < plain.body.len() / 4, "{coding}");
        assert_eq!(decoded(&answer), plain.body, "{coding}");
        for name in [
            "vary",
            "content-type",
            "cache-control",
            "cache-status",
            "age",
        ] {
            assert_eq!(
                answer.must(name),
                first.must(name),
                "{name} is that of the body as it is"
            );
        }
        let head = gateway.request("HEAD", TOKEN, &accept).await;
        let without = |answer: &Answer| {
            let mut fields = answer.fields.clone();
            fields.retain(|(name, _)| !["x-request-id", "ratelimit", "date"].contains(&&**name));
            fields.sort_unstable();
            fields
        };
        assert_eq!(without(&head), without(&answer), "HEAD has the same header");
        let other = gateway.get(TOKEN).await;
        assert_eq!(other.field("content-encoding"), None, "nobody else gets it");
        assert_eq!(other.must("vary"), "accept-encoding");
        assert_eq!(other.must("etag"), tag);
    }
    assert_eq!(upstream.count(), 1);
    let status = gateway.status();
    assert!(status["compression"]["codings"]["gzip"]["bytes_before"].as_u64() > Some(7000));
}

#[tokio::test]
async fn every_tag_of_a_body_is_answered_with_304_and_the_tag_that_would_be_sent() {
    let upstream = upstream(8000);
    let gateway = Setup::before(&upstream).manual().start();
    let tag = gateway.get(TOKEN).await.must("etag").to_owned();
    compress(&gateway, TOKEN, "br").await;
    let tags = [
        tag.clone(),
        tag_in(&tag, "br"),
        tag_in(&tag, "zstd"),
        tag_in(&tag, "gzip"),
        format!("\"other\", W/{}", tag_in(&tag, "gzip")),
    ];
    for known in &tags {
        for (accept, expected) in [
            ("br", tag_in(&tag, "br")),
            // One that ordgate does not have.
            ("deflate", tag.clone()),
            ("identity", tag.clone()),
        ] {
            for method in ["GET", "HEAD"] {
                let fields = [("accept-encoding", accept), ("if-none-match", known)];
                let answer = gateway.request(method, TOKEN, &fields).await;
                assert_eq!(answer.status, 304, "{known} {accept}");
                assert_eq!(answer.must("etag"), expected, "{known} {accept}");
                assert_eq!(answer.must("vary"), "accept-encoding");
                assert_eq!(answer.field("content-encoding"), None);
                assert_eq!(answer.field("content-type"), None);
            }
        }
    }
    let none = [
        tag_in(&tag, "deflate"),
        tag_in(&tag, "br-br"),
        tag_in(&tag, ""),
        "\"other-br\"".to_owned(),
    ];
    for unknown in &none {
        let fields = [("accept-encoding", "br"), ("if-none-match", &**unknown)];
        let answer = gateway.request("GET", TOKEN, &fields).await;
        assert_eq!(answer.status, 200, "{unknown}");
        assert_eq!(answer.must("content-encoding"), "br");
    }
}

/// Requests a target several times in a coding, and sees to it that it is never
/// compressed, nor tried to be.
async fn never_compressed(gateway: &Gateway, target: &str, why: &str) {
    let before = count(gateway, "made") + count(gateway, "not_worthwhile");
    for _request in 0..4 {
        let fields = [("accept-encoding", "gzip")];
        let answer = gateway.request("GET", target, &fields).await;
        assert_eq!(answer.field("content-encoding"), None, "{why}");
    }
    // One after it is compressed.
    compress(gateway, &format!("{target}-last"), "zstd").await;
    let after = count(gateway, "made") + count(gateway, "not_worthwhile");
    assert_eq!(after, before + 1, "{why}");
}

#[tokio::test]
async fn what_must_not_or_need_not_be_compressed_is_sent_as_it_is() {
    let upstream = upstream(8000);
    let path = |name: &str| format!("/ordinals/v1/brc-20/tokens/{name}");
    let json = "content-type: application/json\r\n";
    let fields = format!("{json}cache-control: public, No-Transform\r\n");
    upstream.once(&path("fixed"), Reply::with(200, &fields, text(8000)));
    upstream.once(&path("small"), Reply::json(text(900)));
    upstream.once(&path("missing"), Reply::status(404, text(8000)));
    let gateway = Setup::before(&upstream).manual().start();
    for (name, why) in [
        ("fixed", "the upstream forbids it"),
        ("small", "it is smaller than 1 KiB"),
        ("missing", "it is an error"),
    ] {
        never_compressed(&gateway, &path(name), why).await;
        gateway.purge("all").await;
    }
}

#[tokio::test]
async fn a_purged_or_replaced_body_is_not_sent_compressed() {
    let upstream = upstream(8000);
    let gateway = Setup::before(&upstream).manual().start();
    let fields = [("accept-encoding", "gzip")];
    gateway.get(TOKEN).await;
    compress(&gateway, TOKEN, "gzip").await;
    upstream.always(Reply::json(text(6000)));
    gateway.advance(11_000);
    let other = gateway.request("GET", TOKEN, &fields).await;
    assert_eq!(other.field("content-encoding"), None);
    assert_eq!(other.body, text(6000).as_bytes());
    assert_eq!(upstream.count(), 2);
    compress(&gateway, TOKEN, "gzip").await;
    let before = gateway.request("GET", TOKEN, &fields).await;
    assert_eq!(decoded(&before), text(6000).as_bytes());
    upstream.always(Reply::json(text(5000)));
    assert_eq!(gateway.purge("all").await.status, 200);
    let purged = gateway.request("GET", TOKEN, &fields).await;
    assert_eq!(purged.body, text(5000).as_bytes());
    until("its memory is free", || gateway.entries() == 1).await;
}
