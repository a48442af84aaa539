//! Client tokens: who is identified by one, what each may do, and what becomes of a
//! token that is removed or expires.

mod curl;
mod leak;
mod origins;
mod private;

use std::time::Duration;

use ordgate::client_tokens::file::{self, TokenName};

use crate::support::{Answer, Client, Gateway, Setup, TOKEN, Upstream, token as ticker};

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

fn manual(upstream: &Upstream) -> Setup {
    Setup::before(upstream).config(LIMIT).manual()
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
    let (one, other, large) = (new(), new(), new());
    let lines = line("one", &one, "")
        + &line("other", &other, "")
        + &line("large", &large, ", requests_per_minute = 600, burst = 20");
    let gateway = manual(&upstream).client_tokens(&lines).start();
    for way in ways(&one).iter().cycle().take(3) {
        let answer = gateway.request("GET", TOKEN, &[(way.0, &way.1)]).await;
        assert_eq!(answer.status, 200, "{}", way.0);
        assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=3;w=3");
    }
    let mut elsewhere = gateway.client_from([127, 0, 0, 2]).await;
    let answer = with(&mut elsewhere, &one).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.must("ratelimit"), "\"default\";r=0;t=1");
    assert_eq!(answer.must("retry-after"), "1");
    // Neither another token's limit nor the address's is spent.
    assert_eq!(ask(&gateway, &other).await.status, 200);
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.must("ratelimit"), "\"default\";r=2;t=1");
    // The address's own requests do not count against a token.
    for status in [200, 200, 429] {
        assert_eq!(gateway.get(TOKEN).await.status, status);
    }
    assert_eq!(ask(&gateway, &other).await.status, 200);
    for left in (0..20).rev() {
        let answer = ask(&gateway, &large).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.must("ratelimit-policy"), "\"default\";q=20;w=2");
        assert!(
            answer
                .must("ratelimit")
                .starts_with(&format!("\"default\";r={left};"))
        );
    }
    assert_eq!(ask(&gateway, &large).await.status, 429);
    gateway.advance(100);
    assert_eq!(ask(&gateway, &large).await.status, 200, "ten a second");
    let status = gateway.admin("/status").await.json();
    let rows = status["client_tokens"]["busiest"].as_array().unwrap();
    let row = |row: &serde_json::Value| {
        let figures = ["requests", "limited", "requests_per_minute", "burst"];
        let figures = figures.map(|name| row[name].as_u64().unwrap());
        (row["name"].as_str().unwrap().to_owned(), figures)
    };
    let expected = [
        ("large".to_owned(), [21, 1, 600, 20]),
        ("one".to_owned(), [3, 1, 60, 3]),
        ("other".to_owned(), [2, 0, 60, 3]),
    ];
    assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn misses_count_against_the_token() {
    let upstream = Upstream::start();
    let (one, other) = (new(), new());
    let lines = line("one", &one, "") + &line("other", &other, "");
    let limits = "limit.misses_per_minute = 2";
    let setup = Setup::before(&upstream).config(limits).manual();
    let gateway = setup.client_tokens(&lines).start();
    let miss = async |token: &str, n| {
        let [(name, value), _] = ways(token);
        gateway
            .request("GET", &ticker(n), &[(name, &value)])
            .await
            .status
    };
    for (n, status) in [(1, 200), (2, 200), (3, 429), (1, 200)] {
        assert_eq!(miss(&one, n).await, status, "{n}");
    }
    assert_eq!(miss(&other, 4).await, 200);
    for (n, status) in [(5, 200), (6, 200), (7, 429)] {
        assert_eq!(
            gateway.get(&ticker(n)).await.status,
            status,
            "the address's own"
        );
    }
    assert_eq!(miss(&other, 8).await, 200);
    let heaviest = &gateway.status()["upstream"]["heaviest_clients"];
    let names: Vec<_> = heaviest
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["client"].as_str().unwrap())
        .collect();
    for name in ["token:one", "token:other", "127.0.0.1"] {
        assert!(names.contains(&name), "{names:?}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_token_is_said() {
    let upstream = Upstream::start();
    let (known, unknown) = (new(), new());
    let lines = line("known", &known, "");
    let invalid = |why| {
        format!(
            "Bearer realm=\"ordgate\", error=\"invalid_token\", error_description=\"The token {why}\""
        )
    };
    for required in [false, true] {
        let setup = Setup::before(&upstream).client_tokens(&lines);
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
                assert_eq!(answer.must("www-authenticate"), invalid("is unknown"));
                assert_eq!(answer.must("cache-control"), "no-store");
                assert_eq!(answer.problem()["reason"], "unknown_token");
            }
        }
        // What is not a client token is as if there were none.
        for field in [
            ("authorization", "Basic YTpi"),
            ("authorization", "Bearer x"),
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
    let preflight = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "GET"),
    ];
    for (method, target, fields, status) in [
        ("GET", TOKEN, &[][..], 401),
        ("HEAD", TOKEN, &[], 401),
        ("DELETE", TOKEN, &[], 401),
        ("GET", "/ordinals/v1/brc-20/tokens/%ff", &[], 401),
        ("GET", "/nowhere", &[], 401),
        ("GET", "/any/a", &[], 401),
        ("POST", "/any/a", &[], 401),
        ("OPTIONS", "/any/a", &preflight, 401),
        // These need none.
        ("OPTIONS", TOKEN, &preflight, 204),
        ("GET", "/openapi.json", &[], 200),
        ("OPTIONS", "/openapi.json", &preflight, 204),
    ] {
        let answer = gateway.request(method, target, fields).await;
        assert_eq!(answer.status, status, "{method} {target}");
        if status == 401 {
            assert_eq!(answer.must("www-authenticate"), "Bearer realm=\"ordgate\"");
            assert_eq!(answer.must("access-control-allow-origin"), "*");
        }
    }
    assert_eq!(upstream.count(), 0);
    let [(name, value), _] = ways(&known);
    for (method, target, status) in [
        ("GET", TOKEN, 200),
        ("GET", "/nowhere", 404),
        ("DELETE", TOKEN, 405),
        ("GET", "/any/a", 200),
    ] {
        let answer = gateway.request(method, target, &[(name, &value)]).await;
        assert_eq!(answer.status, status, "{method} {target}");
    }
    let document = gateway.get("/openapi.json").await.json();
    assert_eq!(
        document["components"]["securitySchemes"]["bearer"]["scheme"],
        "bearer"
    );
    let reloaded = gateway.reload("clients.require_token = false").await;
    assert_eq!(reloaded.status, 200);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn guessing_is_limited_by_address() {
    let upstream = Upstream::start();
    let known = new();
    let gateway = manual(&upstream)
        .client_tokens(&line("known", &known, ""))
        .start();
    for status in [401, 401, 401, 429, 429] {
        assert_eq!(ask(&gateway, &new()).await.status, status);
    }
    assert_eq!(gateway.get(TOKEN).await.status, 429, "the same address");
    assert_eq!(ask(&gateway, &known).await.status, 200, "a valid token");
    gateway.advance(1000);
    assert_eq!(ask(&gateway, &new()).await.status, 401);
    let metrics = gateway.admin("/metrics").await;
    let text = metrics.text();
    assert!(
        text.contains("ordgate_refused_total{reason=\"unknown_token\"} 4\n"),
        "{text}"
    );
    assert!(
        text.contains(
            "ordgate_token_client_requests_total{name=\"known\",result=\"admitted\"} 1\n"
        )
    );
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_token_is_rotated_and_revoked_by_reloads() {
    let upstream = Upstream::start();
    let (old, fresh, other) = (new(), new(), new());
    let both = line("web", &old, "").replace(
        "] }",
        &line("web", &fresh, "").replace("web = { sha256 = [", ", "),
    );
    let beside = line("other", &other, "");
    let gateway = manual(&upstream)
        .config(REQUIRED)
        .client_tokens(&(beside.clone() + &line("web", &old, "")))
        .start();
    // One connection throughout: nothing of it outlives a reload.
    let mut kept = gateway.client().await;
    assert_eq!(with(&mut kept, &old).await.status, 200);
    assert_eq!(with(&mut kept, &fresh).await.status, 401);
    assert_eq!(
        gateway
            .reload_client_tokens(&(both.clone() + &beside))
            .await
            .status,
        200
    );
    assert_eq!(with(&mut kept, &old).await.status, 200);
    let answer = with(&mut kept, &fresh).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.must("ratelimit"),
        "\"default\";r=0;t=3",
        "one bucket for the name"
    );
    assert_eq!(with(&mut kept, &old).await.status, 429);
    gateway.advance(3000);
    assert_eq!(with(&mut kept, &old).await.status, 200);
    // The old one is revoked.
    let rest = line("web", &fresh, "") + &beside;
    assert_eq!(gateway.reload_client_tokens(&rest).await.status, 200);
    for _ in 0..2 {
        let answer = with(&mut kept, &old).await;
        assert_eq!(
            answer.status, 401,
            "from the first request after the reload"
        );
        assert!(answer.must("www-authenticate").contains("unknown"));
    }
    assert_eq!(
        with(&mut kept, &fresh).await.must("ratelimit"),
        "\"default\";r=1;t=2"
    );
    // The tokens of two names change places.
    let swapped = line("web", &other, "") + &line("other", &fresh, "");
    assert_eq!(gateway.reload_client_tokens(&swapped).await.status, 200);
    assert_eq!(
        with(&mut kept, &fresh).await.must("ratelimit"),
        "\"default\";r=2;t=1"
    );
    assert_eq!(
        with(&mut kept, &other).await.must("ratelimit"),
        "\"default\";r=0;t=3"
    );
}

#[tokio::test]
async fn an_invalid_token_file_changes_nothing() {
    let upstream = Upstream::start();
    let (token, fresh) = (new(), new());
    let text = line("web", &token, "");
    let gateway = manual(&upstream).client_tokens(&text).start();
    let bad = line("third", &token, "") + &line("web", &token, "") + &line("new", &fresh, "");
    let refused = gateway.reload_client_tokens(&bad).await;
    assert_eq!(refused.status, 422);
    let expected = "test.tokens:2:19: the same token is in this file twice";
    assert!(refused.text().contains(expected), "{}", refused.text());
    let digest = text.split('"').nth(1).unwrap();
    assert!(!refused.text().contains(digest));
    assert_eq!(ask(&gateway, &token).await.status, 200);
    assert_eq!(ask(&gateway, &fresh).await.status, 401);
}

/// The setting of a token that expires so many seconds from now.
fn expires(gateway: &Gateway, seconds: i64) -> String {
    // `Sun, 22 Nov 2026 16:29:20 GMT`
    let date = gateway.date(seconds);
    let parts: Vec<_> = date
        .split([' ', ','])
        .filter(|part| !part.is_empty())
        .collect();
    let months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec";
    let month = months.split(' ').position(|month| month == parts[2]);
    let month = month.unwrap() + 1;
    format!(
        ", expires = {}-{month:02}-{}T{}Z",
        parts[3], parts[1], parts[4]
    )
}

#[tokio::test]
async fn a_token_expires_as_soon_as_the_systems_clock_says_so() {
    let upstream = Upstream::start();
    let token = new();
    let gateway = Setup::before(&upstream).manual().client_tokens("").start();
    let lines = line("web", &token, &expires(&gateway, 3600));
    assert_eq!(gateway.reload_client_tokens(&lines).await.status, 200);
    let mut kept = gateway.client().await;
    let day = Duration::from_secs(24 * 3600);
    let has_expired = || gateway.status()["client_tokens"]["busiest"][0]["has_expired"] == true;
    assert_eq!(
        (with(&mut kept, &token).await.status, has_expired()),
        (200, false)
    );
    // The machine was suspended for a day: responses become as old little by little.
    let began = gateway.wall();
    gateway.set_wall(began + day);
    assert!(gateway.wall() < began + day);
    let answer = with(&mut kept, &token).await;
    assert_eq!((answer.status, has_expired()), (401, true));
    assert!(answer.must("www-authenticate").contains("has expired"));
    // That was a mistake.
    gateway.set_wall(began);
    assert_eq!(
        (with(&mut kept, &token).await.status, has_expired()),
        (200, false)
    );
}
