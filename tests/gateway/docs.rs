//! `/docs`, and the examples of the OpenAPI document. What a browser makes of the page
//! is checked by `tests/dashboard/run`.

use std::io::Read;

use crate::support::{Gateway, Upstream};

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
