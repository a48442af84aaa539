//! The export of traces: OTLP over HTTP, to the collector that the environment names.
//!
//! One thread of its own takes spans from the tracer's queue and posts them in batches.
//! A collector that is slow or gone costs requests nothing: the queue fills, and what
//! finds it full is dropped and counted.

mod encode;
mod settings;

use std::future::Future;
use std::io::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::regular_file::{self, MAX_AUTHORITIES};
use crate::sync::lock;
use crate::trace::span::SpanRecord;
use crate::trace::tracer::{BATCH, Tracer};
pub use settings::{CollectorProblem, CollectorSettings, Encoding};

/// How often a batch is sent.
const MOST_ATTEMPTS: u32 = 5;
/// The pause before a batch is sent again; it doubles each time.
const PAUSE: Duration = Duration::from_millis(500);
/// No pause is longer, whatever the collector says.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// The most bytes of a collector's answer that are read.
const MOST_ANSWER: usize = 64 << 10;

/// Exports spans to a collector.
pub(crate) struct Exporter {
    tracer: Arc<Tracer>,
    settings: CollectorSettings,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    /// Why the last export has failed, if it has.
    failure: Mutex<Option<String>>,
}

/// Why the collector's certificates cannot be checked.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// The file of authorities cannot be read.
    #[error("OTEL_EXPORTER_OTLP_CERTIFICATE: {0}; a PEM file of certificates is allowed")]
    // Not as its source, since its text is here already.
    File(pem::Error),
    /// The file has no certificate that can be used.
    #[error("OTEL_EXPORTER_OTLP_CERTIFICATE: the file holds no certificate that can be used")]
    Empty,
    /// rustls rejects the configuration.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

/// How an attempt has failed.
enum ExportFailure {
    /// It may succeed later, not before this time where the collector has named one.
    Retry(String, Option<Duration>),
    /// It would fail again.
    Final(String),
}

impl Exporter {
    /// An exporter of the spans of a tracer. No connection is made yet.
    ///
    /// # Errors
    /// If the collector's certificates could not be checked.
    pub(crate) fn new(
        tracer: Arc<Tracer>,
        settings: CollectorSettings,
    ) -> Result<Self, ExporterError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(settings.timeout));
        let connector = HttpsConnector::from((http, tls(&settings)?));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            tracer,
            settings,
            client,
            failure: Mutex::default(),
        })
    }

    /// Exports until it is to stop, and then what still waits, for a bounded time.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut unsent = Vec::new();
        loop {
            tokio::select! {
                () = self.tracer.wait(self.settings.interval) => {}
                () = &mut stop => break,
            }
            unsent = self.tracer.take();
            while !unsent.is_empty() {
                tokio::select! {
                    () = self.export(&unsent) => {}
                    () = &mut stop => return self.flush(unsent).await,
                }
                // What is less than a batch waits for more.
                unsent = match self.tracer.waiting() < BATCH {
                    true => Vec::new(),
                    false => self.tracer.take(),
                };
            }
        }
        self.flush(unsent).await;
    }

    /// Exports a batch and all that waits, each once, within a time.
    async fn flush(&self, mut unsent: Vec<SpanRecord>) {
        let finished = timeout(self.settings.flush, async {
            loop {
                if unsent.is_empty() {
                    unsent = self.tracer.take();
                }
                if unsent.is_empty() {
                    return;
                }
                let result = self.attempt(self.body(&unsent)).await;
                self.count(unsent.len() as u64, result);
                unsent.clear();
            }
        });
        if finished.await.is_err() {
            let lost = unsent.len() + self.tracer.waiting();
            self.tracer.counts.failed.fetch_add(lost as u64, Relaxed);
            tracing::warn!(
                collector = self.settings.origin(),
                spans = lost,
                "the collector of traces did not take the last spans in time"
            );
        }
    }

    /// Exports a batch, with retries.
    async fn export(&self, spans: &[SpanRecord]) {
        let body = self.body(spans);
        let mut pause = PAUSE;
        for attempt in 1.. {
            let result = self.attempt(body.clone()).await;
            if let Err(ExportFailure::Retry(_, after)) = &result
                && attempt < MOST_ATTEMPTS
            {
                let wanted = after.unwrap_or(pause.mul_f64(0.5 + fastrand::f64() / 2.0));
                sleep(wanted.min(MOST_PAUSE)).await;
                pause *= 2;
                continue;
            }
            return self.count(spans.len() as u64, result);
        }
    }

    /// Counts a batch that was accepted, except for so many spans, or has failed.
    fn count(&self, spans: u64, result: Result<u64, ExportFailure>) {
        let counts = &self.tracer.counts;
        let collector = self.settings.origin();
        let (rejected, why) = match result {
            Ok(0) => (0, None),
            Ok(rejected) => (rejected.min(spans), Some("it rejects spans".to_owned())),
            Err(ExportFailure::Retry(why, _) | ExportFailure::Final(why)) => (spans, Some(why)),
        };
        counts.exported.fetch_add(spans - rejected, Relaxed);
        let before = counts.failed.fetch_add(rejected, Relaxed);
        // Each failure is counted. Logged is what is new.
        let mut failure = lock(&self.failure);
        match (&why, &*failure) {
            (Some(why), known) if known.as_ref() != Some(why) => {
                tracing::warn!(collector, spans = rejected, %why, "spans are not exported");
            }
            (None, Some(_)) => {
                tracing::info!(collector, failed = before, "spans are exported again");
            }
            (Some(_), _) | (None, None) => {}
        }
        *failure = why;
    }

    /// The body of an export of these spans.
    fn body(&self, spans: &[SpanRecord]) -> Bytes {
        let (encoding, resource) = (self.settings.encoding, &self.settings.resource);
        let body = encode::request(encoding, resource, spans, &self.tracer.clock);
        let compressed = self.settings.gzip.then(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&body)?;
            encoder.finish()
        });
        match compressed {
            // Writing to memory does not fail.
            Some(Ok(compressed)) => compressed.into(),
            Some(Err(_)) | None => body.into(),
        }
    }

    /// Posts a body once. Returns the number of spans that the collector has rejected.
    async fn attempt(&self, body: Bytes) -> Result<u64, ExportFailure> {
        let (status, headers, body) = self.post(body).await?;
        if status.is_success() {
            return Ok(encode::rejected(self.settings.encoding, &body));
        }
        let why = format!("it answers {status}");
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => ExportFailure::Retry(why, self.retry_after(&headers)),
            _ => ExportFailure::Final(why),
        })
    }

    async fn post(&self, body: Bytes) -> Result<(StatusCode, HeaderMap, Bytes), ExportFailure> {
        let settings = &self.settings;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = settings.url.clone();
        let fields = request.headers_mut();
        *fields = settings.headers.clone();
        let agent = concat!("ordgate/", env!("CARGO_PKG_VERSION"));
        fields.insert(USER_AGENT, HeaderValue::from_static(agent));
        let media = match settings.encoding {
            Encoding::Protobuf => "application/x-protobuf",
            Encoding::Json => "application/json",
        };
        fields.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        if settings.gzip {
            fields.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let broken = |why: String| ExportFailure::Retry(why, None);
        let late = |_elapsed| broken("it does not answer in time".to_owned());
        let deadline = Instant::now() + settings.timeout;
        let response = timeout_at(deadline, self.client.request(request)).await;
        let response = response.map_err(late)?;
        let response = response.map_err(|error| broken(causes(&error)))?;
        let (head, body) = response.into_parts();
        let body = timeout_at(deadline, Limited::new(body, MOST_ANSWER).collect()).await;
        let body = match body {
            Ok(Ok(body)) => body.to_bytes(),
            // It has the spans: sent again, it would have them twice.
            Ok(Err(_)) | Err(_) if head.status.is_success() => Bytes::new(),
            Ok(Err(error)) => return Err(broken(causes(&*error))),
            Err(elapsed) => return Err(late(elapsed)),
        };
        Ok((head.status, head.headers, body))
    }

    /// How long the collector wants no requests.
    fn retry_after(&self, fields: &HeaderMap) -> Option<Duration> {
        let text = fields.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if let Ok(seconds) = text.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(self.tracer.clock.system_time()).ok()
    }
}

/// Checks that an exporter can be made with these settings.
///
/// # Errors
/// If the collector's certificates could not be checked.
pub fn check(settings: &CollectorSettings) -> Result<(), ExporterError> {
    tls(settings).map(drop)
}

/// An error with its causes, in one line.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

/// How the collector's certificate is checked: by the public authorities, and those
/// that the operator adds.
fn tls(settings: &CollectorSettings) -> Result<ClientConfig, ExporterError> {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(path) = &settings.authorities {
        let text = regular_file::read(path, MAX_AUTHORITIES);
        let text = text.map_err(|error| ExporterError::File(pem::Error::Io(error.into())))?;
        let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(ExporterError::File)?;
        let (added, _ignored) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(ExporterError::Empty);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
