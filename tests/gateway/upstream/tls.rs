//! An upstream over TLS: which certificates are trusted; to one that is not, or without
//! TLS, no request and no key is sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;

use rustls::version::TLS13;
use tempfile::NamedTempFile;

use super::endpoint;
use crate::support::tls::{self, self_signed, vouching};
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gateway, Setup, TOKEN, Upstream, within};

const KEY: &str = "a-key-of-ours";

/// Before this URL, trusting this authority.
fn trusting(url: &str, authority: &str) -> Gateway {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    Setup::at(url).keys(KEY).config(&ca_file).start()
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
        let answer = trusting(&url, &authority).get(TOKEN).await;
        assert_eq!((answer.status, answer.text()), (200, &*usual_body(TOKEN)));
        let key = upstream.seen().pop().unwrap().field("x-api-key");
        assert_eq!(key.as_deref(), Some(KEY));
    }
    // As is one that a reload brings.
    let url = format!("https://localhost:{}", upstream.address().port());
    let gateway = Setup::at(&url).keys(KEY).start();
    says(
        &gateway.get(TOKEN).await,
        502,
        "tls_certificate_error",
        "before",
    );
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(authority.as_bytes()).unwrap();
    let ca_file = format!("upstream.ca_file = \"{}\"", file.path().display());
    assert_eq!(gateway.reload(&ca_file).await.status, 200);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
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
    let expired = vouching(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let other = (tls::authority().0, self_signed());
    // What the cause contains, authority and server, reason, type, and the client's text.
    #[rustfmt::skip]
    let rows = [
        ("expired", expired, "tls_certificate", "tls_certificate_error", "TLS"),
        (
            "other.example",
            named("other.example"),
            "tls_certificate",
            "tls_certificate_error",
            "TLS",
        ),
        ("[key]", named(KEY), "tls_certificate", "tls_certificate_error", "TLS"),
        ("invalid peer certificate", other, "tls_certificate", "tls_certificate_error", "TLS"),
        (
            "CertificateRequired",
            tls::demanding(&TLS13),
            "tls",
            "tls_protocol_error",
            "No TLS connection",
        ),
    ];
    for (cause, (authority, acceptor), reason, error, detail) in rows {
        let upstream = Upstream::start_tls(acceptor);
        let url = format!("https://localhost:{}", upstream.address().port());
        let gateway = trusting(&url, &authority);
        let answer = gateway.get(TOKEN).await;
        says(&answer, 502, error, cause);
        let own = answer.problem();
        assert_eq!(own["reason"], reason, "{cause}: {own}");
        assert!(own["detail"].to_string().contains(detail), "{cause}: {own}");
        assert_eq!(
            upstream.connections(),
            1,
            "{cause}: a retry would be useless"
        );
        let last = endpoint(&gateway, 0)["last_failure"].clone();
        assert_eq!(
            (&last["reason"], &last["in_a_row"]),
            (&reason.into(), &1.into())
        );
        assert!(last["cause"].to_string().contains(cause), "{cause}: {last}");
        assert!(!last.to_string().contains(KEY), "{cause}: {last}");
        assert_eq!(upstream.count(), 0, "{cause}: nothing was said to it");
    }
}

/// Something that is no TLS server: it answers the first bytes of its one connection with
/// these, if there are any, and returns all that it hears until that is closed.
fn no_tls(answer: &'static [u8]) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = vec![0; 4096];
        let length = stream.read(&mut heard).unwrap_or(0);
        heard.truncate(length);
        if !answer.is_empty() {
            // The gateway may have hung up by now.
            let _ = stream.write_all(answer);
        }
        let _ = stream.read_to_end(&mut heard);
        String::from_utf8_lossy(&heard).into_owned()
    });
    (address, heard)
}

#[tokio::test]
async fn a_server_without_tls_gets_no_request() {
    let plain = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
    // A fatal alert: handshake_failure.
    let alert = b"\x15\x03\x03\x00\x02\x02\x28";
    let rows: [(&str, &'static [u8], u16, &str); 3] = [
        ("plain http", plain, 502, "tls_protocol_error"),
        ("an alert", alert, 502, "tls_protocol_error"),
        ("silent", b"", 504, "connection_timeout"),
    ];
    for (name, answer, status, error) in rows {
        let (address, heard) = no_tls(answer);
        let setup = Setup::at(&format!("https://{address}")).keys(KEY);
        let times = "upstream.first_byte_timeout = \"300ms\"\nupstream.retry = false";
        let gateway = setup.config(times).start();
        let answer = within(name, gateway.get(TOKEN)).await;
        says(&answer, status, error, name);
        let heard = within(name, tokio::task::spawn_blocking(|| heard.join())).await;
        let heard = heard.unwrap().unwrap();
        assert!(!heard.is_empty(), "{name}");
        assert!(!heard.contains(KEY) && !heard.contains("GET "), "{name}");
    }
}
