//! The server that ordgate calls: one base URL of the API, asked with a key of
//! the pool, within budget, bounds and deadlines.
//!
//! [`Upstream::fetch`] is what the walk calls for a canonical target. Nothing
//! of a client's request but that target goes out. Redirects are not followed,
//! since the key would follow them.
//!
//! Deliberately absent: what is kept of an answer (`cache`) and what a client
//! is told of a failure (`refusal`).

pub mod answer;
mod api_key;
pub mod breaker;
pub mod budget;
pub mod chance;
pub mod concurrency;
mod connector;
mod failure;
pub mod keys;
pub mod latency;
pub mod reported;
pub mod rest;
pub mod retry;
pub mod sketch;
mod tls;
pub mod told;

use std::any::Any;
use std::error::Error as StdError;
use std::hash::BuildHasher;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use answer::Answer;
use breaker::{Breaker, Change, Health, Pass, Stance};
use budget::Budget;
use bytes::{Bytes, BytesMut};
use connector::Timely;
pub use failure::{Failure, TimedOut, Unreachable};
use foldhash::quality::RandomState;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
pub use keys::Priority;
use keys::{ApiKey, Denied, Grant, Keys, Standing};
use reported::Reported;
use serde::Serialize;
pub use tls::TlsError;
use tokio::sync::Semaphore;

use crate::clock::Clock;
use crate::wire::body::BodyError;

/// How the upstream is called.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The base URL: `http` or `https`, an authority, and perhaps a path that
    /// stands before every target. Nothing can be asked without.
    #[serde(serialize_with = "optional", skip_serializing_if = "Option::is_none")]
    pub url: Option<Uri>,
    /// The field that carries the key.
    #[serde(serialize_with = "display")]
    pub api_key_header: HeaderName,
    /// A file of keys, where they do not come from the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_file: Option<PathBuf>,
    /// Whether a key may travel over plain http to another machine.
    pub allow_plain_http: bool,
    /// A PEM file of certificate authorities to trust beside the usual ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// For each key: requests in any 60 seconds.
    pub requests_per_minute: NonZeroU32,
    /// For each key: requests in any second.
    pub requests_per_second: NonZeroU32,
    /// Requests under way at once.
    pub max_in_flight: NonZeroU32,
    /// How long a request waits for budget and for a place among those.
    #[serde(serialize_with = "crate::units::serialize")]
    pub queue_timeout: Duration,
    /// How long connecting may take, TLS included.
    #[serde(serialize_with = "crate::units::serialize")]
    pub connect_timeout: Duration,
    /// How long the first byte of an answer may take.
    #[serde(serialize_with = "crate::units::serialize")]
    pub first_byte_timeout: Duration,
    /// How long the whole of an answer may take.
    #[serde(serialize_with = "crate::units::serialize")]
    pub timeout: Duration,
    /// How long an unused connection is kept.
    #[serde(serialize_with = "crate::units::serialize")]
    pub idle_timeout: Duration,
    /// The longest body that is accepted, in bytes.
    pub max_body_bytes: u64,
    /// When it is not asked at all, since it goes on failing.
    pub breaker: breaker::Settings,
}

fn optional<S: serde::Serializer>(value: &Option<Uri>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

fn display<S: serde::Serializer>(value: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Who answers for the API: the upstream, or what stands in for it where a
/// test plays time and network by hand.
pub trait Ask: Send + Sync {
    /// Asks for a canonical target.
    fn ask<'a>(
        &'a self,
        target: &'a str,
        priority: Priority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// The longest that it takes.
    fn patience(&self) -> Duration;
}

impl Ask for Upstream {
    fn ask<'a>(
        &'a self,
        target: &'a str,
        priority: Priority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.fetch(target, priority))
    }

    fn patience(&self) -> Duration {
        Self::patience(self)
    }
}

/// Why an upstream cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// There is nobody to ask.
    #[error(
        "there is no upstream: give --upstream URL or upstream.url in the config, or try --sandbox, which needs neither key nor network"
    )]
    NoUrl,
    /// A key would travel readable by anyone.
    #[error(
        "{0} is plain http off this machine, and an API key would travel over it readable by anyone on the way: use https, or set upstream.allow_plain_http = true"
    )]
    PlainHttp(Uri),
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What has been sent and what came of it.
#[derive(Debug, Default)]
pub struct Tally {
    /// Requests sent.
    pub sent: AtomicU64,
    /// Answers that could be handed on.
    pub answered: AtomicU64,
    /// Failures after sending.
    pub failed: AtomicU64,
    /// Refused for want of budget, never sent.
    pub spent: AtomicU64,
    /// Sent a second time, after the connection had ended before an answer, or
    /// with another key after one was refused.
    pub retried: AtomicU64,
    /// Not sent, since the upstream goes on failing.
    pub broken: AtomicU64,
}

/// The body of a request on its way to the upstream.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// No body.
pub fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// An answer as it comes, its body not yet read.
pub struct Exchange {
    /// Status and fields.
    pub head: response::Parts,
    /// The body.
    pub body: Incoming,
    /// The request's place among those under way, to be kept until the body
    /// has ended.
    pub place: Box<dyn Any + Send>,
}

/// The upstream.
pub struct Upstream {
    client: Client<Timely<HttpsConnector<HttpConnector>>, RequestBody>,
    /// What `ca_file` held when the client was made.
    authorities: Option<Vec<u8>>,
    settings: Settings,
    url: Uri,
    prefix: String,
    keys: Arc<Keys>,
    in_flight: Arc<Semaphore>,
    breaker: Arc<Mutex<Breaker>>,
    tally: Arc<Tally>,
    clock: Clock,
}

/// A request that the breaker has let pass. What came of it is told when it
/// ends; one that is dropped before tells nothing.
struct Passage<'u> {
    upstream: &'u Upstream,
    pass: Pass,
    /// Whether anything was sent: what fails before is no fault of the
    /// upstream's.
    sent: AtomicBool,
    health: Health,
}

impl Passage<'_> {
    /// A request is sent.
    fn send(&self) {
        self.sent.store(true, Ordering::Relaxed);
        self.upstream.tally.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// It has come to its end.
    fn end(mut self, health: Health) {
        if *self.sent.get_mut() {
            self.health = health;
        }
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        let now = self.upstream.clock.now();
        let changed = self.upstream.breaker().end(self.pass, self.health, now);
        match changed {
            None => {}
            Some(Change::Opened(pause)) => tracing::error!(
                ?pause,
                "the upstream goes on failing: it is left alone for a while, and what is stale is served"
            ),
            Some(Change::Reopened(pause)) => {
                tracing::warn!(?pause, "the upstream still fails, and is left alone again");
            }
            Some(Change::Closed) => tracing::info!("the upstream is well again"),
        }
    }
}

/// The most bytes of an answer's head.
const MOST_HEAD: usize = 128 * 1024;

impl Upstream {
    /// Prepares to call an upstream; no connection is made yet.
    ///
    /// # Errors
    /// Where a key would travel in the clear, or TLS cannot be set up.
    pub fn new(settings: Settings, keys: Vec<ApiKey>, clock: Clock) -> Result<Self, SetupError> {
        let url = url(&settings, &keys)?;
        let budget = || Budget::new(settings.requests_per_minute, settings.requests_per_second);
        Ok(Self {
            authorities: authorities(&settings),
            client: Self::client(&settings)?,
            prefix: url.path().trim_end_matches('/').to_owned(),
            url,
            keys: Keys::new(keys, budget, clock.clone()),
            in_flight: Arc::new(Semaphore::new(settings.max_in_flight.get() as usize)),
            breaker: Self::breaker_of(&settings),
            tally: Arc::default(),
            settings,
            clock,
        })
    }

    /// Prepares to call the upstream that comes after another: the same with
    /// other settings, or another one. Connections are kept where they are made
    /// in the same way; the count goes on. It has the other's keys, or none
    /// where the other's must not go, until [`use_keys`](Self::use_keys).
    ///
    /// Where the bound on requests under way is another, those that are under
    /// way are counted no more: for as long as they last there may be more.
    ///
    /// # Errors
    /// As [`new`](Self::new), with these keys; nothing has changed then.
    pub fn after(before: &Self, settings: Settings, keys: &[ApiKey]) -> Result<Self, SetupError> {
        let url = url(&settings, keys)?;
        let authorities = authorities(&settings);
        let own = &before.settings;
        let connects_alike = authorities == before.authorities
            && settings.ca_file == own.ca_file
            && settings.connect_timeout == own.connect_timeout
            && settings.idle_timeout == own.idle_timeout;
        let url_is_same = url == before.url;
        let carries_alike = url_is_same && settings.api_key_header == own.api_key_header;
        Ok(Self {
            client: match connects_alike {
                true => before.client.clone(),
                false => Self::client(&settings)?,
            },
            authorities,
            prefix: url.path().trim_end_matches('/').to_owned(),
            url,
            keys: match carries_alike {
                true => before.keys.clone(),
                false => before.keys.elsewhere(),
            },
            in_flight: match settings.max_in_flight == own.max_in_flight {
                true => before.in_flight.clone(),
                false => Arc::new(Semaphore::new(settings.max_in_flight.get() as usize)),
            },
            // How it has fared says nothing of another, nor by other measures.
            breaker: match url_is_same && settings.breaker == own.breaker {
                true => before.breaker.clone(),
                false => Self::breaker_of(&settings),
            },
            tally: before.tally.clone(),
            settings,
            clock: before.clock.clone(),
        })
    }

    /// Asks with these keys, within its own budget, from now on.
    pub fn use_keys(&self, keys: Vec<ApiKey>) {
        let settings = &self.settings;
        self.keys.replace(
            keys,
            settings.requests_per_minute,
            settings.requests_per_second,
        );
    }

    /// Whether another asks at the same place, so that what one has said is what
    /// the other would say.
    pub fn is_where(&self, other: &Self) -> bool {
        self.url == other.url
    }

    fn breaker_of(settings: &Settings) -> Arc<Mutex<Breaker>> {
        Arc::new(Mutex::new(Breaker::new(
            settings.breaker.clone(),
            RandomState::default().hash_one(()),
        )))
    }

    fn client(
        settings: &Settings,
    ) -> Result<Client<Timely<HttpsConnector<HttpConnector>>, RequestBody>, SetupError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        // Of several addresses each gets a share of it; the whole is bounded
        // below.
        http.set_connect_timeout(Some(settings.connect_timeout));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls::config(settings.ca_file.as_deref())?)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        Ok(Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(settings.idle_timeout)
            .http1_max_buf_size(MOST_HEAD)
            .http2_max_header_list_size(MOST_HEAD as u32)
            .build(Timely::new(connector, settings.connect_timeout)))
    }

    /// Keeps a share of the budget for probes of the tip from now on.
    pub fn keep_for_probes(&self) {
        self.keys.keep_for_probes();
    }

    /// Asks for a canonical target and judges the answer.
    ///
    /// # Errors
    /// How it failed. It does so within the sum of `queue_timeout`, twice, and
    /// `timeout`.
    pub async fn fetch(&self, target: &str, priority: Priority) -> Result<Answer, Failure> {
        let passage = self.admit(priority)?;
        let fetched = self.fetch_within(&passage, target, priority).await;
        passage.end(
            fetched
                .as_ref()
                .map_or_else(Failure::health, |_| Health::Well),
        );
        fetched
    }

    async fn fetch_within(
        &self,
        passage: &Passage<'_>,
        target: &str,
        priority: Priority,
    ) -> Result<Answer, Failure> {
        let patience = self.settings.queue_timeout;
        // Probes are few, one for each tip, and what they learn is worth more
        // than any answer.
        let _place = match priority {
            Priority::Probe => None,
            Priority::Miss => {
                let place = tokio::time::timeout(patience, self.in_flight.acquire()).await;
                let Ok(Ok(place)) = place else {
                    return Err(Failure::TooManyInFlight);
                };
                Some(place)
            }
            Priority::LookAhead => {
                let place = self.in_flight.try_acquire();
                Some(place.map_err(|_taken| Failure::TooManyInFlight)?)
            }
        };
        let grant = self.grant(priority).await?;
        let deadline = tokio::time::sleep(self.settings.timeout);
        let asked = async {
            let (mut grant, mut terminated, mut refused) = (grant, 0, 0);
            loop {
                let asked = self.ask(passage, target, grant).await;
                // A pooled connection may end just as it is used again. GET is
                // safe to repeat (RFC 9110 §9.2.2); once, and paid for again.
                // A key that is refused says nothing of the others.
                let (times, most) = match &asked {
                    Err(Failure::Terminated) => (&mut terminated, 1),
                    Err(Failure::KeyRefused(_)) => (&mut refused, self.keys.ways() - 1),
                    Ok(_) | Err(_) => return asked,
                };
                if *times == most {
                    return asked;
                }
                *times += 1;
                grant = self.grant(priority).await?;
                self.tally.retried.fetch_add(1, Ordering::Relaxed);
            }
        };
        let asked = tokio::select! {
            biased;
            asked = asked => asked,
            () = deadline => Err(Failure::TimedOut(TimedOut::Whole)),
        };
        let count = if asked.is_ok() {
            &self.tally.answered
        } else {
            &self.tally.failed
        };
        count.fetch_add(1, Ordering::Relaxed);
        asked
    }

    /// Passes a request on as it is: any method, these fields, this body. What
    /// is safe and has no body is sent once more where a pooled connection
    /// ended just then.
    ///
    /// # Errors
    /// How it failed before an answer began. It does so within twice
    /// `queue_timeout` and `first_byte_timeout` after the last byte of the
    /// request has moved.
    pub async fn exchange(
        &self,
        method: Method,
        target: &str,
        fields: HeaderMap,
        body: Option<RequestBody>,
    ) -> Result<Exchange, Failure> {
        let passage = self.admit(Priority::Miss)?;
        let exchanged = self
            .exchange_within(&passage, method, target, fields, body)
            .await;
        passage.end(match &exchanged {
            // It is passed on as it is: what it means is the client's business.
            Ok(exchange) if exchange.head.status.is_server_error() => Health::Unknown,
            Ok(_) => Health::Well,
            Err(failure) => failure.health(),
        });
        exchanged
    }

    async fn exchange_within(
        &self,
        passage: &Passage<'_>,
        method: Method,
        target: &str,
        fields: HeaderMap,
        body: Option<RequestBody>,
    ) -> Result<Exchange, Failure> {
        let patience = self.settings.queue_timeout;
        let place = tokio::time::timeout(patience, self.in_flight.clone().acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(Failure::TooManyInFlight);
        };
        let again = (body.is_none() && method.is_safe()).then(|| (method.clone(), fields.clone()));
        let passed = self.pass(passage, method, target, fields, body).await;
        let passed = match (passed, again) {
            (Err(Failure::Terminated), Some((method, fields))) => {
                self.tally.retried.fetch_add(1, Ordering::Relaxed);
                self.pass(passage, method, target, fields, None).await
            }
            (passed, _) => passed,
        };
        let count = match passed {
            Ok(_) => &self.tally.answered,
            Err(_) => &self.tally.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let (head, body) = passed?.into_parts();
        Ok(Exchange {
            head,
            body,
            place: Box::new(place),
        })
    }

    async fn pass(
        &self,
        passage: &Passage<'_>,
        method: Method,
        target: &str,
        fields: HeaderMap,
        body: Option<RequestBody>,
    ) -> Result<Response<Incoming>, Failure> {
        let grant = self.grant(Priority::Miss).await?;
        let moved = Arc::new(AtomicBool::new(false));
        let mut request = Request::new(match body {
            None => no_body(),
            Some(body) => {
                let moved = moved.clone();
                let watched = body.map_frame(move |frame| {
                    moved.store(true, Ordering::Relaxed);
                    frame
                });
                watched.boxed()
            }
        });
        *request.method_mut() = method;
        *request.uri_mut() = self.uri(target)?;
        *request.headers_mut() = fields;
        request.headers_mut().remove(&self.settings.api_key_header);
        self.add_key(&grant, request.headers_mut());
        passage.send();
        let mut answered = self.client.request(request);
        let response = loop {
            let head = tokio::time::timeout(self.settings.first_byte_timeout, &mut answered);
            match head.await {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => return Err(self.explain(target, &error)),
                // A long body may take its time as long as it moves.
                Err(_elapsed) if moved.swap(false, Ordering::Relaxed) => {}
                Err(_elapsed) => return Err(Failure::TimedOut(TimedOut::FirstByte)),
            }
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Nothing was asked for that could be switched to.
            return Err(Failure::Protocol);
        }
        self.overhear(&grant, response.status(), response.headers());
        Ok(response)
    }

    /// Hears what an answer says of limits that is passed on as it is. Without
    /// a key of ours the limit is perhaps the client's, and a status may be
    /// about anything.
    fn overhear(&self, grant: &Grant, status: StatusCode, fields: &HeaderMap) {
        if grant.header().is_some() {
            let wall = self.clock.wall(self.clock.now());
            let said = reported::read(status, fields, wall);
            let spent = said.quota_spent.is_some();
            grant.hear(&Reported {
                quota_spent: None,
                ..said
            });
            if status.is_success() && !spent {
                grant.accepted();
            }
        }
    }

    /// Lets a request pass where the upstream is to be asked at all.
    fn admit(&self, priority: Priority) -> Result<Passage<'_>, Failure> {
        let spare = priority == Priority::LookAhead;
        let admitted = self.breaker().admit(self.clock.now(), spare);
        match admitted {
            Ok(pass) => Ok(Passage {
                upstream: self,
                pass,
                sent: AtomicBool::new(false),
                health: Health::Unknown,
            }),
            Err(retry_after) => {
                self.tally.broken.fetch_add(1, Ordering::Relaxed);
                Err(Failure::BreakerOpen { retry_after })
            }
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn grant(&self, priority: Priority) -> Result<Grant, Failure> {
        let patience = self.settings.queue_timeout;
        let granted = self.keys.take(patience, priority).await;
        granted.map_err(|denied| match denied {
            Denied::Spent { retry_after } => {
                self.tally.spent.fetch_add(1, Ordering::Relaxed);
                Failure::Spent { retry_after }
            }
            Denied::Refused(status) => Failure::KeyRefused(status),
        })
    }

    async fn ask(
        &self,
        passage: &Passage<'_>,
        target: &str,
        grant: Grant,
    ) -> Result<Answer, Failure> {
        let begun = self.clock.now();
        let request = self.request(target, &grant)?;
        passage.send();
        let head = tokio::time::timeout(
            self.settings.first_byte_timeout,
            self.client.request(request),
        );
        let response = match head.await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.explain(target, &error)),
            Err(_elapsed) => return Err(Failure::TimedOut(TimedOut::FirstByte)),
        };
        let (head, body) = response.into_parts();
        let wall = self.clock.wall(self.clock.now());
        let judged = answer::judge_head(head.status, &head.headers, wall);
        let said = reported::read(head.status, &head.headers, wall);
        grant.hear(&said);
        match &judged {
            // A quota that is spent has its own rest.
            Ok(()) | Err(Failure::Throttled { .. }) if said.quota_spent.is_some() => {}
            Ok(()) => grant.accepted(),
            Err(Failure::Throttled { retry_after }) => {
                grant.accepted();
                grant.cool(*retry_after);
            }
            Err(Failure::KeyRefused(status)) => grant.refused(*status),
            Err(_) => {}
        }
        // The upstream has counted the request by now, so its window begins.
        drop(grant);
        judged?;
        let body = self.read(head.headers.get(CONTENT_LENGTH), body).await?;
        let took = self.clock.now().since(begun);
        let answer = answer::judge(head.status, &head.headers, body, took)?;
        self.keep_secret(answer)
    }

    /// Lets an answer pass that has no key of ours in it. These two are all of
    /// an answer that is handed on; it is searched once, however often it is
    /// served.
    fn keep_secret(&self, answer: Answer) -> Result<Answer, Failure> {
        self.search([&*answer.body, answer.content_type.as_bytes()])?;
        Ok(answer)
    }

    /// Searches what would be passed on for our keys.
    ///
    /// # Errors
    /// Where one is in it.
    pub fn search<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Failure> {
        match parts
            .into_iter()
            .find_map(|part| self.keys.given_away(part))
        {
            None => Ok(()),
            Some(name) => {
                tracing::error!(
                    key = &*name,
                    "the upstream says an API key of ours back in its answer, which is not passed on: the upstream's operator has to look"
                );
                Err(Failure::KeyEchoed)
            }
        }
    }

    /// The absolute form of a target, as the upstream has it.
    ///
    /// # Errors
    /// Where a target is none; those of the walk were checked before.
    pub fn uri(&self, target: &str) -> Result<Uri, Failure> {
        let mut parts = self.url.clone().into_parts();
        let target = format!("{}{target}", self.prefix);
        parts.path_and_query = Some(target.parse().map_err(|_checked| Failure::Protocol)?);
        Uri::from_parts(parts).map_err(|_checked| Failure::Protocol)
    }

    /// The target of a path and query that the upstream has named: without the
    /// base URL's path.
    pub fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        path_and_query
            .strip_prefix(&*self.prefix)
            .unwrap_or(path_and_query)
    }

    fn add_key(&self, grant: &Grant, fields: &mut HeaderMap) {
        if let Some(key) = grant.header() {
            fields.insert(self.settings.api_key_header.clone(), key.clone());
        }
    }

    fn request(&self, target: &str, grant: &Grant) -> Result<Request<RequestBody>, Failure> {
        let mut request = Request::new(no_body());
        *request.uri_mut() = self.uri(target)?;
        let fields = request.headers_mut();
        fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
        // No codings are undone here, so none may come.
        fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        fields.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("ordgate/", env!("CARGO_PKG_VERSION"))),
        );
        self.add_key(grant, fields);
        Ok(request)
    }

    async fn read(
        &self,
        length: Option<&HeaderValue>,
        mut body: Incoming,
    ) -> Result<Bytes, Failure> {
        let most = self.settings.max_body_bytes;
        let said = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if said.is_some_and(|said| said > most) {
            return Err(Failure::TooLarge);
        }
        // What is said is believed up to a point; the rest grows as it comes.
        let expected = said.unwrap_or(0).min(1 << 20);
        let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(Failure::Incomplete);
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if (whole.len() + data.len()) as u64 > most {
                return Err(Failure::TooLarge);
            }
            whole.extend_from_slice(&data);
        }
        // Exactly as large as it is: it may be kept for a long time.
        Ok(Bytes::from(Box::<[u8]>::from(&whole[..])))
    }

    fn explain(&self, target: &str, error: &hyper_util::client::legacy::Error) -> Failure {
        let failure = failure(error);
        tracing::debug!(target_path = target, error = %chain(error), name = failure.name(), "the upstream failed");
        failure
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What has been sent and what came of it.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// How its keys stand.
    pub fn standings(&self) -> Vec<Standing> {
        self.keys.standings()
    }

    /// Whether it is asked at all.
    pub fn stance(&self) -> Stance {
        self.breaker().stance(self.clock.now())
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        (self.settings.max_in_flight.get() as usize)
            .saturating_sub(self.in_flight.available_permits())
    }

    /// The longest that [`fetch`](Self::fetch) takes.
    pub fn patience(&self) -> Duration {
        self.settings.queue_timeout * 2 + self.settings.timeout
    }
}

/// The base URL, where keys may travel there.
fn url(settings: &Settings, keys: &[ApiKey]) -> Result<Uri, SetupError> {
    let url = settings.url.clone().ok_or(SetupError::NoUrl)?;
    match !keys.is_empty() && !settings.allow_plain_http && is_exposed(&url) {
        true => Err(SetupError::PlainHttp(url)),
        false => Ok(url),
    }
}

/// The bytes of `ca_file`, to see whether they have changed; one that cannot be
/// read is told of where it is used.
fn authorities(settings: &Settings) -> Option<Vec<u8>> {
    std::fs::read(settings.ca_file.as_deref()?).ok()
}

/// Whether what is sent there can be read on the way: plain http to another
/// machine.
fn is_exposed(url: &Uri) -> bool {
    if url.scheme_str() != Some("http") {
        return false;
    }
    let host = url
        .host()
        .unwrap_or("")
        .trim_start_matches('[')
        .trim_end_matches(']');
    let loopback = host
        .parse::<std::net::IpAddr>()
        .map(|address| address.is_loopback());
    !loopback.unwrap_or(host.eq_ignore_ascii_case("localhost"))
}

/// What a client's error means. hyper tells by its kind, the connector by what
/// lies beneath.
fn failure(error: &hyper_util::client::legacy::Error) -> Failure {
    let kind = beneath::<io::Error>(error).map(io::Error::kind);
    if error.is_connect() {
        return match kind {
            Some(io::ErrorKind::ConnectionRefused) => Failure::Unreachable(Unreachable::Refused),
            Some(io::ErrorKind::TimedOut) => Failure::TimedOut(TimedOut::Connect),
            _ if beneath::<rustls::Error>(error).is_some() => {
                Failure::Unreachable(Unreachable::Tls)
            }
            _ => Failure::Unreachable(Unreachable::Other),
        };
    }
    match beneath::<hyper::Error>(error) {
        Some(hyper) if hyper.is_parse() => Failure::Protocol,
        _ => Failure::Terminated,
    }
}

/// The first error of a type in a chain of sources. rustls' errors hide within
/// `io::Error`s, within further ones at times, which do not name what they wrap
/// as their source.
fn beneath<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    let wrapped = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match wrapped {
        Some(inner) => beneath(inner),
        None => beneath(error.source()?),
    }
}

fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_key_would_be_exposed() {
        for (url, exposed) in [
            ("http://127.0.0.1:3999", false),
            ("http://127.9.9.9", false),
            ("http://[::1]:80/api", false),
            ("http://localhost:80", false),
            ("https://api.example", false),
            ("http://api.example", true),
            ("http://10.0.0.1", true),
            ("http://localhost.example", true),
        ] {
            assert_eq!(is_exposed(&url.parse().unwrap()), exposed, "{url}");
        }
    }
}
