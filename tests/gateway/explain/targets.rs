//! Targets as they are typed or copied.

use super::does;
use crate::support::{Setup, TOKEN, Upstream};

#[tokio::test]
async fn a_target_that_no_request_has_is_explained_as_what_clients_make_of_it() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).manual().start();
    let long = format!("/ordinals/v1/brc-20/tokens/{}", "a".repeat(8192));
    // the URL, what the request does, whether one as it is given gets 400
    for (url, does_next, is_changed) in [
        (TOKEN, "fetch", None),
        ("/a b", "refuse with 404", Some("percent-encoded;")),
        ("/a\u{1}", "refuse with 404", Some("percent-encoded;")),
        (
            &format!("{TOKEN}#a"),
            "hit",
            Some("without its fragment (from # on); a request that has one gets 400"),
        ),
        (
            &format!("{TOKEN}#a b"),
            "hit",
            Some("without its fragment (from # on); a request that has one"),
        ),
        (
            &format!("{TOKEN}?a=< >#b"),
            "hit",
            Some("percent-encoded and without"),
        ),
        (&long, "refuse with 414", None),
    ] {
        let explained = gateway.explain(url).await;
        assert_eq!(does(&explained), does_next, "{url}");
        let why = explained["next"]["why"].as_str().unwrap();
        assert_eq!(why.contains("is explained"), is_changed.is_some(), "{why}");
        assert!(why.contains(is_changed.unwrap_or_default()), "{why}");
        let mut client = gateway.client().await;
        client
            .send(format!("GET {url} HTTP/1.1\r\nhost: a\r\n\r\n"))
            .await;
        let expected = match (is_changed, does_next) {
            (Some(_), _) => 400,
            (None, "fetch") => 200,
            (None, _) => 414,
        };
        assert_eq!(client.answer("GET").await.status, expected, "{url}");
    }
}
