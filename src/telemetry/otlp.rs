//! The export of spans by OpenTelemetry's SDK: OTLP over HTTP, to the collector that the
//! environment names (`OTEL_*`).
//!
//! The SDK has a queue of 2,048 spans and a thread that exports them in batches. A collector that
//! is slow or gone costs requests nothing: the queue fills, and what finds it full is dropped.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry::KeyValue;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Handle;

/// How long an export may take.
const EXPORT: Duration = Duration::from_secs(10);
/// How long the export of the last spans may take when the process ends.
const LAST_EXPORT: Duration = Duration::from_secs(2);
/// The most bytes of a collector's answer that are read.
const MOST_ANSWER: usize = 64 << 10;

/// Sends exports. The SDK's thread has no runtime, so they run on this one.
#[derive(Debug)]
struct Sender {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let exchange = async move {
            let response = client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MOST_ANSWER).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        let exchange = async { tokio::time::timeout(EXPORT, exchange).await };
        self.runtime.spawn(exchange).await??
    }
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {
    /// What of the environment cannot be used.
    #[error("traces: {0}")]
    Environment(#[from] ExporterBuildError),
    /// rustls rejects the configuration.
    #[error("TLS: {0}")]
    Rustls(#[from] rustls::Error),
}

/// Exports spans until it is [finished](Self::finish).
pub(crate) struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Begins to export what is recorded in this process. The runtime sends it.
    ///
    /// # Errors
    /// If the environment names something that cannot be used.
    pub(crate) fn begin(runtime: Handle) -> Result<Self, ExporterError> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(provider)?
            .https_or_http()
            .enable_http1()
            .build();
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let sender = Sender { client, runtime };
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_protocol =
            is_set("OTEL_EXPORTER_OTLP_PROTOCOL") || is_set("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL");
        let mut exporter = SpanExporter::builder().with_http().with_http_client(sender);
        if !has_protocol {
            // Without it, the crate takes JSON where it can.
            exporter = exporter.with_protocol(Protocol::HttpBinary);
        }
        let service = std::env::var("OTEL_SERVICE_NAME").ok();
        let service = service.filter(|name| !name.is_empty());
        let resource = Resource::builder_empty()
            .with_attribute(KeyValue::new("service.name", "ordgate"))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_detector(Box::new(EnvResourceDetector::new()))
            .with_attributes(service.map(|name| KeyValue::new("service.name", name)))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter.build()?)
            // `trace` decides, before it begins a span.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        opentelemetry::global::set_tracer_provider(provider.clone());
        Ok(Self(provider))
    }

    /// Exports what still waits, for a bounded time.
    pub(crate) async fn finish(self) {
        let finished =
            tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(LAST_EXPORT));
        if let Ok(Err(error)) = finished.await {
            tracing::warn!(%error, "the collector of traces did not take the last spans");
        }
    }
}
