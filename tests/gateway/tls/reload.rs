//! Certificates that change while the gateway serves.

use std::fs;

use super::{certificate_in, https, started};
use crate::support::{TOKEN, Upstream};

#[tokio::test]
async fn a_reload_uses_new_certificates_and_refuses_bad_ones_as_a_whole() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    let client = certificates.client();
    let first = certificate_in(&certificates, "localhost");
    let used = async || {
        let seen = client.get(https(&gateway), "localhost", TOKEN).await;
        seen.unwrap().certificate
    };
    assert_eq!(used().await, first);
    // The key is the old one still.
    let old_key = fs::read_to_string(certificates.path("localhost.key")).unwrap();
    certificates.sign("localhost");
    let new_key = fs::read_to_string(certificates.path("localhost.key")).unwrap();
    certificates.write("localhost.key", &old_key);
    let refused = gateway.reload("[limit]\nconnections = 7\n").await;
    assert_eq!(refused.status, 422);
    assert!(
        refused
            .text()
            .contains("does not belong to the certificate"),
        "{}",
        refused.text()
    );
    assert!(
        refused.text().contains("localhost.key"),
        "{}",
        refused.text()
    );
    assert_eq!(used().await, first);
    certificates.write("localhost.key", &new_key);
    assert_eq!(gateway.reload_as_it_is().await.status, 200);
    let second = certificate_in(&certificates, "localhost");
    assert_ne!(first, second);
    // A resumed session keeps the certificate that it was made with.
    let fresh = certificates.client();
    let seen = fresh
        .get(https(&gateway), "localhost", TOKEN)
        .await
        .unwrap();
    assert_eq!(seen.certificate, second);
}
