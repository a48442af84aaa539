//! Certificates that change while the gateway serves. What is refused of one, and why, is in
//! `tls::tests`.

use std::fs;

use super::{certificate_in, https, started};
use crate::support::{TOKEN, Upstream};

#[tokio::test]
async fn a_reload_uses_new_certificates_and_refuses_bad_ones_as_a_whole() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    // A resumed session would keep the certificate that it was made with.
    let used = async || {
        let seen = certificates
            .client()
            .get(https(&gateway), "localhost", TOKEN)
            .await;
        seen.unwrap().certificate
    };
    let first = certificate_in(&certificates, "localhost");
    assert_eq!(used().await, first);
    // The key is the old one still.
    let key = || fs::read_to_string(certificates.path("localhost.key")).unwrap();
    let old_key = key();
    certificates.sign("localhost");
    let new_key = key();
    certificates.write("localhost.key", &old_key);
    let refused = gateway.reload("[limit]\nconnections = 7\n").await;
    assert_eq!(refused.status, 422);
    for part in ["does not belong to the first certificate", "localhost.key"] {
        assert!(refused.text().contains(part), "{}", refused.text());
    }
    assert_eq!(used().await, first);
    certificates.write("localhost.key", &new_key);
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    let second = certificate_in(&certificates, "localhost");
    assert_ne!(first, second);
    assert_eq!(used().await, second);
}
