//! Reloads, as the operator sees them: one at a time, each told in the log, to
//! who has asked for it, to the supervisor, and in `/status`.
//!
//! `serve` says what a reload does, the admin side and a signal ask for one.
//!
//! Deliberately absent: what is taken up, and what is kept; that is `serve`'s.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::supervisor::Supervisor;

/// What a reload has taken up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// The routes that are as they were, with what is stored under them.
    pub kept: Vec<String>,
    /// The routes that are new, or mean something else than before.
    pub begun: Vec<String>,
    /// The routes that are no more.
    pub gone: Vec<String>,
    /// What the operator should know beside, such as what takes a restart.
    pub notes: Vec<String>,
}

impl Done {
    /// As answers and `/status` say it.
    pub fn value(&self) -> Value {
        json!({
            "routes": { "kept": self.kept, "begun": self.begun, "gone": self.gone },
            "notes": self.notes,
        })
    }
}

/// What a reload came to: what it has taken up, or all that is wrong with what
/// it should have.
pub type Reloaded = Result<Done, Vec<String>>;

/// Has a reload done.
pub type Apply = Box<dyn Fn() -> Reloaded + Send + Sync>;

/// The reloads of a process.
pub struct Reloads {
    apply: Apply,
    clock: Clock,
    supervisor: Supervisor,
    turn: Mutex<()>,
    past: Mutex<Past>,
}

#[derive(Default)]
struct Past {
    done: u64,
    refused: u64,
    last: Option<(Moment, Reloaded)>,
}

impl Reloads {
    /// None so far.
    pub fn new(apply: Apply, clock: Clock, supervisor: Supervisor) -> Self {
        Self {
            apply,
            clock,
            supervisor,
            turn: Mutex::default(),
            past: Mutex::default(),
        }
    }

    /// Reloads. It reads files, and so belongs on no thread that serves.
    ///
    /// # Errors
    /// All that is wrong with what there is to take up; everything goes on as
    /// before then.
    pub fn run(&self) -> Reloaded {
        let turn = lock(&self.turn);
        self.supervisor.reloading();
        let reloaded = (self.apply)();
        // Who reads of it in the log finds it counted.
        self.keep(&reloaded);
        match &reloaded {
            Ok(done) => {
                tracing::info!(
                    kept = done.kept.join(", "),
                    begun = done.begun.join(", "),
                    gone = done.gone.join(", "),
                    "reloaded: the new configuration serves"
                );
                for note in &done.notes {
                    tracing::warn!("reloaded, but: {note}");
                }
                self.supervisor
                    .ready("serving, by the configuration of the last reload");
            }
            Err(problems) => {
                for problem in problems {
                    tracing::error!("not reloaded: {problem}");
                }
                tracing::error!("not reloaded: the configuration from before goes on");
                let why = problems.first().map_or("", |problem| &**problem);
                self.supervisor.ready(&format!(
                    "serving as before: the last reload was refused: {why}"
                ));
            }
        }
        drop(turn);
        reloaded
    }

    fn keep(&self, reloaded: &Reloaded) {
        let mut past = lock(&self.past);
        match reloaded {
            Ok(_) => past.done += 1,
            Err(_) => past.refused += 1,
        }
        past.last = Some((self.clock.now(), reloaded.clone()));
    }

    /// How many were done, and how many refused.
    pub fn counts(&self) -> (u64, u64) {
        let past = lock(&self.past);
        (past.done, past.refused)
    }

    /// What there was, as `/status` says it.
    pub fn status(&self) -> Value {
        let past = lock(&self.past);
        let last = past.last.as_ref().map(|(at, reloaded)| {
            let mut said = match reloaded {
                Ok(done) => done.value(),
                Err(_) => json!({}),
            };
            let date = date::value(self.clock.wall(*at));
            said["at"] = date.to_str().unwrap_or("").into();
            said["seconds_ago"] = self.clock.now().since(*at).as_secs().into();
            said["ok"] = reloaded.is_ok().into();
            said["problems"] = match reloaded {
                Ok(_) => json!([]),
                Err(problems) => json!(problems),
            };
            said
        });
        json!({ "done": past.done, "refused": past.refused, "last": last })
    }
}

/// What these guard is whole after each operation, so a panic elsewhere has
/// spoilt nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::sink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_reload_counts_before_the_log_tells_of_it() {
        let is_good = AtomicBool::new(true);
        let apply = move || match is_good.swap(false, SeqCst) {
            true => Ok(Done::default()),
            false => Err(vec!["a problem".to_owned()]),
        };
        let reloads = Reloads::new(Box::new(apply), Clock::machine(), Supervisor::default());
        let reloads = Arc::new(reloads);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (counted, counts) = (reloads.clone(), seen.clone());
        let log = tracing_subscriber::fmt().with_writer(move || {
            lock(&counts).push(counted.counts());
            sink()
        });
        tracing::subscriber::with_default(log.finish(), || {
            for _ in 0..2 {
                let _either = reloads.run();
            }
        });
        assert_eq!(*lock(&seen), [(1, 0), (1, 1), (1, 1)]);
    }
}
