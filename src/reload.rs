//! Runs reloads, one at a time, and reports each in the log, to whoever requested
//! it, to the supervisor, and in `/status`.
//!
//! The admin listener and SIGHUP request reloads; `serve` does what a reload
//! consists of. It reads files, and a file system may hang: so it runs on a thread for which
//! no end of the process waits, and nobody waits for it without a deadline.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::supervisor;
use crate::sync::lock;

/// How long the end of a reload is waited for.
const LONGEST_RELOAD: Duration = Duration::from_secs(60);

/// What the operator should know of a reload that was done, such as settings that need a
/// restart; or everything that is wrong with the new configuration.
pub type ReloadResult = Result<Vec<String>, Vec<String>>;

/// Why a requested reload was not done, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReloaded {
    /// The new configuration and secrets are refused, for these reasons. Nothing has
    /// changed.
    #[error("the new configuration is refused: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// It has not ended in time.
    #[error(
        "the reload has not ended within {} s: one of the files that it reads may be on a file system that does not answer. The previous configuration stays in use until it ends; the log and /status (reload) will have its result", .0.as_secs()
    )]
    Late(Duration),
    /// It has failed, as the log says. Nothing has changed, as far as is known.
    #[error("reloading has failed; the log says why")]
    Failed,
}

/// The reloads of the process.
pub struct Reloads {
    apply: Box<dyn Fn() -> ReloadResult + Send + Sync>,
    clock: Clock,
    /// Held by the reload that is under way.
    turn: Mutex<()>,
    history: Mutex<ReloadHistory>,
}

#[derive(Default)]
struct ReloadHistory {
    done: u64,
    refused: u64,
    last: Option<(Moment, ReloadResult)>,
}

impl Reloads {
    /// No reload so far. `apply` does one.
    pub(crate) fn new(
        apply: impl Fn() -> ReloadResult + Send + Sync + 'static,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            apply: Box::new(apply),
            clock,
            turn: Mutex::default(),
            history: Mutex::default(),
        })
    }

    /// Reloads, after those that were requested before. It must be called within a runtime
    /// that is shut down in the background.
    ///
    /// # Errors
    /// Everything that is wrong with the new configuration and secrets; or that a reload
    /// takes longer than one can wait.
    pub async fn request(self: &Arc<Self>) -> Result<Vec<String>, NotReloaded> {
        let reloads = self.clone();
        let reload = spawn_blocking(move || reloads.run());
        let failed = match timeout(LONGEST_RELOAD, reload).await {
            Ok(Ok(result)) => return result.map_err(NotReloaded::Refused),
            Ok(Err(_panicked)) => NotReloaded::Failed,
            Err(_elapsed) => NotReloaded::Late(LONGEST_RELOAD),
        };
        tracing::error!("not reloaded: {failed}");
        Err(failed)
    }

    /// Reloads, on a thread that may wait for files.
    fn run(&self) -> ReloadResult {
        let _turn = lock(&self.turn);
        supervisor::reloading();
        let result = (self.apply)();
        // Before the log, so that whoever reads the log finds it counted.
        let mut history = lock(&self.history);
        match &result {
            Ok(_) => history.done += 1,
            Err(_) => history.refused += 1,
        }
        history.last = Some((self.clock.now(), result.clone()));
        drop(history);
        match &result {
            Ok(notes) => {
                tracing::info!("reloaded: the new configuration is in use");
                for note in notes {
                    tracing::warn!("reloaded, but: {note}");
                }
                supervisor::ready("serving, by the configuration of the last reload");
            }
            Err(problems) => {
                for problem in problems {
                    tracing::error!("not reloaded: {problem}");
                }
                tracing::error!("not reloaded: the previous configuration stays in use");
                let why = problems.first().map_or("", |problem| &**problem);
                supervisor::ready(&format!(
                    "serving as before: the last reload was refused: {why}"
                ));
            }
        }
        result
    }

    /// The counts and the last reload, for `/status`.
    pub(crate) fn status(&self) -> Value {
        let history = lock(&self.history);
        let last = history.last.as_ref().map(|(at, result)| {
            json!({
                "at": date::value(self.clock.wall(*at)).to_str().unwrap_or(""),
                "seconds_ago": self.clock.now().since(*at).as_secs(),
                "ok": result.is_ok(),
                "notes": result.as_ref().unwrap_or(&Vec::new()),
                "problems": result.as_ref().err().unwrap_or(&Vec::new()),
            })
        });
        let is_ok = history.last.as_ref().is_none_or(|(_, last)| last.is_ok());
        json!({ "done": history.done, "refused": history.refused, "ok": is_ok, "last": last })
    }
}

#[cfg(test)]
mod tests {
    use std::io::sink;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    /// How many reloads were done, and how many refused.
    fn counts(reloads: &Reloads) -> (u64, u64) {
        let status = reloads.status();
        let count = |name: &str| status[name].as_u64().unwrap();
        (count("done"), count("refused"))
    }

    #[test]
    fn a_reload_is_counted_before_it_is_logged() {
        let is_good = AtomicBool::new(true);
        let apply = move || match is_good.swap(false, SeqCst) {
            true => Ok(Vec::new()),
            false => Err(vec!["a problem".to_owned()]),
        };
        let reloads = Reloads::new(apply, Clock::machine());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (counted, logged) = (reloads.clone(), seen.clone());
        let log = tracing_subscriber::fmt().with_writer(move || {
            lock(&logged).push(counts(&counted));
            sink()
        });
        tracing::subscriber::with_default(log.finish(), || {
            for _ in 0..2 {
                let _either = reloads.run();
            }
        });
        assert_eq!(*lock(&seen), [(1, 0), (1, 1), (1, 1)]);
    }

    #[test]
    fn a_reload_that_hangs_has_a_deadline_and_holds_up_no_end_of_a_runtime() {
        let (go_on, hangs) = std::sync::mpsc::channel();
        let hangs = Mutex::new(hangs);
        let apply = move || {
            lock(&hangs).recv().unwrap();
            Ok(Vec::new())
        };
        let reloads = Reloads::new(apply, Clock::machine());
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().start_paused(true).build().unwrap()
        };
        // Time passes at once where nothing else is to be done.
        let hung = runtime();
        let late = hung.block_on(async {
            let reload = reloads.request();
            tokio::pin!(reload);
            tokio::select! {
                biased;
                early = &mut reload => panic!("{early:?}"),
                () = tokio::task::yield_now() => {}
            }
            tokio::time::advance(LONGEST_RELOAD).await;
            reload.await
        });
        assert_eq!(late, Err(NotReloaded::Late(LONGEST_RELOAD)));
        hung.shutdown_background();
        assert_eq!(counts(&reloads), (0, 0));
        while reloads.turn.try_lock().is_ok() {
            std::thread::yield_now();
        }
        // It ends all the same, and then the next one is done.
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        let next = runtime().block_on(reloads.request());
        assert_eq!(next, Ok(Vec::new()));
        assert_eq!(counts(&reloads), (2, 0));
    }

    #[tokio::test]
    async fn a_reload_that_panics_is_no_obstacle_to_the_next() {
        let is_first = AtomicBool::new(true);
        let apply = move || match is_first.swap(false, SeqCst) {
            true => panic!("a fault"),
            false => Ok(Vec::new()),
        };
        let reloads = Reloads::new(apply, Clock::machine());
        assert_eq!(reloads.request().await, Err(NotReloaded::Failed));
        assert_eq!(reloads.request().await, Ok(Vec::new()));
    }
}
