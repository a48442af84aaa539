//! The real engine, by the crate `redis`. Nothing else names that crate.
//!
//! A [`RedisEngine`] has one connection, which many calls share. It is made when it is
//! first needed, on the runtime that the engine was made on, and made anew after it was
//! lost, after a copy has refused a write (another server is the primary then), and when
//! the breaker opens. A call waits for it no longer than for an answer.
//!
//! Calls are never repeated, except where the server did not have the script yet.
//!
//! Invariant: no error, log line or `Debug` output has the password.

mod entries;
mod url;
mod words;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use entries::RedisEntries;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Script, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
pub use url::EngineUrl;
use words::in_words;

use super::breaker::{Admitted, EngineBreaker};
use super::{Allowances, EngineFuture, EngineValue, REPORT, SharedError};
use crate::clock::{Clock, Moment};
use crate::shared::allowance::{Reply, Report};
use crate::sync::lock;
use crate::upstream::latency::Latency;

/// How long making a connection may take. It is made in the background, so that this may
/// be longer than an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The engine, for one of its uses.
pub struct RedisEngine {
    url: EngineUrl,
    /// Where connections are made and driven.
    runtime: Handle,
    link: watch::Sender<Link>,
    breaker: Mutex<EngineBreaker>,
    /// How long a call may take, in milliseconds.
    timeout: AtomicU64,
    report: EngineScript,
    clock: Clock,
    record: Mutex<EngineRecord>,
}

/// A script, and the name by which the server knows it.
pub(crate) struct EngineScript {
    code: &'static str,
    hash: Box<str>,
}

impl EngineScript {
    /// A script of this text.
    pub(crate) fn new(code: &'static str) -> Self {
        let hash = Script::new(code).get_hash().into();
        Self { code, hash }
    }
}

enum Link {
    None,
    /// With the reason why the attempt before has failed.
    Connecting(Option<SharedError>),
    Failed(SharedError),
    Connected(u64, Connection),
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(Box<ClusterConnection>),
}

impl Connection {
    async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => command.query_async(&mut **connection).await,
        }
    }
}

#[derive(Default)]
struct EngineRecord {
    connections: u64,
    latency: Latency,
    errors: [u64; SharedError::KINDS.len()],
    last_error: Option<SharedError>,
    /// When that was.
    failed: Option<Moment>,
    is_up: bool,
    /// When the last call ended.
    called: Option<Moment>,
}

/// The engine as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub struct EngineSnapshot {
    /// Whether the last call was answered.
    pub is_up: bool,
    /// Whether calls are not made, since too many were not answered.
    pub is_absent: bool,
    /// Why the last call that failed did so.
    pub last_error: Option<SharedError>,
    /// How long ago that was.
    pub failed_ago: Option<Duration>,
    /// When the last call ended.
    pub called: Option<Moment>,
    /// How many calls failed, by [`SharedError::KINDS`].
    pub errors: [u64; SharedError::KINDS.len()],
    /// Median and 99th percentile of the time to an answer, of the last minute or two.
    pub round_trip: Option<[Duration; 2]>,
}

impl EngineSnapshot {
    /// One of all uses of the engine: whether it is up is what the latest call says, and
    /// errors are summed. Of equal ones the first counts.
    pub(crate) fn of_all(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|one, other| {
            let mut errors = one.errors;
            for (sum, more) in errors.iter_mut().zip(other.errors) {
                *sum += more;
            }
            let round_trip = one.round_trip.or(other.round_trip);
            let latest = match other.called > one.called {
                true => other,
                false => one,
            };
            Self {
                errors,
                round_trip,
                ..latest
            }
        })
    }
}

impl RedisEngine {
    /// The engine at this URL. Connections are made on the current runtime; none is made
    /// yet.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(url: EngineUrl, timeout: Duration, clock: Clock) -> Arc<Self> {
        let new = Self {
            url,
            runtime: Handle::current(),
            link: watch::Sender::new(Link::None),
            breaker: Mutex::default(),
            timeout: AtomicU64::default(),
            report: EngineScript::new(REPORT),
            clock,
            record: Mutex::default(),
        };
        new.set_timeout(timeout);
        Arc::new(new)
    }

    /// Sets how long a call may take.
    pub fn set_timeout(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.timeout.store(millis, Ordering::Relaxed);
    }

    /// Its state now.
    pub fn snapshot(&self) -> EngineSnapshot {
        let (now, is_absent) = (self.clock.now(), lock(&self.breaker).is_open());
        let record = lock(&self.record);
        let quantile = |q| record.latency.quantile(q, now);
        EngineSnapshot {
            is_up: record.is_up,
            is_absent,
            last_error: record.last_error.clone(),
            failed_ago: record.failed.map(|failed| now.since(failed)),
            called: record.called,
            errors: record.errors,
            round_trip: quantile(0.5).zip(quantile(0.99)).map(Into::into),
        }
    }

    /// Runs a script on keys, which must all be of one slot of a cluster. Arguments and
    /// answers may be any bytes.
    pub(crate) async fn run(
        &self,
        script: &EngineScript,
        keys: &[&str],
        arguments: &[Vec<u8>],
    ) -> Result<EngineValue, SharedError> {
        let timeout = Duration::from_millis(self.timeout.load(Ordering::Relaxed));
        let answer = self.within(timeout, self.evaluate(script, keys, arguments));
        self.read(answer.await?)
    }

    /// Waits until a stream has an entry after this one, for at most `block`. Returns
    /// whether it has one. The connection is used for nothing else meanwhile.
    pub(crate) async fn wait_for_entry(
        &self,
        stream: &str,
        after: &str,
        block: Duration,
    ) -> Result<bool, SharedError> {
        let mut command = redis::cmd("XREAD");
        command.arg("BLOCK").arg(block.as_millis() as u64);
        command.arg("COUNT").arg(1).arg("STREAMS");
        command.arg(stream).arg(after);
        let exchange = async {
            let (number, mut connection) = self.connection().await?;
            let answer = connection.send(&command).await;
            answer.map_err(|error| self.failed(number, &error))
        };
        // The server may end the wait late.
        let answer = self.within(block + CONNECT_TIMEOUT, exchange).await?;
        Ok(!matches!(answer, Value::Nil))
    }

    /// Makes a call, unless the breaker is open, and notes its fate.
    async fn within(
        &self,
        timeout: Duration,
        exchange: impl Future<Output = Result<Value, SharedError>>,
    ) -> Result<Value, SharedError> {
        let began = self.clock.now();
        let Some(call) = lock(&self.breaker).admit(began) else {
            self.count(&SharedError::Absent);
            return Err(SharedError::Absent);
        };
        let answer = match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(self.reason()),
        };
        self.note(&answer, call, began);
        answer
    }

    fn read(&self, answer: Value) -> Result<EngineValue, SharedError> {
        value(answer).ok_or_else(|| self.unreadable())
    }

    /// Notes that an answer is not what the script returns.
    pub(crate) fn unreadable(&self) -> SharedError {
        self.count(&SharedError::Unreadable);
        SharedError::Unreadable
    }

    async fn evaluate(
        &self,
        script: &EngineScript,
        keys: &[&str],
        arguments: &[Vec<u8>],
    ) -> Result<Value, SharedError> {
        let (number, mut connection) = self.connection().await?;
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let mut answer = connection.send(&command("EVALSHA", &script.hash)).await;
        let unknown = ErrorKind::Server(ServerErrorKind::NoScript);
        if answer.as_ref().is_err_and(|error| error.kind() == unknown) {
            // The server keeps it from now on.
            answer = connection.send(&command("EVAL", script.code)).await;
        }
        answer.map_err(|error| self.failed(number, &error))
    }

    /// The error in words. The connection with this number is given up if another may do
    /// better.
    fn failed(&self, number: u64, error: &RedisError) -> SharedError {
        if ends_connection(error) {
            self.disconnect(Some(number));
        }
        in_words(error)
    }

    /// Why there was no answer in time.
    fn reason(&self) -> SharedError {
        match &*self.link.borrow() {
            Link::Connecting(Some(failure)) | Link::Failed(failure) => failure.clone(),
            Link::Connecting(None) | Link::None | Link::Connected(..) => SharedError::Late,
        }
    }

    /// The connection, and its number. Waits while it is being made.
    async fn connection(&self) -> Result<(u64, Connection), SharedError> {
        let mut link = self.link.subscribe();
        if let Link::Connected(number, connection) = &*link.borrow() {
            return Ok((*number, connection.clone()));
        }
        self.connect();
        let is_made = |link: &Link| !matches!(link, Link::Connecting(_));
        let Ok(link) = link.wait_for(is_made).await else {
            return Err(SharedError::Absent);
        };
        match &*link {
            Link::Connected(number, connection) => Ok((*number, connection.clone())),
            Link::Failed(error) => Err(error.clone()),
            Link::None | Link::Connecting(_) => Err(SharedError::Absent),
        }
    }

    /// Begins to make the connection, unless it is there or being made.
    fn connect(&self) {
        let mut is_first = false;
        self.link.send_if_modified(|link| {
            let failure = match link {
                Link::None => None,
                Link::Failed(failure) => Some(failure.clone()),
                Link::Connecting(_) | Link::Connected(..) => return false,
            };
            *link = Link::Connecting(failure);
            is_first = true;
            true
        });
        if !is_first {
            return;
        }
        let number = {
            let mut record = lock(&self.record);
            record.connections += 1;
            record.connections
        };
        let (url, link) = (self.url.clone(), self.link.clone());
        self.runtime.spawn(async move {
            let limit = CONNECT_TIMEOUT * 2;
            let timed_out = SharedError::Connection("timed out".into());
            let made = match tokio::time::timeout(limit, url.connect()).await {
                Ok(Ok(connection)) => Link::Connected(number, connection),
                Ok(Err(error)) if !error.is_timeout() => Link::Failed(in_words(&error)),
                Ok(Err(_)) | Err(_) => Link::Failed(timed_out),
            };
            link.send_replace(made);
        });
    }

    /// Forgets the connection with this number, or any.
    fn disconnect(&self, number: Option<u64>) {
        self.link.send_if_modified(|link| {
            let is_it = match link {
                Link::Connected(current, _) => number.is_none_or(|number| number == *current),
                Link::None | Link::Connecting(_) | Link::Failed(_) => false,
            };
            if is_it {
                *link = Link::None;
            }
            is_it
        });
    }

    fn note(&self, answer: &Result<Value, SharedError>, call: Admitted, began: Moment) {
        let now = self.clock.now();
        let is_answered = match answer {
            Ok(_) => {
                let mut record = lock(&self.record);
                record.latency.record(now.since(began), now);
                record.is_up = true;
                record.called = Some(now);
                true
            }
            Err(error) => {
                self.count(error);
                // A server that refuses every connection, for a wrong password, is not to be
                // asked at every call.
                matches!(error, SharedError::Refused(_))
                    && !matches!(&*self.link.borrow(), Link::Failed(_))
            }
        };
        let has_opened = {
            let mut breaker = lock(&self.breaker);
            match is_answered {
                true => {
                    breaker.answered();
                    false
                }
                false => breaker.lost(call, now),
            }
        };
        if has_opened {
            // What was sent on it may be answered never.
            self.disconnect(None);
        }
    }

    fn count(&self, error: &SharedError) {
        let mut record = lock(&self.record);
        record.errors[error.kind()] += 1;
        record.is_up = false;
        if *error != SharedError::Absent {
            let now = self.clock.now();
            record.last_error = Some(error.clone());
            record.failed = Some(now);
            record.called = Some(now);
        }
    }
}

impl Allowances for RedisEngine {
    fn report<'t>(&'t self, budget: &'t str, report: &'t Report) -> EngineFuture<'t, Reply> {
        Box::pin(async move {
            let arguments = report.arguments().into_iter().map(String::into_bytes);
            let arguments: Vec<_> = arguments.collect();
            let answer = self.run(&self.report, &[budget], &arguments).await?;
            let reply = texts(&answer).and_then(|fields| Reply::read(&fields));
            reply.ok_or_else(|| self.unreadable())
        })
    }
}

/// A list of texts.
fn texts(answer: &EngineValue) -> Option<Vec<&str>> {
    answer.list()?.iter().map(EngineValue::text).collect()
}

/// An answer without the crate's types; `None` if it is of another kind.
fn value(answer: Value) -> Option<EngineValue> {
    Some(match answer {
        Value::Nil => EngineValue::Nothing,
        Value::Int(number) => EngineValue::Number(number),
        Value::BulkString(bytes) => EngineValue::Bytes(bytes),
        Value::SimpleString(text) => EngineValue::Bytes(text.into_bytes()),
        Value::Okay => EngineValue::Bytes(b"OK".to_vec()),
        Value::Array(list) => {
            EngineValue::List(list.into_iter().map(value).collect::<Option<_>>()?)
        }
        Value::Map(_)
        | Value::Attribute { .. }
        | Value::Set(_)
        | Value::Double(_)
        | Value::Boolean(_)
        | Value::VerbatimString { .. }
        | Value::BigNumber(_)
        | Value::Push { .. }
        | Value::ServerError(_)
        | _ => return None,
    })
}

/// Whether another connection may do better: this one is broken, or leads to a server
/// that is not, or not yet, the primary of the key.
fn ends_connection(error: &RedisError) -> bool {
    const ELSEWHERE: [ErrorKind; 7] = [
        ErrorKind::Server(ServerErrorKind::ReadOnly),
        ErrorKind::Server(ServerErrorKind::Moved),
        ErrorKind::Server(ServerErrorKind::Ask),
        ErrorKind::Server(ServerErrorKind::ClusterDown),
        ErrorKind::Server(ServerErrorKind::MasterDown),
        ErrorKind::Io,
        ErrorKind::ClusterConnectionNotFound,
    ];
    ELSEWHERE.contains(&error.kind()) || error.is_unrecoverable_error()
}
