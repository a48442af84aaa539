//! Methods, preflights, and the OpenAPI document.

use crate::support::{BLOCK, Gateway, ROUTES, TOKEN, TX, Upstream};

#[tokio::test]
async fn other_methods_get_405_with_allow() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for target in [
        TOKEN,
        TX,
        BLOCK,
        "/openapi.json",
        "/runes/v1/blocks/x/activity",
    ] {
        for method in "POST PUT DELETE PATCH TRACE PROPFIND UNHEARD-OF".split(' ') {
            let answer = gateway.request(method, target, &[]).await;
            assert_eq!(answer.status, 405, "{method} {target}");
            assert_eq!(answer.must("allow"), "GET, HEAD, OPTIONS");
            answer.problem();
        }
        let fields = [("content-length", "0")];
        let answer = gateway.request("POST", target, &fields).await;
        assert_eq!(answer.status, 405, "{target}");
    }
    let answer = gateway.request("POST", "/nowhere", &[]).await;
    assert_eq!(answer.status, 404);
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn options_and_preflights_are_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for target in [TOKEN, TX, BLOCK, "/openapi.json"] {
        let plain = gateway.request("OPTIONS", target, &[]).await;
        assert_eq!(plain.status, 204, "{target}");
        assert_eq!(plain.must("allow"), "GET, HEAD, OPTIONS");
        assert_eq!(plain.field("access-control-allow-methods"), None);
        let fields = [
            ("origin", "https://a.example"),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "x-api-key, if-none-match"),
        ];
        let preflight = gateway.request("OPTIONS", target, &fields).await;
        assert_eq!(preflight.status, 204);
        assert_eq!(preflight.must("access-control-allow-origin"), "*");
        assert_eq!(
            preflight.must("access-control-allow-methods"),
            "GET, HEAD, OPTIONS"
        );
        assert_eq!(
            preflight.must("access-control-allow-headers"),
            "x-api-key, if-none-match"
        );
        assert_eq!(preflight.must("access-control-max-age"), "86400");
        assert_eq!(preflight.field("content-length"), None);
    }
    assert_eq!(
        gateway.request("OPTIONS", "/nowhere", &[]).await.status,
        404
    );
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn the_document_describes_the_routes() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let answer = gateway.get("/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.must("content-type"), "application/json");
    let document = answer.json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let routes: toml::Table = ROUTES.parse().unwrap();
    for route in routes["route"].as_array().unwrap() {
        let path = route["path"].as_str().unwrap();
        let operation = &document["paths"][path]["get"];
        assert!(operation.is_object(), "{path}");
        let parameters = operation["parameters"].as_array().unwrap();
        let tables =
            ["params", "query"].map(|name| route.get(name).and_then(toml::Value::as_table));
        for name in tables.into_iter().flatten().flat_map(toml::Table::keys) {
            assert!(parameters.iter().any(|one| one["name"] == **name), "{name}");
        }
    }
    let known = [("if-none-match", answer.must("etag"))];
    let again = gateway.request("GET", "/openapi.json", &known).await;
    assert_eq!(again.status, 304);
    let head = gateway.request("HEAD", "/openapi.json", &[]).await;
    assert_eq!(head.number("content-length"), answer.body.len() as u64);
    assert_eq!(upstream.count(), 0);
}
