//! CORS, preflights, and stored responses as they are sent.

use http::HeaderName;

use super::*;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::reason::Reason;

fn context(fields: &HeaderMap) -> ResponseContext<'_> {
    ResponseContext {
        method: &Method::GET,
        fields,
        headers: HeaderMode::Typed,
        request_id: RequestId::new(1),
        permit: None,
        token: None,
        date: None,
    }
}

fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    });
    pairs.collect()
}

#[test]
fn only_allowed_origins_are_allowed() {
    let listed = Settings {
        cors_origins: vec!["https://a.example".to_owned().try_into().unwrap()],
        ..Settings::default()
    };
    let rows = [
        (Settings::default(), None, Some("*"), None),
        (
            Settings::default(),
            Some("https://b.example"),
            Some("*"),
            None,
        ),
        (
            listed.clone(),
            Some("https://a.example"),
            Some("https://a.example"),
            Some("origin"),
        ),
        (
            listed.clone(),
            Some("https://b.example"),
            None,
            Some("origin"),
        ),
        (listed, None, None, Some("origin")),
    ];
    for (settings, origin, allowed, vary) in rows {
        let responder = Responder::new(&settings, None, None);
        let request = origin.map_or_else(HeaderMap::new, |o| fields(&[("origin", o)]));
        let refusal = Refusal::from(Reason::Limited);
        let response = responder.refusal(&refusal, None, &context(&request));
        let text = |name| response.headers().get(name).map(|v| v.to_str().unwrap());
        assert_eq!(text(ACCESS_CONTROL_ALLOW_ORIGIN), allowed, "{origin:?}");
        assert_eq!(text(VARY), vary, "{origin:?}");
        assert!(
            text(ACCESS_CONTROL_EXPOSE_HEADERS)
                .unwrap()
                .contains("retry-after")
        );
    }
}

fn stored(status: StatusCode, etag: &'static str) -> Arc<StoredResponse> {
    Arc::new(StoredResponse {
        status,
        etag: HeaderValue::from_static(etag),
        fields: StoredFields::Prepared(Metadata::of(
            HeaderValue::from_static("application/json"),
            ClientFreshness::For(Duration::from_secs(7)),
        )),
        ..StoredResponse::of_json("{}")
    })
}

/// A stored response as it is sent: its status, and its fields as text.
fn sent(responder: &Responder, status: u16, request: &HeaderMap) -> (u16, String) {
    let stored = stored(StatusCode::from_u16(status).unwrap(), "\"e\"");
    let outcome = Outcome::hit(3);
    let age = Duration::from_secs(4);
    let response = responder.stored(&stored, &Key::begin(0), outcome, &context(request), age);
    let fields = response.headers().iter();
    let fields = fields.filter(|(name, _)| !name.as_str().starts_with("access-control-"));
    let lines: Vec<_> = fields
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    (response.status().as_u16(), lines.join("\n"))
}

#[test]
fn a_stored_response_is_sent_with_its_age_and_outcome() {
    let responder = Responder::new(&Settings::default(), None, None);
    let id = RequestId::new(1);
    let describing = "content-type: application/json\n";
    let rest = |etag: &str| {
        format!(
            "cache-control: public, max-age=7\n{etag}age: 4\ncache-status: ordgate; hit; ttl=3\nx-request-id: {}",
            id.as_str()
        )
    };
    let (none, has) = (HeaderMap::new(), fields(&[("if-none-match", "\"e\"")]));
    let tag = "etag: \"e\"\n";
    for (status, request, expected, lines) in [
        (200, &none, 200, format!("{describing}{}", rest(tag))),
        (200, &has, 304, rest(tag)),
        (404, &has, 404, format!("{describing}{}", rest(""))),
    ] {
        let (status, sent) = sent(&responder, status, request);
        // HeaderMap::remove moves the last field into the gap.
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(status, expected);
        assert_eq!(sorted(&sent), sorted(&lines));
    }
}

#[test]
fn a_response_stored_before_a_reload_has_the_fields_of_the_new_configuration() {
    let origin = fields(&[("origin", "https://a.example")]);
    let before = Responder::new(&Settings::default(), None, None);
    let policy = HeaderValue::from_static("\"default\";q=1;w=1");
    let settings = Settings {
        cors_origins: vec!["https://a.example".to_owned().try_into().unwrap()],
        server_timing: true,
        ..Settings::default()
    };
    let after = Responder::new(&settings, Some(policy), None);
    let (_, first) = sent(&before, 200, &origin);
    let (_, second) = sent(&after, 200, &origin);
    for line in [
        "vary: origin",
        "ratelimit-policy: \"default\";q=1;w=1",
        "server-timing: cache;desc=hit",
    ] {
        assert!(
            !first.contains(line) && second.contains(line),
            "{line} in {second}"
        );
    }
    assert!(!second.contains("ratelimit: "), "without permit: {second}");
}

#[test]
fn a_preflight_allows_the_route_methods_and_the_requested_fields() {
    let responder = Responder::new(&Settings::default(), None, None);
    let request = fields(&[
        ("origin", "https://a.example"),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "x-api-key, x-other"),
    ]);
    let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
    let response = responder.preflight(&allow, &context(&request));
    assert_eq!(response.status(), StatusCode::NO_CONTENT);
    let text = |name| response.headers().get(name).map(|v| v.to_str().unwrap());
    assert_eq!(
        text(ACCESS_CONTROL_ALLOW_METHODS),
        Some("GET, HEAD, OPTIONS")
    );
    assert_eq!(
        text(ACCESS_CONTROL_ALLOW_HEADERS),
        Some("x-api-key, x-other")
    );
    assert_eq!(text(ACCESS_CONTROL_ALLOW_ORIGIN), Some("*"));
}
