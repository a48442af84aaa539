//! The supervisor that started the process, such as systemd: it may pass
//! listening sockets ([`inherited_sockets`]), and gets notifications when the
//! process is ready, reloads, stops and is alive (sd_notify(3)).
//!
//! Without a supervisor nothing happens. A thread of its own sends the
//! notifications, so that nothing waits for a supervisor that does not read them;
//! those beyond a short queue are dropped.
//!
//! `reload` and the binary call this.

mod sockets;

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;
pub use sockets::{InheritedSocket, InheritedSocketError, InheritedSockets, inherited_sockets};
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

/// Sends notifications to the supervisor, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Supervisor(Option<SyncSender<Notification>>);

#[derive(Debug)]
enum Notification {
    /// The process serves.
    Ready { status: String },
    /// It applies another configuration, since this moment.
    Reloading { since: Option<NotifyState<'static>> },
    /// It is about to end. `sent` gets a message once the notification is sent.
    Stopping { sent: SyncSender<()> },
    /// It ends since it could not start, or not go on. `sent` as above.
    Failed {
        status: String,
        sent: SyncSender<()>,
    },
    /// Its threads make progress.
    Watchdog,
}

/// Notifications that wait to be sent.
const QUEUE_LENGTH: usize = 16;
/// How long the end of the process waits for its notification to be sent.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes of a status: systemd ignores notifications of more than 4 KiB.
const MAX_STATUS: usize = 1_000;

impl Supervisor {
    /// The supervisor that `NOTIFY_SOCKET` names, if it is set.
    pub fn from_env() -> Self {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Self::default();
        }
        let (queue, notifications) = sync_channel(QUEUE_LENGTH);
        let thread = std::thread::Builder::new().name("ordgate-supervisor".to_owned());
        match thread.spawn(move || run_notifier(&notifications)) {
            Ok(_detached) => Self(Some(queue)),
            Err(error) => {
                tracing::warn!(%error, "the supervisor gets no notifications: there is no thread for them");
                Self::default()
            }
        }
    }

    /// The process serves.
    pub fn ready(&self, status: &str) {
        let status = one_line(status);
        self.send(Notification::Ready { status });
    }

    /// The process begins to apply another configuration; [`ready`](Self::ready)
    /// ends that.
    pub fn reloading(&self) {
        let since = NotifyState::monotonic_usec_now().ok();
        self.send(Notification::Reloading { since });
    }

    /// The process begins to stop. Returns when the notification is sent, and
    /// after at most a second.
    pub fn stopping(&self) {
        self.send_and_wait(|sent| Notification::Stopping { sent });
    }

    /// The process is about to end with this error. `systemctl status` shows it even when
    /// the restarts that follow have pushed the log's line out of what is shown. Returns as
    /// [`stopping`](Self::stopping) does.
    pub fn failed(&self, error: &str) {
        let status = one_line(&format!("not running: {error}"));
        self.send_and_wait(|sent| Notification::Failed { status, sent });
    }

    fn send_and_wait(&self, notification: impl FnOnce(SyncSender<()>) -> Notification) {
        let (sent, wait) = sync_channel(1);
        self.send(notification(sent));
        // The process ends in any case.
        let _ = wait.recv_timeout(STOPPING_TIMEOUT);
    }

    /// Sends watchdog notifications, if the supervisor wants them, as long as each
    /// of these runtimes runs tasks.
    pub async fn run_watchdog(self, runtimes: Vec<Handle>) {
        let half = sd_notify::watchdog_enabled().map(|within| within / 2);
        let Some(half) = half.filter(|half| !half.is_zero() && self.0.is_some()) else {
            return;
        };
        let mut interval = tokio::time::interval(half);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            for runtime in &runtimes {
                // A runtime that has shut down is skipped.
                let _ = runtime.spawn(async {}).await;
            }
            self.send(Notification::Watchdog);
        }
    }

    fn send(&self, notification: Notification) {
        if let Some(queue) = &self.0 {
            let _ = queue.try_send(notification);
        }
    }
}

/// A status, which is a single line.
fn one_line(text: &str) -> String {
    let mut line = text.replace('\n', " ");
    line.truncate(line.floor_char_boundary(MAX_STATUS));
    line
}

/// Sends notifications to the supervisor, one after another.
fn run_notifier(notifications: &Receiver<Notification>) {
    let mut is_stopping = false;
    let mut has_failed = false;
    for notification in notifications {
        let sent = match &notification {
            // After STOPPING=1 the process is no longer ready.
            Notification::Ready { .. } | Notification::Reloading { .. } if is_stopping => Ok(()),
            Notification::Ready { status } => {
                sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
            }
            Notification::Reloading { since } => {
                let status = NotifyState::Status("reloading the configuration");
                let mut states = vec![NotifyState::Reloading, status];
                states.extend(since.clone());
                sd_notify::notify(&states)
            }
            Notification::Stopping { .. } => {
                is_stopping = true;
                sd_notify::notify(&[
                    NotifyState::Stopping,
                    NotifyState::Status("draining: requests in progress finish"),
                ])
            }
            Notification::Failed { status, .. } => {
                sd_notify::notify(&[NotifyState::Status(status)])
            }
            Notification::Watchdog => sd_notify::notify(&[NotifyState::Watchdog]),
        };
        if let Err(error) = sent
            && !has_failed
        {
            has_failed = true;
            tracing::warn!(%error, "the supervisor cannot be notified: check NOTIFY_SOCKET; further failures are not logged");
        }
        if let Notification::Stopping { sent } | Notification::Failed { sent, .. } = notification {
            // The receiver may have timed out.
            let _ = sent.send(());
        }
    }
}
