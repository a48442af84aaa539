//! Upstreams over TLS: which certificates are trusted.

use std::io::Write;

use super::failures::IMPATIENT;
use crate::support::upstream::usual_body;
use crate::support::{Setup, TOKEN, Upstream, tls, within};

#[tokio::test]
async fn https_with_a_configured_authority_works() {
    let (authority, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{}", upstream.address().port());
        let gateway = Setup::at(&url).keys("a-key").config(&ca_file).start();
        let answer = gateway.get(TOKEN).await;
        assert_eq!((answer.status, answer.text()), (200, &*usual_body(TOKEN)));
        let seen = upstream.seen();
        let key = seen.last().unwrap().field("x-api-key");
        assert_eq!(key.as_deref(), Some("a-key"));
    }
}

#[tokio::test]
async fn https_with_an_unknown_authority_is_refused() {
    let (_unknown, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys("a-key").start();
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=tls_certificate_error"
    );
    answer.problem();
    assert_eq!(upstream.count(), 0, "nothing was said to it");
}

#[tokio::test]
async fn https_to_a_plaintext_port_fails() {
    let upstream = Upstream::start();
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys("a-key").config(IMPATIENT).start();
    let answer = gateway.get(TOKEN).await;
    assert!(matches!(answer.status, 502 | 504), "{answer:?}");
    assert_eq!(upstream.count(), 0, "the key was not sent in the clear");
}

#[tokio::test]
async fn a_tls_handshake_that_hangs_times_out() {
    // It accepts, and says nothing: connecting is not over before TLS is.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let gateway = Setup::at(&url)
        .keys("a-key")
        .config("upstream.connect_timeout = \"80ms\"")
        .start();
    let answer = within("the handshake", gateway.get(TOKEN)).await;
    assert_eq!(answer.status, 504);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=connection_timeout"
    );
    answer.problem();
}
