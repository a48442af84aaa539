//! An upstream over TLS: which certificates are trusted; to one that is not, or without
//! TLS, no request and no key is sent.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::version::{TLS12, TLS13};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::until_idle;
use crate::support::tls::{self, self_signed, vouching};
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gateway, Setup, TOKEN, Upstream, within};

const KEY: &str = "a-key-of-ours";

/// Before this URL, trusting this authority.
fn trusting(url: &str, authority: &str, config: &str) -> Gateway {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    let setup = Setup::at(url).keys(KEY).config(&ca_file);
    setup.config(config).start()
}

fn says(answer: &Answer, status: u16, error: &str, name: &str) {
    assert_eq!(answer.status, status, "{name}: {answer:?}");
    let proxy_status = answer.must("proxy-status");
    assert_eq!(proxy_status, format!("ordgate; error={error}"), "{name}");
    answer.problem();
}

#[tokio::test]
async fn a_certificate_of_a_configured_authority_is_trusted() {
    let (authority, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{}", upstream.address().port());
        let answer = trusting(&url, &authority, "").get(TOKEN).await;
        assert_eq!((answer.status, answer.text()), (200, &*usual_body(TOKEN)));
        let key = upstream.seen().pop().unwrap().field("x-api-key");
        assert_eq!(key.as_deref(), Some(KEY));
    }
}

/// Each says in `/status` what is wrong with the certificate.
#[tokio::test]
async fn an_untrusted_certificate_gets_502() {
    let named = |name: &'static str| {
        vouching(move |params: &mut rcgen::CertificateParams| {
            let name = rcgen::SanType::DnsName(name.try_into().unwrap());
            params.subject_alt_names = vec![name];
        })
    };
    let (sound, _unused) = tls::authority();
    let (certificate, demand) = (
        ("tls_certificate", "tls_certificate_error", "TLS"),
        (
            "tls_client_certificate",
            "tls_alert_received",
            "requires a TLS client certificate",
        ),
    );
    // what the cause contains, authority and server, reason and texts
    let rows = [
        (
            "expired",
            vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1)),
            certificate,
        ),
        (
            "not valid yet",
            vouching(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1)),
            certificate,
        ),
        ("other.example", named("other.example"), certificate),
        ("withheld", named(KEY), certificate),
        (
            "invalid peer certificate",
            (sound.clone(), self_signed()),
            certificate,
        ),
        (
            "invalid peer certificate",
            (sound, tls::authority().1),
            certificate,
        ),
        (
            "CaUsedAsEndEntity",
            vouching(|params| {
                params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            }),
            certificate,
        ),
        (
            "client",
            vouching(|params| {
                params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
            }),
            certificate,
        ),
        ("CertificateRequired", tls::demanding(&TLS12), demand),
        ("CertificateRequired", tls::demanding(&TLS13), demand),
    ];
    for (cause, (authority, acceptor), (reason, error, detail)) in rows {
        let upstream = Upstream::start_tls(acceptor);
        let url = format!("https://localhost:{}", upstream.address().port());
        let gateway = trusting(&url, &authority, "");
        for times in 1..=2 {
            let answer = gateway.get(TOKEN).await;
            says(&answer, 502, error, cause);
            let own = answer.problem();
            assert_eq!(own["reason"], reason, "{cause}: {own}");
            assert!(own["detail"].to_string().contains(detail), "{cause}: {own}");
            // A retry would be useless, so there is one attempt.
            assert_eq!(upstream.connections(), times, "{cause}");
        }
        let last = gateway.status()["upstream"]["endpoints"][0]["last_failure"].clone();
        assert_eq!(
            (&last["reason"], &last["in_a_row"]),
            (&reason.into(), &2.into())
        );
        assert!(last["cause"].to_string().contains(cause), "{cause}: {last}");
        assert!(!last.to_string().contains(KEY), "{cause}: {last}");
        assert_eq!(upstream.count(), 0, "{cause}: nothing was said to it");
        until_idle(&gateway, cause).await;
    }
}

/// Something that is no TLS server: it keeps what it hears, answers with these
/// bytes once it has heard something, and closes.
async fn no_tls(answer: &'static [u8]) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let keep = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut room = vec![0; 4096];
            let length = stream.read(&mut room).await.unwrap_or(0);
            keep.lock().unwrap().extend_from_slice(&room[..length]);
            // The gateway may have hung up by now.
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
            while let Ok(length @ 1..) = stream.read(&mut room).await {
                keep.lock().unwrap().extend_from_slice(&room[..length]);
            }
        }
    });
    (address, heard)
}

#[tokio::test]
async fn a_server_without_tls_gets_502() {
    let plain = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    // A fatal alert: handshake_failure.
    let alert = b"\x15\x03\x03\x00\x02\x02\x28";
    let rows: [(&str, &'static [u8], &str); 3] = [
        ("plain http", plain, "tls_protocol_error"),
        ("an alert", alert, "tls_protocol_error"),
        ("closed", b"", "destination_unavailable"),
    ];
    for (name, answer, error) in rows {
        let (address, heard) = no_tls(answer).await;
        let url = format!("https://{address}");
        let gateway = Setup::at(&url).keys(KEY).start();
        says(&gateway.get(TOKEN).await, 502, error, name);
        until_idle(&gateway, name).await;
        let heard = String::from_utf8_lossy(&heard.lock().unwrap()).into_owned();
        assert!(!heard.is_empty(), "{name}");
        assert!(!heard.contains(KEY) && !heard.contains("GET "), "{name}");
    }
}

#[tokio::test]
async fn an_unanswered_handshake_times_out() {
    // It accepts, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let gateway = Setup::at(&url)
        .keys(KEY)
        .config("upstream.connect_timeout = \"150ms\"")
        .start();
    let began = Instant::now();
    let answer = within("the handshake", gateway.get(TOKEN)).await;
    let took = began.elapsed();
    says(&answer, 504, "connection_timeout", "silent");
    assert!(took >= Duration::from_millis(150), "{took:?}");
    until_idle(&gateway, "silent").await;
    // What it was sent is a greeting without the key, and an end.
    let (mut stream, _) = silent.accept().unwrap();
    let mut heard = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut heard);
    let heard = String::from_utf8_lossy(&heard).into_owned();
    assert!(!heard.contains(KEY) && !heard.contains("GET "));
}

#[tokio::test]
async fn an_authority_added_by_a_reload_is_trusted_at_once() {
    let (authority, acceptor) = tls::authority();
    let upstream = Upstream::start_tls(acceptor);
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys(KEY).start();
    let answer = gateway.get(TOKEN).await;
    says(&answer, 502, "tls_certificate_error", "before");
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    assert_eq!(gateway.reload(&ca_file).await.status, 200);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].field("x-api-key").as_deref(), Some(KEY));
}
