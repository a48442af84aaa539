//! Runs reloads, one at a time, and reports each in the log, to whoever requested
//! it, to the supervisor, and in `/status`.
//!
//! The admin listener and SIGHUP request reloads; `serve` does what a reload
//! consists of. It reads files, and a file system may hang: so each reload has a thread of
//! its own, for which no runtime and no end of the process waits, and nobody waits for a
//! reload without a deadline.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::supervisor::Supervisor;
use crate::sync::lock;

/// How long a requested reload waits for one that is under way.
const LONGEST_TURN: Duration = Duration::from_secs(5);
/// How many wait at once.
const MOST_WAITING: usize = 4;
/// How long the end of a reload is waited for.
const LONGEST_RELOAD: Duration = Duration::from_secs(60);

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

/// Why a requested reload was not done, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReloaded {
    /// The new configuration and secrets are refused, for these reasons. Nothing has
    /// changed.
    #[error("the new configuration is refused: {}", .0.join("; "))]
    Refused(Vec<String>),
    /// Another reload has been under way for so long. This one was not begun.
    #[error(
        "another reload has been under way for {} s, so this one was not begun and nothing was read for it: request it again once that one has ended; /status (reload) says when. If it does not end, one of the files that it reads is on a file system that does not answer", .0.as_secs()
    )]
    Busy(Duration),
    /// It has not ended in time.
    #[error(
        "the reload has been under way for {} s: one of the files that it reads may be on a file system that does not answer. The previous configuration stays in use until the reload has ended; /status (reload) and the log will have its result", .0.as_secs()
    )]
    UnderWay(Duration),
    /// It has failed, as the log says. Nothing has changed, as far as is known.
    #[error("reloading has failed; the log says why")]
    Failed,
}

/// The reloads of the process.
pub struct Reloads {
    apply: Apply,
    clock: Clock,
    supervisor: Supervisor,
    /// Its permit is taken by the reload that is under way.
    turn: Arc<Semaphore>,
    /// Its permits are taken by those that wait.
    waiting: Semaphore,
    /// When the reload began that is under way.
    began: Mutex<Option<Moment>>,
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
            turn: Arc::new(Semaphore::new(1)),
            waiting: Semaphore::new(MOST_WAITING),
            began: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// Reloads, after the reload that is under way, if there is one. It must be called
    /// within a runtime, on which nothing runs that waits for files.
    ///
    /// # Errors
    /// Everything that is wrong with the new configuration and secrets; or that a reload
    /// takes longer than one can wait.
    pub async fn request(self: &Arc<Self>) -> Result<ReloadReport, NotReloaded> {
        let turn = self.take_turn().await?;
        let (done, result) = oneshot::channel();
        let (reloads, runtime) = (self.clone(), Handle::current());
        let reload = move || {
            // It may open listeners.
            let _entered = runtime.enter();
            let result = reloads.run();
            drop(turn);
            // Nobody may wait for it any more.
            let _ = done.send(result);
        };
        let thread = std::thread::Builder::new().name("ordgate-reload".to_owned());
        if let Err(error) = thread.spawn(reload) {
            tracing::error!(%error, "not reloaded: there is no thread for it");
            return Err(NotReloaded::Failed);
        }
        match timeout(LONGEST_RELOAD, result).await {
            Ok(Ok(result)) => result.map_err(NotReloaded::Refused),
            Ok(Err(_)) => {
                tracing::error!("not reloaded: the reload has panicked");
                Err(NotReloaded::Failed)
            }
            Err(_) => {
                let late = NotReloaded::UnderWay(LONGEST_RELOAD);
                tracing::error!("{late}");
                Err(late)
            }
        }
    }

    /// Waits for the end of the reload that is under way, not too long, and not with too
    /// many others.
    async fn take_turn(&self) -> Result<OwnedSemaphorePermit, NotReloaded> {
        let busy = || {
            let began = *lock(&self.began);
            let now = self.clock.now();
            NotReloaded::Busy(began.map_or(Duration::ZERO, |began| now.since(began)))
        };
        if let Ok(turn) = self.turn.clone().try_acquire_owned() {
            return Ok(turn);
        }
        let _waiting = self.waiting.try_acquire().map_err(|_full| busy())?;
        let turn = timeout(LONGEST_TURN, self.turn.clone().acquire_owned()).await;
        turn.map_err(|_late| busy())?.map_err(|_closed| busy())
    }

    /// Reloads, on a thread that may wait for files.
    fn run(&self) -> ReloadResult {
        /// Ends with the reload, also if that panics.
        struct UnderWay<'a>(&'a Mutex<Option<Moment>>);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                *lock(self.0) = None;
            }
        }
        *lock(&self.began) = Some(self.clock.now());
        let under_way = UnderWay(&self.began);
        self.supervisor.reloading();
        let result = (self.apply)();
        drop(under_way);
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

    /// The counts, the last reload, and for how many seconds one has been under way, for
    /// `/status`.
    pub(crate) fn status(&self) -> Value {
        let began = *lock(&self.began);
        let under_way = began.map(|began| self.clock.now().since(began).as_secs());
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
        json!({
            "done": history.done,
            "refused": history.refused,
            "last": last,
            "under_way_seconds": under_way,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::sink;
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

    /// A reload that does not end before it is let go.
    fn hanging() -> (Arc<Reloads>, std::sync::mpsc::Sender<()>) {
        let (go_on, hangs) = std::sync::mpsc::channel();
        let hangs = Mutex::new(hangs);
        let apply = move || {
            lock(&hangs).recv().unwrap();
            Ok(ReloadReport::default())
        };
        let (clock, supervisor) = (Clock::machine(), Supervisor::default());
        let reloads = Reloads::new(Box::new(apply), clock, supervisor);
        (Arc::new(reloads), go_on)
    }

    /// Time passes at once where nothing else is to be done.
    #[tokio::test(start_paused = true)]
    async fn a_reload_that_hangs_holds_up_others_for_a_bounded_time_and_number() {
        let (reloads, go_on) = hanging();
        let requested = |reloads: &Arc<Reloads>| {
            let reloads = reloads.clone();
            tokio::spawn(async move { reloads.request().await })
        };
        let first = requested(&reloads);
        while lock(&reloads.began).is_none() {
            tokio::task::yield_now().await;
        }
        assert_eq!(reloads.status()["under_way_seconds"], 0);
        let waiting: Vec<_> = (0..MOST_WAITING).map(|_| requested(&reloads)).collect();
        while reloads.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let before = tokio::time::Instant::now();
        let too_many = reloads.request().await;
        assert!(
            matches!(too_many, Err(NotReloaded::Busy(_))),
            "{too_many:?}"
        );
        assert_eq!(before.elapsed(), Duration::ZERO, "it does not wait");
        for late in waiting {
            let late = late.await.unwrap();
            assert!(matches!(late, Err(NotReloaded::Busy(_))), "{late:?}");
        }
        assert_eq!(before.elapsed(), LONGEST_TURN);
        let first = first.await.unwrap();
        assert_eq!(first, Err(NotReloaded::UnderWay(LONGEST_RELOAD)));
        assert_eq!(reloads.counts(), (0, 0));
        // Both end, the late one too.
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        while reloads.turn.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        // From here on, nothing is late.
        tokio::time::resume();
        assert_eq!(reloads.request().await, Ok(ReloadReport::default()));
        assert_eq!(reloads.counts(), (2, 0));
        assert_eq!(reloads.status()["under_way_seconds"], Value::Null);
    }

    #[test]
    fn a_runtime_ends_while_a_reload_hangs() {
        let (reloads, go_on) = hanging();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let reloads = reloads.clone();
            tokio::spawn({
                let reloads = reloads.clone();
                async move { reloads.request().await }
            });
            while lock(&reloads.began).is_none() {
                tokio::task::yield_now().await;
            }
        });
        drop(runtime);
        assert_eq!(reloads.counts(), (0, 0), "it still hangs");
        go_on.send(()).unwrap();
    }

    #[tokio::test]
    async fn a_reload_that_panics_is_no_obstacle_to_the_next() {
        let is_first = AtomicBool::new(true);
        let apply = move || match is_first.swap(false, SeqCst) {
            true => panic!("a fault"),
            false => Ok(ReloadReport::default()),
        };
        let (clock, supervisor) = (Clock::machine(), Supervisor::default());
        let reloads = Arc::new(Reloads::new(Box::new(apply), clock, supervisor));
        assert_eq!(reloads.request().await, Err(NotReloaded::Failed));
        assert_eq!(reloads.status()["under_way_seconds"], Value::Null);
        assert_eq!(reloads.request().await, Ok(ReloadReport::default()));
    }
}
