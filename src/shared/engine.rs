//! The engine: a server of Valkey or Redis that all replicas reach.
//!
//! Only this module names the crate `redis`. Every call has a time-out, and no request of a
//! client depends on its answer. A call is never repeated, except where the server did not
//! have the script yet; what a call without an answer has done is unknown.
//!
//! The connection is made when it is first needed, and anew when it is lost, when the
//! server refuses to write (another one is the primary now), and when the breaker opens.
//!
//! When calls have had no answer for [`LOST_FOR`] or longer, the engine counts as absent, and
//! no call waits for it but one each [`PAUSE`].
//!
//! Invariant: no error, log line or `Debug` output has the password.

mod url;

use std::sync::{Arc, Mutex};
use std::time::Duration;

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
fn in_words(error: &RedisError) -> String {
    let is = |kind| error.kind() == ErrorKind::Server(kind);
    let text = error.to_string();
    if is(ServerErrorKind::Moved) || is(ServerErrorKind::Ask) {
        format!(
            "it is a node of a cluster; ordgate needs a single server or a failover address ({text})"
        )
    } else if text.contains("NOAUTH") || text.contains("unauthenticated") {
        format!(
            "it needs a password, which belongs in the URL: redis://user:password@host:6379/0 ({text})"
        )
    } else {
        text
    }
}

/// The time from the first of the calls in a row without an answer to the last. Many calls are
/// made at once, and all of them are lost in one slow moment of the engine.
const LOST_FOR: Duration = Duration::from_secs(1);
/// An engine that is back is used again so soon.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct EngineBreaker {
    /// When the first call was lost since the last answer.
    lost: Option<Moment>,
    /// While it is open: when the next call is tried.
    next: Option<Moment>,
}

impl EngineBreaker {
    /// Whether a call may be made now. [`answered`](Self::answered) or
    /// [`lost`](Self::lost) should follow.
    fn admit(&mut self, now: Moment) -> bool {
        if let Some(next) = &mut self.next {
            if now < *next {
                return false;
            }
            *next = now + PAUSE;
        }
        true
    }

    /// The engine has answered.
    fn answered(&mut self) {
        *self = Self::default();
    }

    /// A call was not answered. Returns whether the breaker has opened, or stays open.
    fn lost(&mut self, now: Moment) -> bool {
        let is_open = now.since(*self.lost.get_or_insert(now)) >= LOST_FOR;
        if is_open {
            self.next.get_or_insert(now + PAUSE);
        }
        is_open
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

    fn ms(millis: u64) -> Moment {
        Moment::default() + Duration::from_millis(millis)
    }

    #[test]
    fn calls_lost_in_a_row_for_a_second_open_it() {
        // When calls were lost, and after how many of them it is open.
        for (lost, opens) in [
            (&[0, 250, 500, 750, 1000][..], Some(5)),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 999], None),
            (&[0, 60_000], Some(2)),
            (&[0; 100], None),
        ] {
            let mut breaker = EngineBreaker::default();
            let mut opened = None;
            for (at, calls) in lost.iter().zip(1..) {
                assert_eq!(breaker.admit(ms(*at)), opened.is_none());
                if breaker.lost(ms(*at)) {
                    opened = opened.or(Some(calls));
                }
            }
            assert_eq!(opened, opens, "{lost:?}");
        }
    }

    #[test]
    fn an_open_breaker_tries_one_call_each_second_until_one_is_answered() {
        let mut breaker = EngineBreaker::default();
        assert!(!breaker.lost(ms(0)) && breaker.lost(ms(1000)));
        for second in [2, 3, 4] {
            assert!(!breaker.admit(ms(second * 1000 - 1)));
            assert!(breaker.admit(ms(second * 1000)));
            assert!(!breaker.admit(ms(second * 1000)), "one call only");
            assert!(breaker.lost(ms(second * 1000)), "nor is it answered");
        }
        breaker.answered();
        for at in [4000, 4300, 4999] {
            assert!(breaker.admit(ms(at)) && !breaker.lost(ms(at)), "anew: {at}");
        }
        assert!(breaker.lost(ms(5000)));
    }
}
