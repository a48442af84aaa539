//! TLS on the public listeners: versions, certificates by name, resumption, limits on
//! handshakes, reloads.

mod limits;
mod reload;
pub(crate) mod tools;

use std::net::SocketAddr;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::frames::{PREFACE, SETTINGS, frame};
use crate::support::https::Certificates;
use crate::support::{Gateway, TOKEN, Upstream, within};

/// The listener with TLS.
fn https(gateway: &Gateway) -> SocketAddr {
    let mut listeners = gateway.server().bound_listeners().into_iter();
    let found = listeners.find(|listener| listener.settings.tls.is_some());
    found.unwrap().address.tcp().unwrap()
}

/// The certificate in a file.
fn certificate_in(certificates: &Certificates, file: &str) -> Vec<u8> {
    let path = certificates.path(&format!("{file}.pem"));
    CertificateDer::from_pem_file(path).unwrap().to_vec()
}

/// A gateway with a certificate for localhost, and with more configuration.
pub(crate) fn started(upstream: &Upstream, more: &str) -> (Certificates, Gateway) {
    let certificates = Certificates::new();
    certificates.sign("localhost");
    let config = format!("{}{more}", certificates.listener(&["localhost"], ""));
    let gateway = Gateway::with(upstream, &config);
    (certificates, gateway)
}

/// The number of handshakes with these labels.
async fn handshakes(gateway: &Gateway, version: &str, result: &str) -> u64 {
    let metrics = gateway.admin("/metrics").await;
    let name =
        format!("ordgate_tls_handshakes_total{{version=\"{version}\",result=\"{result}\"}} ");
    let line = metrics
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name}")).parse().unwrap()
}

#[tokio::test]
async fn both_versions_are_spoken_and_the_answers_are_those_of_cleartext() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    let clear = gateway.get(TOKEN).await;
    for (version, expected, label) in [
        (&TLS13, ProtocolVersion::TLSv1_3, "1.3"),
        (&TLS12, ProtocolVersion::TLSv1_2, "1.2"),
    ] {
        let client = certificates.client_of(&[version]);
        let seen = client
            .get(https(&gateway), "localhost", TOKEN)
            .await
            .unwrap();
        assert_eq!(seen.version, expected);
        assert_eq!(seen.handshake, HandshakeKind::Full);
        assert_eq!(seen.alpn.as_deref(), Some(&b"http/1.1"[..]));
        assert!(
            seen.text.starts_with("HTTP/1.1 200 OK\r\n"),
            "{}",
            seen.text
        );
        assert!(seen.text.ends_with(clear.text()), "{}", seen.text);
        assert_eq!(handshakes(&gateway, label, "new").await, 1);
        if label == "1.3" {
            assert_eq!(seen.group, "X25519MLKEM768");
        }
    }
    // Without ALPN it is HTTP/1.1; without a common protocol the handshake fails.
    let mut client = certificates.client();
    client.config.alpn_protocols.clear();
    let seen = client
        .get(https(&gateway), "localhost", TOKEN)
        .await
        .unwrap();
    assert!(seen.text.starts_with("HTTP/1.1 200 OK\r\n"));
    client.config.alpn_protocols = vec![b"spdy/3".to_vec()];
    let refused = client
        .get(https(&gateway), "localhost", TOKEN)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("NoApplicationProtocol"),
        "{refused}"
    );
    until_handshakes(&gateway, "failed", 1).await;
    let status = gateway.status();
    let tls = status["listeners"][1]["tls"].clone();
    assert_eq!(tls["min_version"], "1.2");
    assert_eq!(tls["certificates"][0]["names"][0], "localhost");
    assert!(
        tls["certificates"][0]["days"].as_i64().unwrap() > 365,
        "{tls}"
    );
    assert_eq!(status["listeners"][0]["tls"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_client_speaks_the_protocol_that_alpn_has_chosen() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    let http2 = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    // Without ALPN it is HTTP/1.1 as well.
    for protocols in [vec![], vec![b"http/1.1".to_vec()]] {
        let mut client = certificates.client();
        client.config.alpn_protocols = protocols;
        let mut stream = client.connect(https(&gateway), "localhost").await.unwrap();
        stream.write_all(&http2).await.unwrap();
        let mut first = [0; 9];
        let read = stream.read_exact(&mut first);
        let read = within("an answer, or the end", read).await;
        assert!(read.is_err(), "{first:?}");
    }
}

#[tokio::test]
async fn an_older_version_than_the_configured_one_is_refused() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "min_version = \"1.3\"\n");
    let address = https(&gateway);
    let old = certificates.client_of(&[&TLS12]);
    let refused = old.get(address, "localhost", TOKEN).await.unwrap_err();
    assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
    let client = certificates.client();
    assert!(client.get(address, "localhost", TOKEN).await.is_ok());
}

/// Which one it is stands in `tls::resolver`.
#[tokio::test]
async fn the_certificate_is_that_of_the_name_the_client_asks_for() {
    let upstream = Upstream::start();
    let certificates = Certificates::new();
    certificates.sign("first.example");
    let algorithm = &rcgen::PKCS_RSA_SHA256;
    certificates.sign_for("wild", &["*.shop.example"], algorithm, |_| {});
    let config = certificates.listener(&["first.example", "wild"], "");
    let gateway = Gateway::with(&upstream, &config);
    let client = certificates.client();
    for (name, file) in [
        ("first.example", "first.example"),
        ("a.shop.example", "wild"),
    ] {
        let seen = client.get(https(&gateway), name, TOKEN).await.unwrap();
        assert!(seen.text.starts_with("HTTP/1.1 200"), "{name}");
        assert_eq!(
            seen.certificate,
            certificate_in(&certificates, file),
            "{name}"
        );
    }
    // Any other name gets the first certificate, which is not for it.
    let wrong = client.get(https(&gateway), "other.example", TOKEN).await;
    let wrong = wrong.unwrap_err().to_string();
    assert!(wrong.contains("first.example"), "{wrong}");
}

/// Waits until so many handshakes have this result. They are counted when the client may
/// have seen their end already.
async fn until_handshakes(gateway: &Gateway, result: &str, expected: u64) {
    let counted = async { while handshakes(gateway, "none", result).await != expected {} };
    within(&format!("{expected} handshakes are {result}"), counted).await;
}

#[tokio::test]
async fn sessions_are_resumed_across_a_reload() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "[limit]\nenabled = false\n");
    for (version, label) in [(&TLS13, "1.3"), (&TLS12, "1.2")] {
        let client = certificates.client_of(&[version]);
        for round in 0..6 {
            if round % 3 == 2 {
                assert_eq!(gateway.reload_as_it_is().await.status, 200);
            }
            let seen = client
                .get(https(&gateway), "localhost", TOKEN)
                .await
                .unwrap();
            let is_resumed = seen.handshake == HandshakeKind::Resumed;
            assert_eq!(is_resumed, round > 0, "{label}, {round}");
        }
        assert_eq!(handshakes(&gateway, label, "resumed").await, 5);
    }
}

/// Cleartext on the port of TLS, and the other way round.
#[tokio::test]
async fn what_is_no_tls_is_refused_and_harms_nobody() {
    let upstream = Upstream::start();
    let (certificates, gateway) = started(&upstream, "");
    let mut clear = crate::support::Client::connect(https(&gateway)).await;
    clear.send_request("GET", TOKEN, &[]).await;
    let alert = clear.rest().await;
    assert_eq!(alert.first(), Some(&21), "an alert: {alert:?}");
    let client = certificates.client();
    assert!(
        client
            .get(gateway.public, "localhost", TOKEN)
            .await
            .is_err()
    );
    assert!(
        client
            .get(https(&gateway), "localhost", TOKEN)
            .await
            .is_ok()
    );
    until_handshakes(&gateway, "failed", 1).await;
}
