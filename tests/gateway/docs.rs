//! `/docs`, and the examples of the OpenAPI document. What a browser makes of the page
//! is checked by `tests/dashboard/run`.

use std::io::Read;

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use crate::support::{Gateway, Reply, Setup, TOKEN, Upstream, encoded};

const GZIP: (&str, &str) = ("accept-encoding", "gzip, br");
const FILES: [&str; 4] = [
    "/docs",
    "/docs/docs.css",
    "/docs/docs.js",
    "/docs/rapidoc-9.3.8.js",
];

#[tokio::test]
async fn the_page_and_its_files_are_served_compressed() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for path in FILES.into_iter().chain(["/openapi.json"]) {
        let plain = gateway.get(path).await;
        assert_eq!(plain.status, 200, "{path}");
        assert_eq!(plain.field("content-encoding"), None, "{path}");
        let answer = gateway.request("GET", path, &[GZIP]).await;
        assert_eq!(answer.must("vary"), "accept-encoding", "{path}");
        if plain.body.len() >= 1024 {
            assert_eq!(answer.must("content-encoding"), "gzip", "{path}");
            let mut text = Vec::new();
            let mut decoder = flate2::read::GzDecoder::new(&answer.body[..]);
            decoder.read_to_end(&mut text).unwrap();
            assert!(text == plain.body, "{path}");
            assert_ne!(answer.must("etag"), plain.must("etag"), "{path}");
        }
        for tag in [answer.must("etag"), plain.must("etag")] {
            let fields = [GZIP, ("if-none-match", tag)];
            let again = gateway.request("GET", path, &fields).await;
            assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
            assert_eq!(again.must("etag"), answer.must("etag"), "{path}");
        }
        let head = gateway.request("HEAD", path, &[GZIP]).await;
        assert_eq!(head.must("content-length"), answer.must("content-length"));
        let wrong = gateway.request("DELETE", path, &[]).await;
        assert_eq!(wrong.status, 405, "{path}");
        let is_versioned = path.contains("rapidoc");
        let control = answer.must("cache-control");
        assert_eq!(control.contains("immutable"), is_versioned, "{path}");
        if path != "/openapi.json" {
            let policy = answer.must("content-security-policy");
            assert!(policy.contains("script-src 'self';"), "{policy}");
            assert_eq!(answer.must("x-content-type-options"), "nosniff");
        }
        let explained = gateway.explain(path).await;
        assert_eq!(explained["next"]["does"], "answer itself", "{path}");
    }
    let page = gateway.get("/docs").await;
    for path in &FILES[1..] {
        assert!(page.text().contains(&path[1..]), "{path}");
    }
    assert!(!page.text().contains("http"), "nothing is from elsewhere");
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_page_needs_no_token_and_counts_as_a_request() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .manual()
        .config("clients.require_token = true\nlimit.requests_per_minute = 60\nlimit.burst = 5")
        .client_tokens("")
        .start();
    for path in FILES {
        assert_eq!(gateway.get(path).await.status, 200, "{path}");
    }
    assert_eq!(gateway.get(TOKEN).await.status, 401);
    let limited = gateway.get("/docs").await;
    assert_eq!(limited.status, 429);
    assert!(limited.field("retry-after").is_some());
}

#[tokio::test]
async fn a_route_with_the_path_of_the_page_has_precedence() {
    let upstream = Upstream::start();
    let route = r#"
        [[route]]
        name = "own"
        path = "/docs"
        cache = { mode = "off" }
        "#;
    let gateway = Gateway::with(&upstream, route);
    assert_eq!(gateway.get("/docs").await.json()["asked"], "/docs");
    assert_eq!(upstream.count(), 1);
    assert_eq!(gateway.get("/docs/docs.js").await.status, 200);
}

#[tokio::test]
async fn the_examples_of_the_document_have_content_in_the_sandbox() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = Setup::alone().sandbox(&sandbox).chain().start();
    let document = gateway.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 3);
    for (path, operations) in paths {
        let get = &operations["get"];
        assert!(get["tags"][0].is_string() && get["summary"].is_string());
        let (mut target, mut query) = (path.clone(), Vec::new());
        for parameter in get["parameters"].as_array().unwrap() {
            let name = parameter["name"].as_str().unwrap();
            let example = &parameter["example"];
            let text = example.as_str().map(encoded);
            let example = text.unwrap_or_else(|| example.to_string());
            match parameter["in"].as_str().unwrap() {
                "path" => target = target.replace(&format!("{{{name}}}"), &example),
                "query" => query.push(format!("{name}={example}")),
                _ => {}
            }
        }
        let answer = gateway.get(&format!("{target}?{}", query.join("&"))).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        let body = answer.json();
        assert!(body["total"] != 0, "{target} {query:?} has no content");
        // The example of an answer has the members of the answer.
        let example = &get["responses"]["200"]["content"]["application/json"]["example"];
        let members = |value: &Value| {
            let object = value.as_object().unwrap();
            object.keys().cloned().collect::<Vec<_>>()
        };
        assert_eq!(members(&body), members(example), "{target}");
    }
}

#[tokio::test]
async fn the_schema_of_problems_has_the_members_of_problems() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let document = gateway.get("/openapi.json").await.json();
    let schema = &document["components"]["schemas"]["Problem"];
    let known = schema["properties"].as_object().unwrap();
    let required = schema["required"].as_array().unwrap();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut seen = std::collections::BTreeSet::new();
    upstream.always(Reply::status(500, "{}"));
    for (method, path) in [
        ("GET", "/nowhere"),
        ("DELETE", TOKEN),
        ("GET", "/runes/v1/blocks/1/activity?limit=61"),
        ("GET", TOKEN),
    ] {
        let fields = [("traceparent", trace)];
        let problem = gateway.request(method, path, &fields).await.json();
        let members = problem.as_object().unwrap();
        for member in required.iter().filter_map(Value::as_str) {
            assert!(members.contains_key(member), "{member} in {problem}");
        }
        seen.extend(members.keys().cloned());
    }
    // Each member is described, and each one that is described comes.
    let known: std::collections::BTreeSet<_> = known.keys().cloned().collect();
    assert_eq!(seen, known);
}
