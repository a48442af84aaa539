//! Certificates that change while the gateway serves.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::{certificate_in, https, started};
use crate::support::https::Certificates;
use crate::support::{Gateway, TOKEN, Upstream};

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
    assert!(refused.text().contains("test.toml:"), "{}", refused.text());
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

/// Kubernetes mounts a secret as links through `..data`, which it replaces at once.
#[tokio::test]
async fn changed_files_are_noticed_through_a_symlink_swap() {
    let upstream = Upstream::start();
    let certificates = Certificates::new();
    let version = |name: &str| {
        fs::create_dir(certificates.path(name)).unwrap();
        certificates.sign_for(
            &format!("{name}/tls"),
            &["localhost"],
            &rcgen::PKCS_ECDSA_P256_SHA256,
            |_| {},
        );
    };
    version("..1");
    symlink("..1", certificates.path("..data")).unwrap();
    symlink("..data/tls.pem", certificates.path("tls.pem")).unwrap();
    symlink("..data/tls.key", certificates.path("tls.key")).unwrap();
    let gateway = Gateway::with(&upstream, &certificates.listener(&["tls"], ""));
    let used = async || {
        let seen = certificates
            .client()
            .get(https(&gateway), "localhost", TOKEN)
            .await;
        seen.unwrap().certificate
    };
    let first = used().await;
    gateway.server().maintain_certificates();
    assert_eq!(used().await, first);

    version("..2");
    symlink("..2", certificates.path("..data_tmp")).unwrap();
    fs::rename(certificates.path("..data_tmp"), certificates.path("..data")).unwrap();
    gateway.server().maintain_certificates();
    let second = used().await;
    assert_ne!(first, second);
    assert_eq!(second, certificate_in(&certificates, "..2/tls"));

    // A swap to something unusable.
    fs::create_dir(certificates.path("..3")).unwrap();
    symlink("..3", certificates.path("..data_tmp")).unwrap();
    fs::rename(certificates.path("..data_tmp"), certificates.path("..data")).unwrap();
    gateway.server().maintain_certificates();
    assert_eq!(used().await, second);
    let status = gateway.status();
    let refused = &status["listeners"][1]["tls"]["certificates"][0]["refused"];
    assert!(
        refused.as_str().unwrap().contains("cannot read"),
        "{status}"
    );
    let metrics = gateway.admin("/metrics").await;
    for (result, expected) in [("replaced", 1), ("refused", 1)] {
        let line =
            format!("ordgate_tls_certificate_changes_total{{result=\"{result}\"}} {expected}\n");
        assert!(metrics.text().contains(&line), "{}", metrics.text());
    }
    assert!(metrics.text().contains("ordgate_tls_certificate_refused{"));
}

/// New connections and requests on old ones go on while certificates change.
#[tokio::test]
async fn reloads_under_load_lose_no_request() {
    const RELOADS: usize = 25;
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "[limit]\nenabled = false\n");
    let address = https(&gateway);
    let is_over = Arc::new(AtomicBool::new(false));
    let clients = (0..4).map(|_| {
        let (client, is_over) = (certificates.client(), is_over.clone());
        tokio::spawn(async move {
            let mut served = 0;
            while !is_over.load(SeqCst) {
                let seen = client.get(address, "localhost", TOKEN).await;
                assert!(seen.unwrap().text.starts_with("HTTP/1.1 200"));
                served += 1;
            }
            served
        })
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..RELOADS {
        certificates.sign("localhost");
        assert_eq!(gateway.reload_as_it_is().await.status, 200);
    }
    is_over.store(true, SeqCst);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
}
