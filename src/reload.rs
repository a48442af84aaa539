//! Runs reloads, one at a time, and reports each in the log, to whoever requested
//! it, to the supervisor, and in `/status`.
//!
//! The admin listener and SIGHUP request reloads; `serve` does what a reload
//! consists of.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::supervisor::Supervisor;
use crate::sync::lock;

/// What a reload has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Routes that keep their stored responses.
    pub kept: Vec<String>,
    /// Routes that are new, or have another meaning than before.
    pub begun: Vec<String>,
    /// Routes that no longer exist.
    pub gone: Vec<String>,
    /// What else the operator should know, such as settings that need a restart.
    pub notes: Vec<String>,
}

impl ReloadReport {
    /// The report as JSON, for answers and `/status`.
    pub(crate) fn value(&self) -> Value {
        json!({
            "routes": { "kept": self.kept, "begun": self.begun, "gone": self.gone },
            "notes": self.notes,
        })
    }
}

/// What a reload has changed, or everything that is wrong with the new
/// configuration.
pub type ReloadResult = Result<ReloadReport, Vec<String>>;

/// Does a reload.
pub(crate) type Apply = Box<dyn Fn() -> ReloadResult + Send + Sync>;

/// The reloads of the process.
pub struct Reloads {
    apply: Apply,
    clock: Clock,
    supervisor: Supervisor,
    running: Mutex<()>,
    history: Mutex<ReloadHistory>,
}

#[derive(Default)]
struct ReloadHistory {
    done: u64,
    refused: u64,
    last: Option<(Moment, ReloadResult)>,
}

impl Reloads {
    /// No reload so far.
    pub(crate) fn new(apply: Apply, clock: Clock, supervisor: Supervisor) -> Self {
        Self {
            apply,
            clock,
            supervisor,
            running: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// Reloads. This reads files, so it must not run on a thread that serves.
    ///
    /// # Errors
    /// Everything that is wrong with the new configuration and secrets; nothing
    /// has changed then.
    pub fn run(&self) -> ReloadResult {
        let running = lock(&self.running);
        self.supervisor.reloading();
        let result = (self.apply)();
        // Before the log, so that whoever reads the log finds it counted.
        self.record(&result);
        match &result {
            Ok(report) => {
                tracing::info!(
                    kept = report.kept.join(", "),
                    begun = report.begun.join(", "),
                    gone = report.gone.join(", "),
                    "reloaded: the new configuration is in use"
                );
                for note in &report.notes {
                    tracing::warn!("reloaded, but: {note}");
                }
                self.supervisor
                    .ready("serving, by the configuration of the last reload");
            }
            Err(problems) => {
                for problem in problems {
                    tracing::error!("not reloaded: {problem}");
                }
                tracing::error!("not reloaded: the previous configuration stays in use");
                let why = problems.first().map_or("", |problem| &**problem);
                self.supervisor.ready(&format!(
                    "serving as before: the last reload was refused: {why}"
                ));
            }
        }
        drop(running);
        result
    }

    fn record(&self, result: &ReloadResult) {
        let mut history = lock(&self.history);
        match result {
            Ok(_) => history.done += 1,
            Err(_) => history.refused += 1,
        }
        history.last = Some((self.clock.now(), result.clone()));
    }

    /// How many reloads were done, and how many refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let history = lock(&self.history);
        (history.done, history.refused)
    }

    /// The counts and the last reload, for `/status`.
    pub(crate) fn status(&self) -> Value {
        let history = lock(&self.history);
        let last = history.last.as_ref().map(|(at, result)| {
            let mut value = match result {
                Ok(report) => report.value(),
                Err(_) => json!({}),
            };
            let date = date::value(self.clock.wall(*at));
            value["at"] = date.to_str().unwrap_or("").into();
            value["seconds_ago"] = self.clock.now().since(*at).as_secs().into();
            value["ok"] = result.is_ok().into();
            value["problems"] = match result {
                Ok(_) => json!([]),
                Err(problems) => json!(problems),
            };
            value
        });
        json!({ "done": history.done, "refused": history.refused, "last": last })
    }
}

#[cfg(test)]
mod tests {
    use std::io::sink;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_reload_is_counted_before_it_is_logged() {
        let is_good = AtomicBool::new(true);
        let apply = move || match is_good.swap(false, SeqCst) {
            true => Ok(ReloadReport::default()),
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
