//! Tables of `invalidate`. Sections are of RFC 3986 where no other is named.

use http::HeaderValue;

use super::*;

fn at(reference: &str, base: &str) -> Option<String> {
    let response = HeaderMap::from_iter([(LOCATION, HeaderValue::from_str(reference).unwrap())]);
    named_target(&base.parse().unwrap(), &response, &LOCATION)
}

#[test]
fn references_are_resolved_by_rfc_3986() {
    let base = "http://a/b/c/d;p?q";
    let table: &[(&str, Option<&str>, &str)] = &[
        ("g", Some("/b/c/g"), "§5.4.1"),
        ("./g", Some("/b/c/g"), "§5.4.1"),
        ("g/", Some("/b/c/g/"), "§5.4.1"),
        ("/g", Some("/g"), "§5.4.1"),
        ("//g", None, "§5.4.1, another origin"),
        ("//a/g", Some("/g"), "§5.4.1"),
        ("?y", Some("/b/c/d;p?y"), "§5.4.1"),
        ("g?y", Some("/b/c/g?y"), "§5.4.1"),
        ("#s", Some("/b/c/d;p?q"), "§5.4.1"),
        ("g?y#s", Some("/b/c/g?y"), "§5.4.1"),
        (";x", Some("/b/c/;x"), "§5.4.1"),
        ("", Some("/b/c/d;p?q"), "§5.4.1"),
        (".", Some("/b/c/"), "§5.4.1"),
        ("./", Some("/b/c/"), "§5.4.1"),
        ("..", Some("/b/"), "§5.4.1"),
        ("../", Some("/b/"), "§5.4.1"),
        ("../g", Some("/b/g"), "§5.4.1"),
        ("../..", Some("/"), "§5.4.1"),
        ("../../g", Some("/g"), "§5.4.1"),
        ("../../../../g", Some("/g"), "§5.4.2"),
        ("/./g", Some("/g"), "§5.4.2"),
        ("/../g", Some("/g"), "§5.4.2"),
        ("g.", Some("/b/c/g."), "§5.4.2"),
        ("..g", Some("/b/c/..g"), "§5.4.2"),
        ("./../g", Some("/b/g"), "§5.4.2"),
        ("g;x=1/../y", Some("/b/c/y"), "§5.4.2"),
        ("g?y/../x", Some("/b/c/g?y/../x"), "§5.4.2"),
        ("http://a/x", Some("/x"), "RFC 9110 §4.3.1"),
        (
            "HTTP://A:80/x",
            Some("/x"),
            "RFC 9110 §4.3.1, case and default port",
        ),
        ("http://a", Some("/"), "RFC 9110 §4.2.3"),
        ("http://a/x/../y?z", Some("/y?z"), "§5.2.4"),
        ("https://a/x", None, "RFC 9110 §4.3.1, another scheme"),
        ("http://a:8080/x", None, "RFC 9110 §4.3.1, another port"),
        ("http://b/x", None, "RFC 9111 §4.4, another host"),
        ("http://u@a/x", None, "RFC 9110 §4.2.4, userinfo"),
        ("mailto:a@b", None, "RFC 9110 §4.3.1, no origin"),
        ("g:h", None, "§5.4.1"),
    ];
    for (reference, expected, section) in table {
        assert_eq!(
            at(reference, base).as_deref(),
            *expected,
            "{reference:?}: {section}"
        );
    }
}

#[test]
fn unsafe_methods_invalidate() {
    let target: Uri = "http://a/b?c".parse().unwrap();
    let mut response = HeaderMap::new();
    response.insert(LOCATION, HeaderValue::from_static("/new"));
    response.insert(CONTENT_LOCATION, HeaderValue::from_static("http://a/old"));
    let all: &[&str] = &["/b?c", "/new", "/old"];
    let table: &[(&str, u16, &[&str], &str)] = &[
        ("POST", 200, all, "RFC 9111 §4.4"),
        ("PUT", 201, all, "RFC 9111 §4.4"),
        ("DELETE", 204, all, "RFC 9111 §4.4"),
        ("PATCH", 303, all, "RFC 9111 §4.4, 3xx is no error"),
        ("M-SEARCH", 200, all, "RFC 9111 §4.4, unknown methods"),
        ("post", 200, all, "RFC 9110 §9.1, methods have case"),
        ("POST", 404, &[], "RFC 9111 §4.4, an error"),
        ("POST", 500, &[], "RFC 9111 §4.4, an error"),
        ("POST", 103, &[], "RFC 9111 §4.4, not final"),
        ("GET", 200, &[], "RFC 9110 §9.2.1"),
        ("HEAD", 200, &[], "RFC 9110 §9.2.1"),
        ("OPTIONS", 200, &[], "RFC 9110 §9.2.1"),
        ("TRACE", 200, &[], "RFC 9110 §9.2.1"),
        ("PROPFIND", 207, &[], "RFC 4918 §9.1, safe"),
        ("SEARCH", 207, &[], "RFC 5323 §2, safe"),
    ];
    for (method, status, expected, section) in table {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let status = StatusCode::from_u16(*status).unwrap();
        assert_eq!(
            targets(&method, &target, status, &response),
            *expected,
            "{method} {status}: {section}"
        );
    }
}

#[test]
fn other_origins_are_not_invalidated() {
    let target: Uri = "http://a/b".parse().unwrap();
    let mut response = HeaderMap::new();
    response.insert(LOCATION, HeaderValue::from_static("http://b/new"));
    response.append(CONTENT_LOCATION, HeaderValue::from_static("/one"));
    response.append(CONTENT_LOCATION, HeaderValue::from_static("/two"));
    assert_eq!(
        targets(&Method::POST, &target, StatusCode::OK, &response),
        ["/b"],
        "RFC 9111 §4.4"
    );
}
