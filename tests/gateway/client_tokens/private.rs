//! Where a token is required, no cache in front of ordgate may give an answer to
//! clients without one, whatever the origin permits.

use super::{REQUIRED, ask, line, new, ways};
use crate::support::respect::ok;
use crate::support::{Gateway, Setup, TOKEN, Upstream};

/// What an origin permits to shared caches.
const PUBLIC: [&str; 4] = [
    "content-type: application/json",
    "cache-control: public, max-age=60, s-maxage=600",
    "cdn-cache-control: max-age=6000",
    "surrogate-control: max-age=6000",
];

fn route(name: &str, settings: &str) -> String {
    format!("[[route]]\nname = \"{name}\"\npath = \"/{name}/{{x}}\"\n{settings}\n")
}

#[tokio::test]
async fn where_a_token_is_required_no_other_cache_may_keep_an_answer() {
    let upstream = Upstream::start();
    let known = new();
    let open = Gateway::before(&upstream);
    let setup = Setup::before(&upstream).config(REQUIRED);
    let closed = setup.client_tokens(&line("known", &known, "")).start();
    let control = open.get(TOKEN).await.must("cache-control").to_owned();
    let expected = control.replace("public, ", "private, ");
    assert_ne!(control, expected);
    for _ in 0..2 {
        assert_eq!(ask(&closed, &known).await.must("cache-control"), expected);
    }
}

#[tokio::test]
async fn an_origin_does_not_make_answers_public_where_a_token_is_required() {
    let typed = "params.x.type = \"string\"\n";
    let routes = [
        route("off", &format!("{typed}cache.mode = \"off\"")),
        route(
            "kept",
            &format!("{typed}cache = {{ mode = \"override\", times = {{ 200 = \"1m\" }} }}"),
        ),
        route("typed", &format!("{typed}cache.mode = \"respect\"")),
        route(
            "exact",
            &format!("{typed}headers = \"all\"\ncache.mode = \"respect\""),
        ),
    ];
    let config = format!(
        "cache.targeted_field = \"surrogate-control\"\n{}",
        routes.concat()
    );
    for required in [false, true] {
        let upstream = Upstream::start();
        upstream.always(ok(&PUBLIC, "{}"));
        let known = new();
        let setup = Setup::before(&upstream).config(&config);
        let setup = setup.config(&format!("clients.require_token = {required}"));
        let gateway = setup
            .client_tokens(&line("known", &known, ""))
            .manual()
            .start();
        let [(name, value), _] = ways(&known);
        for (route, public, private) in [
            ("off", "no-store", "private, no-store"),
            ("kept", "public, max-age=60", "private, max-age=60"),
            (
                "typed",
                "public, max-age=60, s-maxage=600",
                "private, max-age=60",
            ),
            // This one alters nothing of the origin's.
            (
                "exact",
                "public, max-age=60, s-maxage=600",
                "public, max-age=60, s-maxage=600",
            ),
        ] {
            let expected = if required { private } else { public };
            // A miss, hits, and answers without the body.
            for (method, fields) in [
                ("GET", &[][..]),
                ("GET", &[]),
                ("HEAD", &[]),
                ("GET", &[("range", "bytes=0-0")]),
                ("GET", &[("if-none-match", "*")]),
            ] {
                let mut fields = fields.to_vec();
                fields.push((name, &*value));
                let answer = gateway
                    .request(method, &format!("/{route}/a"), &fields)
                    .await;
                assert!(answer.status < 400, "{route} {fields:?}");
                assert_eq!(
                    answer.all("cache-control"),
                    [expected],
                    "{route} {fields:?}"
                );
                if route != "exact" {
                    for name in ["cdn-cache-control", "surrogate-control"] {
                        assert_eq!(answer.field(name), None, "{route} {name}");
                    }
                }
            }
        }
    }
}
