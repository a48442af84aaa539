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
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, cmd};
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
    pub(super) clock: Clock,
    state: Mutex<State>,
}

struct State {
    timeout: Duration,
    link: Option<ConnectionManager>,
    breaker: EngineBreaker,
    snapshot: EngineSnapshot,
}

/// The engine as `/status` and metrics show it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct EngineSnapshot {
    /// Whether the last call was answered.
    is_up: bool,
    /// How long the last answer took, in seconds.
    round_trip: f64,
    /// Why the last call that failed did so.
    last_error: Option<String>,
}

impl Engine {
    /// The engine at this URL. No connection is made yet.
    pub(super) fn new(url: Option<EngineUrl>, timeout: Duration, clock: Clock) -> Arc<Self> {
        let state = State {
            timeout,
            link: None,
            breaker: EngineBreaker::default(),
            snapshot: EngineSnapshot::default(),
        };
        Arc::new(Self {
            url,
            clock,
            state: Mutex::new(state),
        })
    }

    /// Whether there is one.
    pub(super) fn is_on(&self) -> bool {
        self.url.is_some()
    }

    /// Sets how long a call may take.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        lock(&self.state).timeout = timeout;
    }

    /// Runs a script. Keys, arguments and what it returns may be any bytes.
    ///
    /// # Errors
    /// Where no answer came in time, or one that says that the script has failed: in words,
    /// without the password.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[impl AsRef<[u8]>],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<T, String> {
        let began = self.clock.now();
        let url = self.url.as_ref();
        let url = url.filter(|_| lock(&self.state).breaker.admit(began));
        let Some(url) = url else {
            return Err("not called: it did not answer the last calls".to_owned());
        };
        let timeout = lock(&self.state).timeout;
        let answer = match self.link(url) {
            Err(error) => Err(in_words(&error)),
            Ok(mut link) => {
                let mut invocation = script.prepare_invoke();
                for key in keys {
                    invocation.key(key.as_ref());
                }
                for argument in arguments {
                    invocation.arg(argument.as_ref());
                }
                let answer = invocation.invoke_async(&mut link);
                match tokio::time::timeout(timeout, answer).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(error)) => Err(self.failed(&error)),
                    Err(_elapsed) => Err("no answer within shared.timeout".to_owned()),
                }
            }
        };
        self.note(answer.as_ref().err(), began);
        answer
    }

    /// The connection, which is made in the background.
    fn link(&self, url: &EngineUrl) -> RedisResult<ConnectionManager> {
        let mut state = lock(&self.state);
        if let Some(link) = &state.link {
            return Ok(link.clone());
        }
        // Without retries of its own: the breaker says when to try again.
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let made = ConnectionManager::new_lazy_with_config(url.client()?, config)?;
        // A call that is given up after the time-out must not stop the connecting.
        let mut first = made.clone();
        tokio::spawn(async move { cmd("PING").query_async::<()>(&mut first).await });
        state.link = Some(made.clone());
        Ok(made)
    }

    /// The error in words. Where another connection may do better, this one is given up.
    fn failed(&self, error: &RedisError) -> String {
        const ELSEWHERE: [ErrorKind; 2] = [
            ErrorKind::Server(ServerErrorKind::ReadOnly),
            ErrorKind::Server(ServerErrorKind::MasterDown),
        ];
        if ELSEWHERE.contains(&error.kind()) {
            lock(&self.state).link = None;
        }
        in_words(error)
    }

    fn note(&self, error: Option<&String>, began: Moment) {
        let (now, mut state) = (self.clock.now(), lock(&self.state));
        state.snapshot.is_up = error.is_none();
        match error {
            None => {
                state.snapshot.round_trip = now.since(began).as_secs_f64();
                state.breaker.answered();
            }
            Some(error) => {
                state.snapshot.last_error = Some(error.clone());
                if state.breaker.lost(now) {
                    // What was sent on it may never be answered.
                    state.link = None;
                }
            }
        }
    }

    /// Its state now, if there is one.
    pub(super) fn snapshot(&self) -> Option<EngineSnapshot> {
        self.is_on().then(|| lock(&self.state).snapshot.clone())
    }
}

/// An error of the crate in words. None of them has the password.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the crate's kinds of errors are not exhaustive"
)]
fn in_words(error: &RedisError) -> String {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => format!(
            "it is a node of a cluster; ordgate needs a single server or a failover address ({error})"
        ),
        _ => {
            let text = error.to_string();
            match text.contains("NOAUTH") || text.contains("unauthenticated") {
                true => format!(
                    "it needs a password, which belongs in the URL: redis://user:password@host:6379/0 ({text})"
                ),
                false => text,
            }
        }
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
            let text = in_words(&value.extract_error().unwrap_err());
            assert!(text.contains(expected), "{text}");
        }
    }
}
