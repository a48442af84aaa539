//! The supervisor that started the process, such as systemd: it may pass listening sockets
//! (sd_listen_fds(3)), and gets notifications when the process is ready, reloads, stops and
//! is alive (sd_notify(3)). Without one the functions of this module do nothing.

use std::io;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use socket2::SockRef;
use tokio::runtime::Handle;
use tokio::time::MissedTickBehavior;

use crate::listener::ListeningSocket;

/// The most bytes of a status: systemd ignores notifications of more than 4 KiB.
const MAX_STATUS: usize = 1_000;

/// The process serves; it ends a reload, too.
pub fn ready(status: &str) {
    let status = one_line(status);
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The process begins to apply another configuration.
pub fn reloading() {
    let status = NotifyState::Status("reloading the configuration");
    let mut states = vec![NotifyState::Reloading, status];
    states.extend(NotifyState::monotonic_usec_now().ok());
    notify(&states);
}

/// The process begins to stop.
pub fn stopping() {
    let status = NotifyState::Status("draining: requests in progress finish");
    notify(&[NotifyState::Stopping, status]);
}

/// The process is about to end with this error. `systemctl status` shows it even when the
/// restarts that follow have pushed the log's line out of what is shown.
pub fn failed(error: &str) {
    let status = one_line(&format!("not running: {error}"));
    notify(&[NotifyState::Status(&status)]);
}

/// Sends watchdog notifications, if the supervisor wants them, as long as each of these
/// runtimes runs tasks.
pub async fn run_watchdog(runtimes: Vec<Handle>) {
    let half = sd_notify::watchdog_enabled().map(|within| within / 2);
    let Some(half) = half.filter(|half| !half.is_zero()) else {
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
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the supervisor cannot be notified: check NOTIFY_SOCKET");
    }
}

/// A status, which is a single line.
fn one_line(text: &str) -> String {
    let mut line = text.replace('\n', " ");
    line.truncate(line.floor_char_boundary(MAX_STATUS));
    line
}

/// The listening sockets that were passed, which are used instead of binding new ones, each
/// with its name (`FileDescriptorName=`; empty for none). They outlive the process: while it
/// restarts, new connections wait in their queues.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<(String, ListeningSocket)>);

/// Why the passed sockets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("passed socket {number} {why}")]
pub struct InheritedSocketError {
    /// Its number, from 1 on.
    number: usize,
    why: String,
}

/// Takes the passed sockets, and removes their variables from the environment. So
/// this must be called once, before any thread is started.
///
/// # Errors
/// Where a socket cannot be used.
pub fn inherited_sockets() -> Result<InheritedSockets, InheritedSocketError> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut passed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for at in 0..passed.len() {
        let name = names.next().unwrap_or_default();
        let socket = take(&mut passed, at).map_err(|error| InheritedSocketError {
            number: at + 1,
            why: format!(
                "is not a listening TCP or unix socket: {error}; ListenStream= with a port or a path makes one"
            ),
        });
        sockets.push((name, socket?));
    }
    Ok(InheritedSockets(sockets))
}

/// Takes a passed socket, and makes it non-blocking, as tokio needs it.
fn take(passed: &mut ListenFd, at: usize) -> io::Result<ListeningSocket> {
    let socket = match passed.take_unix_listener(at) {
        Ok(socket) => socket.map(ListeningSocket::Unix),
        Err(_other_kind) => passed.take_tcp_listener(at)?.map(ListeningSocket::Tcp),
    };
    let socket = socket.ok_or(io::ErrorKind::NotFound)?;
    let options = match &socket {
        ListeningSocket::Tcp(socket) => SockRef::from(socket),
        ListeningSocket::Unix(socket) => SockRef::from(socket),
    };
    if !options.is_listener()? {
        return Err(io::Error::other("it does not listen"));
    }
    options.set_nonblocking(true)?;
    Ok(socket)
}

impl InheritedSockets {
    /// Whether none were passed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The socket of each public listener, by the listeners' names, and last that of the
    /// admin listener.
    ///
    /// # Errors
    /// Where it is unknown what a socket is for.
    pub(crate) fn assign(
        self,
        listeners: &[Option<&str>],
    ) -> Result<Vec<Option<ListeningSocket>>, InheritedSocketError> {
        let names: Vec<_> = self.0.iter().map(|(name, _)| &**name).collect();
        let places = places(&names, listeners)?;
        let mut sockets: Vec<_> = (0..=listeners.len()).map(|_| None).collect();
        for (place, (_, socket)) in places.into_iter().zip(self.0) {
            sockets[place] = Some(socket);
        }
        Ok(sockets)
    }
}

/// The place of each socket among the listeners, the admin listener last: by name where at
/// least one has a known name, else by position. systemd's default name is that of the socket
/// unit.
fn places(
    sockets: &[&str],
    listeners: &[Option<&str>],
) -> Result<Vec<usize>, InheritedSocketError> {
    let admin = listeners.len();
    let named = |name: &str| match name {
        "public" => Some(0),
        "admin" => Some(admin),
        name => listeners.iter().position(|known| *known == Some(name)),
    };
    let by_name = sockets.iter().any(|name| named(name).is_some());
    let mut places = Vec::new();
    for (at, name) in sockets.iter().enumerate() {
        let place = match by_name {
            true => named(name),
            false => [0, admin].get(at).copied(),
        };
        match place.filter(|place| !places.contains(place)) {
            Some(place) => places.push(place),
            None => {
                let mut allowed = vec!["public", "admin"];
                allowed.extend(listeners.iter().flatten());
                return Err(InheritedSocketError {
                    number: at + 1,
                    why: format!(
                        "has the name \"{name}\" (FileDescriptorName=), for which there is no listener, or a socket already; allowed are {}, each once, or two sockets without such names, the public one first and then the admin one",
                        allowed.join(", ")
                    ),
                });
            }
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_of_each_socket() {
        let listeners = [None, Some("edge"), None, Some("local")];
        type Row = (
            &'static [&'static str],
            Result<&'static [usize], &'static str>,
        );
        let rows: &[Row] = &[
            (&[], Ok(&[])),
            (&[""], Ok(&[0])),
            (&["", ""], Ok(&[0, 4])),
            (&["", "", ""], Err("socket 3")),
            (&["ordgate.socket", "ordgate.socket"], Ok(&[0, 4])),
            (&["admin"], Ok(&[4])),
            (&["admin", "public"], Ok(&[4, 0])),
            (&["local", "admin", "edge"], Ok(&[3, 4, 1])),
            (
                &["public", "ordgate.socket"],
                Err("allowed are public, admin, edge, local"),
            ),
            (&["public", ""], Err("socket 2")),
            (&["public", "public"], Err("socket 2")),
            (&["edge", "edge"], Err("socket 2")),
        ];
        for (names, expected) in rows {
            match (places(names, &listeners), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, *expected, "{names:?}"),
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{error}");
                }
                (found, _) => panic!("{names:?}: {found:?}"),
            }
        }
    }
}
