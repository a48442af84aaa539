//! The engine: a server of Valkey or Redis that all replicas reach.
//!
//! Only this module names the crate `redis`. Every call has a time-out, and no request of a
//! client depends on its answer. A call is never repeated, except where the server did not
//! have the script yet; what a call without an answer has done is unknown.
//!
//! The connection is made when it is first needed, and anew when it is lost, when the
//! server refuses to write (another one is the primary now), and when the breaker opens.
//!
//! Invariant: no error, log line or `Debug` output has the password.

mod breaker;
mod url;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use breaker::EngineBreaker;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{ErrorKind, RedisError, ServerErrorKind, cmd};
pub(super) use redis::{FromRedisValue, Script};
use serde::Serialize;
pub use url::EngineUrl;

use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// How long making a connection may take. It is made in the background, so that this may
/// be longer than an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection to the engine, which many calls share.
pub(super) struct Engine {
    /// Without one, each call is unanswered.
    url: Option<EngineUrl>,
    /// What its keys begin with.
    pub(super) prefix: String,
    pub(super) clock: Clock,
    timeout: Mutex<Duration>,
    link: Mutex<Option<ConnectionManager>>,
    breaker: Mutex<EngineBreaker>,
    counts: Mutex<EngineSnapshot>,
}

/// Why the engine gave no answer that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// No answer came in time.
    #[error("no answer within shared.timeout")]
    Timeout,
    /// No call was made: the breaker is open.
    #[error("not called: it did not answer the last calls")]
    Absent,
    /// There is no connection.
    #[error("no connection: {0}")]
    Connection(Box<str>),
    /// It has answered with an error.
    #[error("the engine refuses: {0}")]
    Refused(Box<str>),
}

impl EngineError {
    /// All kinds, as metrics name them.
    pub const KINDS: [&'static str; 4] = ["timeout", "absent", "connection", "refused"];

    const fn kind(&self) -> usize {
        match self {
            Self::Timeout => 0,
            Self::Absent => 1,
            Self::Connection(_) => 2,
            Self::Refused(_) => 3,
        }
    }

    /// An error of the crate in words. None of them has the password.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the crate's kinds of errors are not exhaustive"
    )]
    fn of(error: &RedisError) -> Self {
        let text = error.to_string();
        let text = match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => format!(
                "it is a node of a cluster; ordgate needs a single server or a failover address ({text})"
            ),
            _ if text.contains("NOAUTH") || text.contains("unauthenticated") => format!(
                "it needs a password, which belongs in the URL: redis://user:password@host:6379/0 ({text})"
            ),
            _ => text,
        };
        match error.kind() {
            _ if error.is_timeout() => Self::Timeout,
            ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            | ErrorKind::Parse
            | ErrorKind::UnexpectedReturnType => Self::Refused(text.into()),
            _ => Self::Connection(text.into()),
        }
    }
}

/// The engine as `/status` and metrics show it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineSnapshot {
    /// Whether the last call was answered.
    pub is_up: bool,
    /// How many calls were made.
    pub calls: u64,
    /// How many failed, by [`EngineError::KINDS`].
    pub errors: [u64; EngineError::KINDS.len()],
    /// How long the last answer took, in seconds.
    pub round_trip: f64,
    /// Why the last call that failed did so.
    pub last_error: Option<String>,
}

impl Engine {
    /// The engine at this URL. No connection is made yet.
    pub(super) fn new(
        url: Option<EngineUrl>,
        prefix: &str,
        timeout: Duration,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            url,
            prefix: prefix.to_owned(),
            clock,
            timeout: Mutex::new(timeout),
            link: Mutex::default(),
            breaker: Mutex::default(),
            counts: Mutex::default(),
        })
    }

    /// Whether there is one.
    pub(super) fn is_on(&self) -> bool {
        self.url.is_some()
    }

    /// Sets how long a call may take.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        *lock(&self.timeout) = timeout;
    }

    /// Runs a script. Keys, arguments and what it returns may be any bytes.
    ///
    /// # Errors
    /// Where no answer came in time, or one that says that the script has failed.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&[u8]],
        arguments: &[&[u8]],
    ) -> Result<T, EngineError> {
        let Some(url) = &self.url else {
            return Err(EngineError::Absent);
        };
        let began = self.clock.now();
        if !lock(&self.breaker).admit(began) {
            lock(&self.counts).errors[EngineError::Absent.kind()] += 1;
            return Err(EngineError::Absent);
        }
        let timeout = *lock(&self.timeout);
        let answer = match self.link(url) {
            Err(error) => Err(error),
            Ok(mut link) => {
                let mut invocation = script.prepare_invoke();
                for key in keys {
                    invocation.key(*key);
                }
                for argument in arguments {
                    invocation.arg(*argument);
                }
                let answer = invocation.invoke_async(&mut link);
                match tokio::time::timeout(timeout, answer).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(error)) => Err(self.failed(&error)),
                    Err(_elapsed) => Err(EngineError::Timeout),
                }
            }
        };
        self.note(answer.as_ref().err(), began);
        answer
    }

    /// The connection, which is made in the background.
    fn link(&self, url: &EngineUrl) -> Result<ConnectionManager, EngineError> {
        let mut link = lock(&self.link);
        if let Some(link) = &*link {
            return Ok(link.clone());
        }
        // Without retries of its own: the breaker says when to try again.
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let client = url.client();
        let made =
            client.and_then(|client| ConnectionManager::new_lazy_with_config(client, config));
        let made = made.map_err(|error| EngineError::of(&error))?;
        // A call that is given up after the time-out must not stop the connecting.
        let mut first = made.clone();
        tokio::spawn(async move { cmd("PING").query_async::<()>(&mut first).await });
        *link = Some(made.clone());
        Ok(made)
    }

    /// The error in words. Where another connection may do better, this one is given up.
    fn failed(&self, error: &RedisError) -> EngineError {
        const ELSEWHERE: [ErrorKind; 2] = [
            ErrorKind::Server(ServerErrorKind::ReadOnly),
            ErrorKind::Server(ServerErrorKind::MasterDown),
        ];
        if ELSEWHERE.contains(&error.kind()) {
            *lock(&self.link) = None;
        }
        EngineError::of(error)
    }

    fn note(&self, error: Option<&EngineError>, began: Moment) {
        let now = self.clock.now();
        let mut counts = lock(&self.counts);
        counts.calls += 1;
        counts.is_up = error.is_none();
        match error {
            None => counts.round_trip = now.since(began).as_secs_f64(),
            Some(error) => {
                counts.errors[error.kind()] += 1;
                counts.last_error = Some(error.to_string());
            }
        }
        drop(counts);
        let mut breaker = lock(&self.breaker);
        if error.is_none() {
            breaker.answered();
        } else if breaker.lost(now) {
            // What was sent on it may never be answered.
            *lock(&self.link) = None;
        }
    }

    /// Its state now, if there is one.
    pub(super) fn snapshot(&self) -> Option<EngineSnapshot> {
        self.is_on().then(|| lock(&self.counts).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do_where_its_text_does_not() {
        for (line, expected) in [
            ("MOVED 42 10.0.0.2:7000", "a single server or a failover"),
            (
                "ERR Protocol error: unauthenticated multibulk length",
                "it needs a password",
            ),
            ("NOAUTH Authentication required.", "it needs a password"),
            ("WRONGPASS invalid username-password pair", "WRONGPASS"),
        ] {
            let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            let text = EngineError::of(&value.extract_error().unwrap_err()).to_string();
            assert!(text.starts_with("the engine refuses: "), "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }
}
