//! Client tokens: who is identified by one, what each may do, and what becomes of a
//! token that is removed or expires. The file's form is in `client_tokens::file`.

mod leak;
mod origins;

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use ordgate::client_tokens::file::{self, TokenName};
use serde_json::json;

use crate::support::{Answer, Client, Gateway, Process, Setup, TOKEN, Upstream};

/// Three at once, then one a second.
const LIMIT: &str = "limit.requests_per_minute = 60\nlimit.burst = 3";
const REQUIRED: &str = "clients.require_token = true";

fn new() -> String {
    file::new_token().unwrap()
}

/// A name's line in the file, with more keys.
fn line(name: &str, token: &str, more: &str) -> String {
    let line = file::line(&TokenName(name.into()), token);
    format!("{}{more} }}\n", line.strip_suffix(" }").unwrap())
}

/// The two ways to send a token.
fn ways(token: &str) -> [(&'static str, String); 2] {
    [
        ("authorization", format!("Bearer {token}")),
        ("x-api-key", token.to_owned()),
    ]
}

async fn with(client: &mut Client, token: &str) -> Answer {
    let [(name, value), _] = ways(token);
    client.request("GET", TOKEN, &[(name, &value)]).await
}

async fn ask(gateway: &Gateway, token: &str) -> Answer {
    with(&mut gateway.client().await, token).await
}

#[tokio::test]
async fn a_token_has_its_own_limit_wherever_it_is_sent_from() {
    let upstream = Upstream::start();
    let (one, other) = (new(), new());
    let lines =
        line("one", &one, "") + &line("other", &other, ", requests_per_minute = 120, burst = 20");
    let setup = Setup::before(&upstream).config(LIMIT).manual();
    let gateway = setup.client_tokens(&lines).start();
    for (name, value) in ways(&one).iter().cycle().take(3) {
        let answer = gateway.request("GET", TOKEN, &[(name, value)]).await;
        assert_eq!(answer.status, 200, "{name}");
        assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=3;w=3");
    }
    let mut elsewhere = gateway.client_from([127, 0, 0, 2]).await;
    let answer = with(&mut elsewhere, &one).await;
    assert_eq!((answer.status, answer.must("retry-after")), (429, "1"));
    assert_eq!(answer.must("ratelimit"), "\"default\";r=0;t=1");
    // Neither another token's limit nor the address's is spent.
    let answer = ask(&gateway, &other).await;
    assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=20;w=10");
    for status in [200, 200, 200, 429] {
        assert_eq!(gateway.get(TOKEN).await.status, status);
    }
    assert_eq!(ask(&gateway, &other).await.status, 200);
    let rows = &gateway.status()["client_tokens"]["busiest"];
    let figures = [
        "name",
        "requests",
        "limited",
        "requests_per_minute",
        "burst",
    ];
    let rows = rows.as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .map(|row| json!(figures.map(|name| &row[name])))
        .collect();
    assert_eq!(
        rows,
        [json!(["one", 3, 1, 60, 3]), json!(["other", 2, 0, 120, 20])]
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_token_is_said() {
    let upstream = Upstream::start();
    let (known, unknown) = (new(), new());
    let invalid = "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token is unknown\"";
    for required in [false, true] {
        let setup = Setup::before(&upstream).client_tokens(&line("known", &known, ""));
        let gateway = setup
            .config(&format!("clients.require_token = {required}"))
            .start();
        for text in [
            &*unknown,
            &format!("{known}0"),
            "og_",
            &format!("{known} {known}"),
        ] {
            for (name, value) in ways(text) {
                let answer = gateway.request("GET", TOKEN, &[(name, &value)]).await;
                assert_eq!(answer.status, 401, "{name}: {text}");
                assert_eq!(answer.must("www-authenticate"), invalid);
                assert_eq!(answer.problem()["reason"], "unknown_token");
            }
        }
        // What is not a client token is as if there were none.
        for field in [
            ("authorization", "Basic YTpi"),
            ("authorization", &known),
            ("authorization", &format!("Basic {known}")),
            ("x-api-key", "x"),
            ("x-api-key", &format!("key={known}")),
        ] {
            let answer = gateway.request("GET", TOKEN, &[field]).await;
            assert_eq!(answer.status, if required { 401 } else { 200 }, "{field:?}");
        }
    }
    // Without a token file there are no client tokens.
    let gateway = Gateway::before(&upstream);
    assert_eq!(ask(&gateway, &unknown).await.status, 200);
}

#[tokio::test]
async fn a_required_token_is_required_of_all_that_reaches_the_upstream() {
    let upstream = Upstream::start();
    let known = new();
    let routes = "[[route]]\nname = \"any\"\npath = \"/any/{rest:*}\"\nmethods = [\"*\"]\nheaders = \"all\"\ncache.mode = \"off\"\n\
        [[route]]\nname = \"token\"\npath = \"/ordinals/v1/brc-20/tokens/{ticker}\"\nparams.ticker.type = \"ticker\"\ncache.mode = \"off\"\n";
    let setup = Setup::before(&upstream).config(routes).config(REQUIRED);
    let gateway = setup.client_tokens(&line("known", &known, "")).start();
    let [(name, value), _] = ways(&known);
    let preflight = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "GET"),
    ];
    // The status without a token, and with one.
    for (method, target, fields, without, with) in [
        ("GET", TOKEN, &[][..], 401, 200),
        ("HEAD", TOKEN, &[], 401, 200),
        ("DELETE", TOKEN, &[], 401, 405),
        ("GET", "/ordinals/v1/brc-20/tokens/%ff", &[], 401, 400),
        ("GET", "/nowhere", &[], 401, 404),
        ("POST", "/any/a", &[], 401, 200),
        ("OPTIONS", "/any/a", &preflight, 401, 200),
        // These need none.
        ("OPTIONS", TOKEN, &preflight, 204, 204),
        ("GET", "/openapi.json", &[], 200, 200),
    ] {
        let asked = upstream.count();
        let answer = gateway.request(method, target, fields).await;
        assert_eq!(answer.status, without, "{method} {target}");
        assert_eq!(upstream.count(), asked, "{method} {target}");
        if without == 401 {
            assert_eq!(answer.must("www-authenticate"), "Bearer realm=\"ordgate\"");
            assert_eq!(answer.must("access-control-allow-origin"), "*");
        }
        let fields = [fields, &[(name, &*value)]].concat();
        let answer = gateway.request(method, target, &fields).await;
        assert_eq!(answer.status, with, "{method} {target}");
    }
    let document = gateway.get("/openapi.json").await.json();
    let scheme = &document["components"]["securitySchemes"]["bearer"]["scheme"];
    assert_eq!(scheme, "bearer");
}

/// Whatever the origin permits.
#[tokio::test]
async fn where_a_token_is_required_no_other_cache_may_keep_an_answer() {
    let upstream = Upstream::start();
    let known = new();
    let open = Gateway::before(&upstream).get(TOKEN).await;
    let expected = open.must("cache-control").replace("public, ", "private, ");
    assert_ne!(open.must("cache-control"), expected);
    let setup = Setup::before(&upstream).config(REQUIRED);
    let closed = setup.client_tokens(&line("known", &known, "")).start();
    for _ in 0..2 {
        assert_eq!(ask(&closed, &known).await.must("cache-control"), expected);
    }
}

#[tokio::test]
async fn guessing_is_limited_by_address() {
    let upstream = Upstream::start();
    let known = new();
    let setup = Setup::before(&upstream).config(LIMIT).manual();
    let gateway = setup.client_tokens(&line("known", &known, "")).start();
    for status in [401, 401, 401, 429, 429] {
        assert_eq!(ask(&gateway, &new()).await.status, status);
    }
    assert_eq!(gateway.get(TOKEN).await.status, 429, "the same address");
    assert_eq!(ask(&gateway, &known).await.status, 200, "a valid token");
    gateway.advance(1000);
    assert_eq!(ask(&gateway, &new()).await.status, 401);
    let metrics = gateway.admin("/metrics").await;
    for line in [
        "ordgate_refused_total{reason=\"unknown_token\"} 4\n",
        "ordgate_token_client_requests_total{name=\"known\",result=\"admitted\"} 1\n",
    ] {
        assert!(metrics.text().contains(line), "{}", metrics.text());
    }
}

/// On one connection throughout: nothing of it outlives a reload.
#[tokio::test]
async fn a_token_is_rotated_and_revoked_by_reloads() {
    let upstream = Upstream::start();
    let (old, fresh, other) = (new(), new(), new());
    let second = line("web", &fresh, "").replace("web = { sha256 = [", ", ");
    let both = line("web", &old, "").replace("] }", &second);
    let beside = line("other", &other, "");
    let setup = Setup::before(&upstream)
        .config(LIMIT)
        .config(REQUIRED)
        .manual();
    let gateway = setup
        .client_tokens(&(beside.clone() + &line("web", &old, "")))
        .start();
    let mut kept = gateway.client().await;
    // After each reload: tokens, and what is left to them of their name's three, if known.
    let rest = line("web", &fresh, "") + &beside;
    let swapped = line("web", &other, "") + &line("other", &fresh, "");
    for (lines, rows) in [
        (None, [(&old, Some(2)), (&fresh, None)]),
        (Some(both + &beside), [(&old, Some(1)), (&fresh, Some(0))]),
        // Revoked, from the first request on.
        (Some(rest), [(&old, None), (&fresh, Some(2))]),
        // The tokens of two names change places.
        (Some(swapped), [(&fresh, Some(2)), (&other, Some(1))]),
    ] {
        if let Some(lines) = lines {
            assert_eq!(gateway.reload_client_tokens(&lines).await.status, 200);
        }
        for (token, left) in rows {
            let answer = with(&mut kept, token).await;
            match left {
                Some(left) => {
                    let limit = format!("\"default\";r={left};");
                    assert!(answer.must("ratelimit").starts_with(&limit), "{answer:?}");
                }
                None => {
                    assert_eq!(answer.status, 401);
                    assert!(answer.must("www-authenticate").contains("unknown"));
                }
            }
        }
        if rows[1].1 == Some(0) {
            gateway.advance(3000);
        }
    }
}

/// Such as `2026-11-22T16:29:20Z`, of `Sun, 22 Nov 2026 16:29:20 GMT`.
fn rfc3339(date: &str) -> String {
    let parts: Vec<_> = date.split(' ').collect();
    let months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    let month = months
        .split(' ')
        .position(|month| month == parts[2])
        .unwrap()
        + 1;
    format!("{}-{month:02}-{}T{}Z", parts[3], parts[1], parts[4])
}

#[tokio::test]
async fn a_token_expires_as_soon_as_the_systems_clock_says_so() {
    let upstream = Upstream::start();
    let token = new();
    let gateway = Setup::before(&upstream).manual().client_tokens("").start();
    let expires = format!(", expires = {}", rfc3339(&gateway.date(3600)));
    let lines = line("web", &token, &expires);
    assert_eq!(gateway.reload_client_tokens(&lines).await.status, 200);
    let mut kept = gateway.client().await;
    let (began, day) = (gateway.wall(), Duration::from_secs(24 * 3600));
    // The machine was suspended for a day, and responses are as old. Then that was a mistake.
    for (wall, expected) in [(began, 200), (began + day, 401), (began, 200)] {
        gateway.set_wall(wall);
        let answer = with(&mut kept, &token).await;
        assert_eq!(answer.status, expected);
        let has_expired = &gateway.status()["client_tokens"]["busiest"][0]["has_expired"];
        assert_eq!(*has_expired, expected == 401);
        if expected == 401 {
            assert!(answer.must("www-authenticate").contains("has expired"));
        }
    }
}

/// The status that curl gets.
fn curl(url: &str, arguments: &[&str]) -> String {
    let format = ["-s", "-o", "/dev/null", "-w", "%{http_code}"];
    let done = Command::new("curl")
        .args(format)
        .args(arguments)
        .arg(url)
        .output();
    String::from_utf8(done.expect("curl is installed").stdout).unwrap()
}

#[tokio::test]
async fn curl_uses_a_token_until_a_reload_removes_it() {
    let upstream = Upstream::start();
    let made = Process::run(&["token", "new", "front-end"], &[]);
    assert_eq!((made.code(), &*made.errors), (Some(0), ""));
    let (token, line) = made.out.split_once('\n').unwrap();
    assert_eq!((token.len(), &token[..3]), (51, "og_"));
    let mut tokens = tempfile::NamedTempFile::new().unwrap();
    tokens.write_all(line.as_bytes()).unwrap();
    let mut config = tempfile::NamedTempFile::new().unwrap();
    let path = tokens.path().display();
    writeln!(config, "clients.token_file = \"{path}\"\n{REQUIRED}").unwrap();
    let config = config.path().display().to_string();
    let checked = Process::run(&["check", "--config", &config], &[]);
    checked.printed("# names with client tokens: 1\n");
    assert!(!checked.out.contains(line.split('"').nth(1).unwrap()));
    let (_process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
    let url = format!("http://{public}{TOKEN}");
    let bearer = format!("authorization: Bearer {token}");
    assert_eq!(curl(&url, &[]), "401");
    assert_eq!(curl(&url, &["-H", &bearer]), "200");
    assert_eq!(curl(&url, &["-H", &format!("x-api-key: {token}")]), "200");
    std::fs::write(tokens.path(), "").unwrap();
    assert_eq!(
        curl(&format!("http://{admin}/reload"), &["-X", "POST"]),
        "200"
    );
    assert_eq!(curl(&url, &["-H", &bearer]), "401");
}
