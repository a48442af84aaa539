//! The same requests over each transport: status, fields and body are the same.

use super::requests::comparable;
use crate::support::transport::tls_listener;
use crate::support::{Endpoint, Setup, TOKEN, TX, Transport, Upstream, token};

type Fields = &'static [(&'static str, &'static str)];

/// Fields of requests for [`TOKEN`], each with GET and with HEAD.
const FIELDS: [Fields; 20] = [
    &[],
    &[("origin", "https://a.example")],
    &[("origin", "null")],
    &[("accept", "text/html")],
    &[("accept-encoding", "gzip, br")],
    &[("accept-encoding", "identity;q=0")],
    &[("accept-encoding", "nonsense;;q=x")],
    &[("if-none-match", "*")],
    &[("if-none-match", "\"other\"")],
    &[("if-none-match", "nonsense")],
    &[("if-modified-since", "Fri, 20 Nov 2026 16:00:00 GMT")],
    &[("range", "bytes=0-3")],
    &[("range", "bytes=99999-")],
    &[("range", "nonsense")],
    &[("cache-control", "no-cache")],
    &[("cache-control", "only-if-cached")],
    &[("cookie", "a=1"), ("cookie", "b=2")],
    &[("authorization", "Basic eDp5")],
    &[("authorization", "Bearer unknown"), ("te", "trailers")],
    &[("forwarded", "for=1.2.3.4"), ("via", "1.0 before")],
];

/// Targets, each with GET.
const TARGETS: [&str; 18] = [
    TX,
    "/",
    "/nowhere",
    "//",
    "/openapi.json",
    "/docs",
    "/metrics",
    "/runes/v1/blocks/840000/activity",
    "/runes/v1/blocks/840000/activity?limit=5&offset=1",
    "/runes/v1/blocks/0840000/activity?x=y&offset=0",
    "/runes/v1/blocks/x/activity",
    "/runes/v1/blocks/840000/activity?limit=0",
    "/runes/v1/blocks/840000/activity?limit=5&limit=5",
    "/runes/v1/blocks/840000/activity?limit=%zz",
    "/runes/v1/../v1/blocks/840000/activity",
    "/ordinals/v1/brc-20/tokens/%F0%9F%8D%95",
    "/ordinals/v1/brc-20/tokens/%00",
    "/ordinals/v1/brc-20/tokens/or%2",
];

/// Methods, each for [`TOKEN`] and for no route.
const METHODS: [&str; 7] = [
    "POST",
    "PUT",
    "DELETE",
    "PATCH",
    "OPTIONS",
    "TRACE",
    "UNHEARD-OF",
];

fn requests() -> Vec<(&'static str, String, Fields)> {
    let mut all = Vec::new();
    for fields in FIELDS {
        all.extend(["GET", "HEAD"].map(|method| (method, TOKEN.to_owned(), fields)));
    }
    all.extend(TARGETS.map(|target| ("GET", target.to_owned(), FIELDS[0])));
    for method in METHODS {
        all.extend([TOKEN, "/nowhere"].map(|target| (method, target.to_owned(), FIELDS[1])));
    }
    let long = format!("{}?{}", token(1), "x".repeat(9000));
    all.push(("GET", long, FIELDS[0]));
    all
}

#[tokio::test]
async fn answers_are_the_same_over_each_transport() {
    let upstream = Upstream::start();
    let (tls, _certificate) = tls_listener();
    // No time passes, so that no field changes by itself.
    let gateway = Setup::before(&upstream)
        .config(&tls)
        .config("limit.enabled = false")
        .manual()
        .start();
    let [clear, secure] = [gateway.public, gateway.tls()];
    let mut clients = Vec::new();
    for (address, transport) in [
        (clear, Transport::Http1),
        (clear, Transport::H2c),
        (secure, Transport::H2Tls),
    ] {
        clients.push((transport, Endpoint { address, transport }));
    }
    for (method, target, fields) in requests() {
        // Once, so that all are hits.
        gateway.request(method, &target, fields).await;
        let mut expected = None;
        for (transport, endpoint) in &clients {
            let mut client = endpoint.client().await;
            let answer = client.request(method, &target, fields).await;
            assert_eq!(answer.version, transport.version());
            let found = comparable(&answer);
            let expected = expected.get_or_insert_with(|| found.clone());
            assert_eq!(
                *expected, found,
                "{transport:?} {method} {target} {fields:?}"
            );
        }
    }
}
