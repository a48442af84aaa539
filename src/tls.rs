//! TLS on the public listeners: certificates, their choice by server name, session
//! tickets. `listener` does the handshakes; `serve` loads and reloads.
//!
//! Invariant: certificates in use are replaced only by ones that have been checked.
//! A pair of files that cannot be read, does not match or has expired is refused,
//! and the previous pair stays in use.
//!
//! Deliberately absent: 0-RTT data, which can be replayed; OCSP stapling; client
//! certificates.

mod certificate;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use certificate::{Certificate, choose};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS on the listener: [listener.tls]. Clients then use https.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsSettings {
    /// The oldest version of TLS that clients may use.
    pub min_version: TlsVersion,
    /// The certificates, each with its private key: a list such as
    /// [{ chain = "cert.pem", key = "key.pem" }].
    ///
    /// A client gets the certificate that has the name it asks for (SNI), or has a wildcard
    /// for it, else the first one. A name may have an ECDSA certificate and an RSA one; a
    /// client gets the one that it can check. ordgate reads the files again on a reload, and
    /// every minute, and uses what has changed.
    pub certificates: Vec<CertificateFiles>,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            min_version: TlsVersion::Tls12,
            certificates: Vec::new(),
        }
    }
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum TlsVersion {
    /// 1.2.
    #[serde(rename = "1.2")]
    Tls12,
    /// 1.3.
    #[serde(rename = "1.3")]
    Tls13,
}

/// A certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateFiles {
    /// A PEM file with the certificate, and after it the certificates that lead to an
    /// authority.
    pub chain: PathBuf,
    /// A PEM file with the private key; it may be the same file. It must not be readable by
    /// others or writable by its group (chmod 600).
    pub key: PathBuf,
}

/// What the TLS of all listeners shares. It outlives reloads: a client can resume
/// its session after one.
#[derive(Default)]
pub struct Tls {
    /// Made with the first server: seeding aws-lc's generator takes tens of milliseconds.
    tickets: OnceLock<Arc<dyn ProducesTickets>>,
}

impl Tls {
    /// Loads the certificates of a listener. One that a server in use has may have expired
    /// meanwhile: that does not keep a reload from applying the rest.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn server(
        &self,
        settings: &TlsSettings,
        in_use: &[Arc<TlsServer>],
        now: SystemTime,
    ) -> Result<Arc<TlsServer>, Vec<String>> {
        let in_use = in_use.iter().flat_map(|server| server.certificates.all());
        let pairs = load(settings, &in_use.collect::<Vec<_>>(), now)?;
        let certificates = Arc::new(Certificates(ArcSwap::from_pointee(pairs)));
        let versions = match settings.min_version {
            TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .map_err(|error| vec![format!("TLS: {error}")])?
            .with_no_client_auth()
            .with_cert_resolver(certificates.clone());
        // Their keys are replaced every six hours.
        let tickets = || Ticketer::new().expect("aws-lc has random bytes");
        config.ticketer = self.tickets.get_or_init(tickets).clone();
        // Clients resume by tickets, which take no memory here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // The versions of HTTP that `listener` serves over TLS.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(TlsServer {
            config: Arc::new(config),
            certificates,
        }))
    }
}

/// Everything that is wrong with a listener's certificates.
pub fn check(settings: &TlsSettings, now: SystemTime) -> Vec<String> {
    load(settings, &[], now).err().unwrap_or_default()
}

/// Loads a listener's certificates, for `serve` and `check` alike.
///
/// # Errors
/// Everything that is wrong with them, one line each.
fn load(
    settings: &TlsSettings,
    in_use: &[Arc<Certificate>],
    now: SystemTime,
) -> Result<Vec<Pair>, Vec<String>> {
    if settings.certificates.is_empty() {
        return Err(vec![
            "listener.tls.certificates is missing; allowed are pairs of PEM files, such as [{ chain = \"cert.pem\", key = \"key.pem\" }]".to_owned(),
        ]);
    }
    let (mut pairs, mut problems) = (Vec::new(), Vec::new());
    for files in &settings.certificates {
        match Certificate::read(files, in_use, now) {
            Ok(certificate) => pairs.push(Pair {
                files: files.clone(),
                certificate: Arc::new(certificate),
                refused: None,
            }),
            Err(why) => problems.push(located(&why)),
        }
    }
    match problems.is_empty() {
        true => Ok(pairs),
        false => Err(problems),
    }
}

/// A reason, with the key of the configuration that names the files.
fn located(why: &str) -> String {
    format!("listener.tls.certificates: {why}")
}

/// The TLS side of a listener.
pub struct TlsServer {
    /// For handshakes.
    pub(crate) config: Arc<ServerConfig>,
    certificates: Arc<Certificates>,
}

/// The certificates of a listener, which are replaced while they are in use.
#[derive(Debug)]
struct Certificates(ArcSwap<Vec<Pair>>);

/// A pair of files, and the certificate from it that is in use.
#[derive(Clone, Debug)]
struct Pair {
    files: CertificateFiles,
    certificate: Arc<Certificate>,
    /// What is wrong with the files as they are now, if they were refused.
    refused: Option<String>,
}

impl Certificates {
    fn all(&self) -> Vec<Arc<Certificate>> {
        let pairs = self.0.load();
        pairs.iter().map(|pair| pair.certificate.clone()).collect()
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        choose(&self.all(), hello.server_name(), hello.signature_schemes())
    }
}

/// A certificate in use, for `/status` and metrics.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateStatus {
    /// The file of its chain.
    pub chain: PathBuf,
    /// The DNS names in it.
    pub names: Vec<String>,
    /// Until when it is valid, as an HTTP date.
    pub not_after: String,
    /// Whole days until then; negative afterwards.
    pub days: i64,
    /// Why its files, which have changed, are not used.
    pub refused: Option<String>,
}

impl TlsServer {
    /// The certificates in use.
    pub fn status(&self, now: SystemTime) -> Vec<CertificateStatus> {
        let pairs = self.certificates.0.load();
        let status = |pair: &Pair| CertificateStatus {
            chain: pair.files.chain.clone(),
            names: pair.certificate.names.clone(),
            not_after: certificate::date(pair.certificate.not_after),
            days: days_left(pair.certificate.not_after, now),
            refused: pair.refused.clone(),
        };
        pairs.iter().map(status).collect()
    }

    /// Reads the files again, and uses the certificates that have changed. It must not run
    /// on a thread that serves.
    pub fn reread(&self, now: SystemTime) {
        let pairs = self.certificates.0.load();
        let pairs = pairs.iter().map(|pair| pair.reread(now)).collect();
        self.certificates.0.store(Arc::new(pairs));
    }
}

impl Pair {
    /// The pair as its files are now. Logs what has changed.
    fn reread(&self, now: SystemTime) -> Self {
        let in_use = std::slice::from_ref(&self.certificate);
        let (certificate, refused) = match Certificate::read(&self.files, in_use, now) {
            Ok(read) => {
                if read.key.cert != self.certificate.key.cert {
                    tracing::info!(
                        names = read.names.join(", "),
                        not_after = certificate::date(read.not_after),
                        "the certificate {} has changed and is in use",
                        self.files.chain.display()
                    );
                }
                (Arc::new(read), None)
            }
            Err(why) => {
                let why = located(&why);
                if self.refused.as_ref() != Some(&why) {
                    tracing::error!("{why}; the previous certificate stays in use");
                }
                (self.certificate.clone(), Some(why))
            }
        };
        Self {
            files: self.files.clone(),
            certificate,
            refused,
        }
    }
}

/// Whole days until a time; negative after it.
fn days_left(not_after: SystemTime, now: SystemTime) -> i64 {
    let seconds = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs().cast_signed()
    };
    (seconds(not_after) - seconds(now)).div_euclid(24 * 60 * 60)
}

#[cfg(test)]
mod tests;
