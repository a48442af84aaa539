//! The supervisor: whoever has started the process and looks after it, as
//! systemd does. It may hand over sockets that listen already ([`handed()`]), and
//! wants to be told when the process is ready, reloads, stops and lives
//! (sd_notify(3)).
//!
//! Invariants: where there is no supervisor nothing happens, and nothing waits
//! for one that does not listen: a thread of its own talks to it, and what it
//! cannot say in time is left out.
//!
//! Deliberately absent: when all this is so. `reload` tells of reloads, the
//! binary of the rest.

mod handed;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

pub use handed::{BadSockets, Handed, handed};
use sd_notify::NotifyState;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

/// Who is told how the process fares, if anybody is.
#[derive(Clone, Debug, Default)]
pub struct Supervisor(Option<SyncSender<Notification>>);

/// What there is to tell.
#[derive(Debug)]
enum Notification {
    /// It serves.
    Ready { status: String },
    /// It takes up another configuration, since then.
    Reloading { since: Option<NotifyState<'static>> },
    /// It is about to end.
    Stopping { told: SyncSender<()> },
    /// Its threads work.
    Alive,
}

/// What waits to be told; more is left out.
const MOST_WORDS: usize = 16;
/// How long the end of the process waits for its being told.
const LAST_WORD: Duration = Duration::from_secs(1);

impl Supervisor {
    /// The one that the environment names, in `NOTIFY_SOCKET`.
    pub fn of_environment() -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self::default();
        }
        let (say, words) = sync_channel(MOST_WORDS);
        let thread = std::thread::Builder::new().name("ordgate-supervisor".to_owned());
        match thread.spawn(move || talk(&words)) {
            Ok(_lives_on) => Self(Some(say)),
            Err(error) => {
                tracing::warn!(%error, "the supervisor is told nothing: there is no thread for it");
                Self::default()
            }
        }
    }

    /// The process serves.
    pub fn ready(&self, status: &str) {
        // A status is a line.
        let status = status.replace('\n', " ");
        self.tell(Notification::Ready { status });
    }

    /// The process begins to take up another configuration; [`ready`](Self::ready)
    /// says that it has.
    pub fn reloading(&self) {
        let since = NotifyState::monotonic_usec_now().ok();
        self.tell(Notification::Reloading { since });
    }

    /// The process begins to stop. Answers when the supervisor knows, or has not
    /// listened for a while.
    pub fn stopping(&self) {
        let (told, heard) = sync_channel(1);
        self.tell(Notification::Stopping { told });
        // Nobody to tell, or nobody who listens: it stops all the same.
        let _ = heard.recv_timeout(LAST_WORD);
    }

    /// Goes on telling that the process lives, where the supervisor wants to know
    /// that: as long as each of these runtimes gets round to a task.
    pub async fn reassure(self, threads: Vec<Handle>) {
        let half = sd_notify::watchdog_enabled().map(|within| within / 2);
        let Some(half) = half.filter(|half| !half.is_zero() && self.0.is_some()) else {
            return;
        };
        let mut times = tokio::time::interval(half);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            for thread in &threads {
                // One that has come to its end is no longer to be asked.
                let _ = thread.spawn(async {}).await;
            }
            self.tell(Notification::Alive);
        }
    }

    fn tell(&self, word: Notification) {
        if let Some(say) = &self.0 {
            let _ = say.try_send(word);
        }
    }
}

/// Tells the supervisor one word after another.
fn talk(words: &Receiver<Notification>) {
    let mut stops = false;
    let mut fails = false;
    for word in words {
        let said = match &word {
            // Who has said that he goes does not say that he is there.
            Notification::Ready { .. } | Notification::Reloading { .. } if stops => Ok(()),
            Notification::Ready { status } => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
            }
            Notification::Reloading { since } => {
                let status = NotifyState::Status("reading the configuration again");
                let mut states = vec![NotifyState::Reloading, status];
                states.extend(since.clone());
                sd_notify::notify(&states)
            }
            Notification::Stopping { .. } => {
                stops = true;
                sd_notify::notify(&[
                    NotifyState::Stopping,
                    NotifyState::Status("draining: what is under way finishes"),
                ])
            }
            Notification::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        };
        if let Err(error) = said
            && !fails
        {
            fails = true;
            tracing::warn!(%error, "the supervisor cannot be told how things are: look at NOTIFY_SOCKET; this is said once");
        }
        if let Notification::Stopping { told } = word {
            // Who waited may have given up.
            let _ = told.send(());
        }
    }
}
