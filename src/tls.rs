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
mod expiry;
mod resolver;
mod self_signed;
mod validity;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;

pub use certificate::CertificateError;
use certificate::{Certificate, FileContents};
use expiry::ExpiryNotices;
use resolver::CertificateResolver;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, SupportedCipherSuite};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meter::TlsCounts;
use crate::sync::lock;

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
    /// every minute, and uses what has changed. With `serve --sandbox`, a listener without
    /// certificates makes its own.
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
pub struct Tls {
    provider: Arc<CryptoProvider>,
    /// Made with the first server: seeding aws-lc's generator takes tens of milliseconds.
    tickets: OnceLock<Arc<dyn ProducesTickets>>,
    notices: ExpiryNotices,
    /// Whether a listener without certificates makes one.
    makes_certificates: bool,
    self_signed: OnceLock<Arc<Certificate>>,
}

impl Tls {
    /// With `makes_certificates`, a listener without certificates gets a self-signed
    /// one.
    pub fn new(makes_certificates: bool) -> Self {
        let mut provider = default_provider();
        // AES with 128 bits is as safe, and takes less time.
        let is_aes256 = |suite: &SupportedCipherSuite| {
            suite
                .suite()
                .as_str()
                .is_some_and(|name| name.contains("AES_256"))
        };
        provider.cipher_suites.sort_by_key(is_aes256);
        Self {
            provider: Arc::new(provider),
            tickets: OnceLock::new(),
            notices: ExpiryNotices::default(),
            makes_certificates,
            self_signed: OnceLock::new(),
        }
    }

    /// Loads the certificates of a listener. A pair of files that has not changed since
    /// one of the servers in use has loaded it is not checked again: a certificate that
    /// has expired meanwhile does not keep a reload from applying the rest.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub fn server(
        &self,
        settings: &TlsSettings,
        in_use: &[Arc<TlsServer>],
        now: SystemTime,
    ) -> Result<Arc<TlsServer>, Vec<String>> {
        let pairs = match settings.certificates.is_empty() && self.makes_certificates {
            true => Vec::new(),
            false => load(settings, in_use, now)?,
        };
        let refused = |error: rustls::Error| vec![format!("TLS: {error}")];
        let resolver = match pairs.is_empty() {
            true => CertificateResolver::new(vec![self.self_signed(now).map_err(refused)?]),
            false => CertificateResolver::new(certificates(&pairs)),
        };
        let resolver = Arc::new(resolver);
        let versions = match settings.min_version {
            TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)
            .map_err(refused)?
            .with_no_client_auth()
            .with_cert_resolver(resolver.clone());
        // All suites are strong; programs that check servers want an order of the server.
        config.ignore_client_order = true;
        config.ticketer = self.tickets().map_err(refused)?;
        // Clients resume by tickets, which take no memory here.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // The versions of HTTP that `listener` serves over TLS.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(TlsServer {
            config: Arc::new(config),
            resolver,
            pairs: Mutex::new(pairs),
        }))
    }

    fn tickets(&self) -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
        if let Some(tickets) = self.tickets.get() {
            return Ok(tickets.clone());
        }
        // Their keys are replaced every six hours.
        let made = Ticketer::new()?;
        Ok(self.tickets.get_or_init(|| made).clone())
    }

    fn self_signed(&self, now: SystemTime) -> Result<Arc<Certificate>, rustls::Error> {
        if let Some(certificate) = self.self_signed.get() {
            return Ok(certificate.clone());
        }
        let made = Arc::new(self_signed::certificate(&self.provider, now)?);
        Ok(self.self_signed.get_or_init(|| made).clone())
    }

    /// Replaces the certificates whose files have changed, and logs those that
    /// expire soon. This reads files, so it must not run on a thread that serves.
    pub fn maintain(&self, servers: &[Arc<TlsServer>], counts: &TlsCounts, now: SystemTime) {
        for server in servers {
            server.reread(counts, now);
        }
        let each = servers
            .iter()
            .flat_map(|server| server.resolver.certificates());
        self.notices.log(&each.collect::<Vec<_>>(), now);
    }
}

/// Loads a listener's certificates, for `serve` and `check` alike.
///
/// # Errors
/// Everything that is wrong with them, one line each.
fn load(
    settings: &TlsSettings,
    in_use: &[Arc<TlsServer>],
    now: SystemTime,
) -> Result<Vec<CertificatePair>, Vec<String>> {
    if settings.certificates.is_empty() {
        return Err(vec![
            "listener.tls.certificates is missing; allowed are pairs of PEM files, such as [{ chain = \"cert.pem\", key = \"key.pem\" }]; --sandbox needs none".to_owned(),
        ]);
    }
    let (mut pairs, mut problems) = (Vec::new(), Vec::new());
    for files in &settings.certificates {
        let loaded = FileContents::read(files).and_then(|contents| {
            let digest = contents.digest();
            match in_use.iter().find_map(|server| server.loaded(&digest)) {
                Some(unchanged) => Ok(unchanged),
                None => contents.certificate(files, now).map(Arc::new),
            }
        });
        match loaded {
            Ok(loaded) => pairs.push(CertificatePair {
                files: files.clone(),
                loaded,
                refused: None,
            }),
            Err(why) => problems.push(why.located()),
        }
    }
    match problems.is_empty() {
        true => Ok(pairs),
        false => Err(problems),
    }
}

/// Everything that is wrong with a listener's certificates. `makes_certificates` is
/// that of [`Tls::new`].
pub fn check(settings: &TlsSettings, makes_certificates: bool, now: SystemTime) -> Vec<String> {
    match settings.certificates.is_empty() && makes_certificates {
        true => Vec::new(),
        false => load(settings, &[], now).err().unwrap_or_default(),
    }
}

fn certificates(pairs: &[CertificatePair]) -> Vec<Arc<Certificate>> {
    pairs.iter().map(|pair| pair.loaded.clone()).collect()
}

/// The TLS side of a listener.
pub struct TlsServer {
    config: Arc<ServerConfig>,
    resolver: Arc<CertificateResolver>,
    pairs: Mutex<Vec<CertificatePair>>,
}

/// A pair of files, and the certificate from it that is in use.
struct CertificatePair {
    files: CertificateFiles,
    loaded: Arc<Certificate>,
    /// What is wrong with the files as they are now, if they were refused.
    refused: Option<Refused>,
}

/// Files that have changed and were refused.
struct Refused {
    /// Of their contents, where they can be read.
    digest: Option<certificate::FilesDigest>,
    why: String,
}

/// A certificate in use, for `/status` and metrics.
#[derive(Clone, Debug, Serialize)]
pub struct CertificateStatus {
    /// The file of its chain; none if it was made here.
    pub chain: Option<PathBuf>,
    /// The DNS names in it.
    pub names: Vec<Box<str>>,
    /// Until when it is valid, as an HTTP date.
    pub not_after: String,
    /// Whole days until then; negative afterwards.
    pub days: i64,
    /// Why its files, which have changed, are not used.
    pub refused: Option<String>,
}

impl TlsServer {
    /// For handshakes.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// The certificate that was loaded from files of this digest.
    fn loaded(&self, digest: &certificate::FilesDigest) -> Option<Arc<Certificate>> {
        let pairs = self.pairs();
        let found = pairs.iter().find(|pair| pair.loaded.digest == *digest);
        found.map(|pair| pair.loaded.clone())
    }

    /// The certificates in use.
    pub fn status(&self, now: SystemTime) -> Vec<CertificateStatus> {
        let pairs = self.pairs();
        let status = |(at, certificate): (usize, Arc<Certificate>)| {
            let pair = pairs.get(at);
            let refused = pair.and_then(|pair| pair.refused.as_ref());
            CertificateStatus {
                chain: pair.map(|pair| pair.files.chain.clone()),
                names: certificate.names.clone(),
                not_after: expiry::date(certificate.not_after),
                days: expiry::days_left(certificate.not_after, now),
                refused: refused.map(|refused| refused.why.clone()),
            }
        };
        let certificates = self.resolver.certificates().into_iter();
        certificates.enumerate().map(status).collect()
    }

    /// Replaces the certificates whose files have other contents than when they
    /// were loaded.
    fn reread(&self, counts: &TlsCounts, now: SystemTime) {
        let mut pairs = self.pairs();
        let mut is_changed = false;
        for pair in pairs.iter_mut() {
            is_changed |= pair.reread(counts, now);
        }
        if is_changed {
            self.resolver.replace(certificates(&pairs));
        }
    }

    fn pairs(&self) -> MutexGuard<'_, Vec<CertificatePair>> {
        lock(&self.pairs)
    }
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.resolver.certificates();
        let names = names.iter().map(|certificate| &certificate.names);
        f.debug_list().entries(names).finish()
    }
}

impl CertificatePair {
    /// Whether there is another certificate now.
    fn reread(&mut self, counts: &TlsCounts, now: SystemTime) -> bool {
        let contents = FileContents::read(&self.files);
        let digest = contents.as_ref().ok().map(FileContents::digest);
        if digest == Some(self.loaded.digest) {
            self.refused = None;
            return false;
        }
        let chain = self.files.chain.display();
        match contents.and_then(|contents| contents.certificate(&self.files, now)) {
            Ok(certificate) => {
                counts.certificates_replaced.fetch_add(1, Relaxed);
                tracing::info!(
                    names = certificate.names.join(", "),
                    not_after = expiry::date(certificate.not_after),
                    "the certificate {chain} has changed and is in use"
                );
                self.loaded = Arc::new(certificate);
                self.refused = None;
                true
            }
            Err(error) => {
                let why = error.located();
                // Once for each state of the files.
                let known = self.refused.as_ref();
                if known.is_none_or(|known| known.digest != digest || known.why != why) {
                    counts.certificates_refused.fetch_add(1, Relaxed);
                    tracing::error!("{why}; the previous certificate stays in use");
                }
                self.refused = Some(Refused { digest, why });
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
