//! Requests that are answered alike over HTTP/1.1, over HTTP/2 in cleartext, over HTTP/2 with TLS,
//! and before an upstream of two servers.
//!
//! The upstream is the sandbox, and a scripted origin for the plain route. Each request is sent
//! twice, so that the first answer is fetched and the second one stored, where it may be. No time
//! passes.

use std::collections::BTreeSet;

use ordgate::client_tokens::file::{TokenName, line, new_token};
use ordgate::clock::Clock;
use ordgate::sandbox::{Api, Sandbox, Settings};

use crate::chain::RARELY;
use crate::http2::comparable;
use crate::support::gateway::shipped_routes;
use crate::support::respect::all_below;
use crate::support::transport::tls_listener;
use crate::support::upstream::{Seen, refusing};
use crate::support::{Answer, Reply, SandboxServer, Setup, Transport, Upstream};

/// What a client may send at once: more than the table has.
const BURST: usize = 300;

type Fields = &'static [(&'static str, &'static str)];

/// Method, target, fields. In a target, `{token}`, `{tx}`, `{block}` and `{hash}` stand for paths
/// of the sandbox, in a field `{etag}` for the etag of the target's first answer and `{known}` for
/// a token of the file.
type Row = (&'static str, &'static str, Fields);

/// What a client asks of a stored answer.
const CONDITIONS: [Fields; 18] = [
    &[],
    &[("origin", "https://a.example")],
    &[("accept-encoding", "gzip, br")],
    &[("accept-encoding", "zstd")],
    &[("accept-encoding", "identity;q=0")],
    &[("if-none-match", "{etag}")],
    &[("if-none-match", "W/{etag}, \"other\"")],
    &[("if-none-match", "*")],
    &[("if-modified-since", "Fri, 20 Nov 2026 16:00:00 GMT")],
    &[("range", "bytes=0-3")],
    &[("range", "bytes=99999-")],
    &[("cache-control", "no-cache")],
    &[("cache-control", "only-if-cached")],
    &[("cookie", "a=1"), ("cookie", "b=2")],
    &[("authorization", "Basic eDp5")],
    &[("authorization", "Bearer unknown"), ("te", "trailers")],
    &[("authorization", "Bearer {known}")],
    &[("forwarded", "for=1.2.3.4"), ("via", "1.0 before")],
];

const PREFLIGHT: Fields = &[
    ("origin", "https://a.example"),
    ("access-control-request-method", "GET"),
    ("access-control-request-headers", "x-api-key"),
];

const ROWS: [Row; 48] = [
    ("GET", "{token}", &[]),
    ("GET", "{token}", &[("x-api-key", "{known}")]),
    ("GET", "{tx}", &[]),
    ("GET", "{block}", &[("accept-encoding", "gzip")]),
    ("GET", "{block}?limit=5&offset=1", &[]),
    ("GET", "{block}?operation_type=mint", &[]),
    ("GET", "{block}?limit=60&offset=100000", &[]),
    ("HEAD", "{block}?limit=7", &[]),
    ("GET", "{hash}", &[]),
    ("GET", "/ordinals/v1/brc-20/tokens/none", &[]),
    ("GET", "/ordinals/v1/brc-20/tokens/%F0%9F%8D%95", &[]),
    ("GET", "/runes/v1/blocks/4000000/activity", &[]),
    ("GET", "/closed/any", &[]),
    ("GET", "/", &[]),
    ("HEAD", "/nowhere", &[]),
    ("GET", "/docs", &[]),
    ("GET", "/openapi.json", &[]),
    ("GET", "/openapi.json", &[("if-none-match", "{etag}")]),
    ("GET", "/openapi.json", &[("accept-encoding", "br")]),
    // Refused before a fetch.
    ("GET", "/runes/v1/blocks/x/activity", &[]),
    ("GET", "/runes/v1/../v1/blocks/840000/activity", &[]),
    ("GET", "{block}?limit=5&limit=5", &[]),
    ("GET", "{block}?limit=%zz", &[]),
    ("GET", "/ordinals/v1/brc-20/tokens/%00", &[]),
    ("GET", "{token}", &[("content-length", "1")]),
    ("POST", "{token}", &[]),
    ("TRACE", "{token}", &[]),
    ("UNHEARD-OF", "{token}", &[]),
    ("OPTIONS", "{token}", &[]),
    ("OPTIONS", "{token}", PREFLIGHT),
    ("OPTIONS", "/openapi.json", PREFLIGHT),
    // The plain route.
    ("GET", "/plain/fresh", &[]),
    ("HEAD", "/plain/fresh", &[]),
    ("GET", "/plain/fresh", &[("if-none-match", "{etag}")]),
    ("GET", "/plain/fresh", &[("range", "bytes=2-5")]),
    ("GET", "/plain/fresh", &[("range", "bytes=99999-")]),
    ("GET", "/plain/fresh", &[("cache-control", "no-cache")]),
    ("GET", "/plain/fresh?x=1", &[("accept-encoding", "gzip")]),
    ("GET", "/plain/vary", &[("accept-language", "de")]),
    ("GET", "/plain/vary", &[("accept-language", "en")]),
    ("GET", "/plain/chunks", &[]),
    ("GET", "/plain/cookie", &[]),
    ("GET", "/plain/500", &[]),
    ("GET", "/plain/302", &[]),
    ("POST", "/plain/echo", &[("content-length", "4")]),
    ("PUT", "/plain/fresh", &[("content-length", "0")]),
    ("OPTIONS", "/plain/fresh", &[]),
    ("GET", "/plain/cut", &[]),
];

/// What the origin of the plain route answers.
fn origin(seen: &Seen) -> Reply {
    let fresh = "cache-control: max-age=60\r\netag: \"one\"\r\ncontent-type: text/plain\r\n";
    match &*seen.target() {
        "/plain/vary" => Reply::with(200, &format!("{fresh}vary: accept-language\r\n"), "varies"),
        "/plain/chunks" => Reply::chunked("in chunks", 4),
        "/plain/cookie" => Reply::with(200, "set-cookie: a=1\r\nset-cookie: b=2\r\n", "a cookie"),
        "/plain/500" => Reply::with(500, "", "broken"),
        "/plain/302" => Reply::with(302, "location: /plain/fresh\r\n", ""),
        "/plain/echo" => Reply::with(201, "cache-control: no-store\r\n", "made"),
        "/plain/cut" => Reply::raw("HTTP/1.1 nonsense\r\n\r\n").close(),
        _ => Reply::with(200, fresh, "a body of the origin, ".repeat(40)),
    }
}

/// The requests, with the sandbox's paths.
fn requests(sandbox: &Sandbox) -> Vec<(&'static str, String, Fields)> {
    let examples = sandbox.examples();
    let (block, _limit) = examples.blocks[0].split_once('?').unwrap();
    let height = sandbox.tip().height - 50;
    let hash = sandbox.hash_at(height).unwrap();
    let hash = format!("/runes/v1/blocks/{hash}/activity");
    let of_conditions = CONDITIONS
        .iter()
        .flat_map(|fields| ["GET", "HEAD"].map(|method| (method, "{token}", *fields)));
    let all = ROWS.into_iter().chain(of_conditions);
    let all = all.map(|(method, target, fields)| {
        let target = target
            .replace("{token}", &examples.tokens[0])
            .replace("{tx}", &examples.transactions[0])
            .replace("{block}", block)
            .replace("{hash}", &hash);
        (method, target, fields)
    });
    let mut all: Vec<_> = all.collect();
    let long = format!("{}?{}", &examples.tokens[0], "x".repeat(9000));
    all.push(("GET", long, &[]));
    all
}

/// What a client sends, and what it gets.
type Exchange = (String, Answer);

/// The answers over a transport, before these servers.
async fn answers(transport: Transport, apis: &[Api], clock: &Clock, known: &str) -> Vec<Exchange> {
    let sandbox = Sandbox::new(Settings::default());
    let start = |api: &Api| SandboxServer::start(&sandbox, *api);
    let servers: Vec<_> = apis.iter().map(start).collect();
    let urls = match &servers[..] {
        [both] => format!("upstream.url = {:?}", both.url()),
        [ordinals, runes] => format!(
            "upstream.url = {:?}\nupstreams.runes.url = {:?}",
            ordinals.url(),
            runes.url()
        ),
        _ => panic!("one server or two"),
    };
    let plain = Upstream::start();
    plain.usually(origin);
    let (_held, closed) = refusing();
    let (listener, _certificate) = tls_listener();
    let routes = [
        shipped_routes().to_owned(),
        all_below("plain") + "upstream = \"plain\"\n",
        all_below("closed") + "upstream = \"closed\"\n",
        format!("[upstreams.plain]\nurl = {:?}\n", plain.url()),
        format!("[upstreams.closed]\nurl = \"http://{closed}\"\n"),
    ];
    let gateway = Setup::alone()
        .config(&urls)
        .config(&routes.concat())
        .config(&listener)
        .config(RARELY)
        .config(&format!("upstream.retry = false\nlimit.burst = {BURST}"))
        .client_tokens(&line(&TokenName("known".into()), known))
        .clock(clock)
        .start();
    gateway.until_tips_are_known().await;
    let endpoint = gateway.endpoint(transport);
    let mut answers = Vec::new();
    for (method, target, fields) in requests(&sandbox) {
        let what = format!("{method} {target} {fields:?}");
        let mut etag = String::new();
        if fields.iter().any(|(_, value)| value.contains("{etag}")) {
            let mut client = endpoint.client().await;
            client.get(&target).await.must("etag").clone_into(&mut etag);
        }
        let fill = |value: &str| value.replace("{etag}", &etag).replace("{known}", known);
        let fields = fields.iter().map(|(name, value)| (*name, fill(value)));
        let fields: Vec<_> = fields.collect();
        let fields = fields.iter().map(|(name, value)| (*name, &**value));
        let fields: Vec<_> = fields.collect();
        for _ in 0..2 {
            let mut client = endpoint.client().await;
            let answer = client.request_with_body(method, &target, &fields).await;
            answers.push((what.clone(), answer));
        }
    }
    let mut client = endpoint.client().await;
    let mut sent = 1;
    let limited = loop {
        let answer = client.get("/nowhere").await;
        if answer.status == 429 || sent == BURST {
            break answer;
        }
        sent += 1;
    };
    answers.push((format!("{sent} more, over the limit"), limited));
    let strays = sandbox.counts().other;
    assert_eq!(strays, 0, "requests for the other server's API");
    answers
}

#[tokio::test]
async fn every_request_is_answered_alike_in_each_way() {
    let clock = Clock::manual();
    let known = new_token().unwrap();
    let one: &[_] = &[Api::Both];
    let mut expected = None;
    for (transport, apis) in [
        (Transport::Http1, one),
        (Transport::H2c, one),
        (Transport::H2Tls, one),
        (Transport::Http1, &[Api::Ordinals, Api::Runes]),
    ] {
        let found = answers(transport, apis, &clock, &known).await;
        let expected: &Vec<Exchange> = expected.get_or_insert_with(|| found.clone());
        for ((what, first), (same, answer)) in expected.iter().zip(&found) {
            let way = format!("{transport:?}, {} servers: {what}", apis.len());
            assert_eq!(what, same, "{way}");
            assert_eq!(answer.version, transport.version(), "{way}");
            assert_eq!(comparable(first), comparable(answer), "{way}");
        }
    }
    // The table has every kind of answer.
    let found = expected.unwrap();
    let statuses: BTreeSet<_> = found.iter().map(|(_, answer)| answer.status).collect();
    for status in [
        200, 201, 204, 206, 302, 304, 400, 404, 405, 414, 416, 429, 500, 502,
    ] {
        assert!(statuses.contains(&status), "{status}: {statuses:?}");
    }
}
