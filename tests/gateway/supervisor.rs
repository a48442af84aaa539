//! A supervisor such as systemd: its notifications, the sockets that it hands over,
//! and restarts under it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use rustix::process::Signal;
use tokio::net::UnixDatagram;
use tokio::task::JoinSet;

use crate::support::{Client, Process, token, until, within};

/// The socket that `NOTIFY_SOCKET` names.
struct NotifySocket {
    socket: UnixDatagram,
    path: String,
    _directory: tempfile::TempDir,
}

impl NotifySocket {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        Self {
            socket: UnixDatagram::bind(&path).unwrap(),
            path: path.display().to_string(),
            _directory: directory,
        }
    }

    /// The next notification.
    async fn next(&self) -> String {
        let mut room = [0; 4096];
        let length = within("a word for the supervisor", self.socket.recv(&mut room)).await;
        String::from_utf8_lossy(&room[..length.unwrap()]).into_owned()
    }

    /// Waits for the beginning and the end of a reload; returns how it ended.
    async fn reload(&self) -> String {
        let begins = self.next().await;
        assert!(begins.starts_with("RELOADING=1\nSTATUS="), "{begins}");
        let time = begins
            .lines()
            .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        assert!(time.unwrap().parse::<u64>().unwrap() > 0, "{begins}");
        let ends = self.next().await;
        assert!(ends.starts_with("READY=1\nSTATUS=serving"), "{ends}");
        ends
    }
}

#[tokio::test]
async fn systemd_is_notified_of_readiness_reloads_and_the_end() {
    let notify = NotifySocket::new();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = file.path().display().to_string();
    let (process, public, admin) = Process::serve(
        &["--sandbox", "--config", &config],
        &[("NOTIFY_SOCKET", &notify.path)],
    );
    let expected = format!("READY=1\nSTATUS=serving on http://{public}, admin on {admin}\n");
    assert_eq!(notify.next().await, expected);
    process.signal(Signal::HUP);
    let done = notify.reload().await;
    assert!(
        done.contains("by the configuration of the last reload"),
        "{done}"
    );
    std::fs::write(file.path(), "[server]\nwokers = 1\n").unwrap();
    let answer = Client::connect(admin)
        .await
        .request("POST", "/reload", &[])
        .await;
    assert_eq!(answer.status, 422);
    let refused = notify.reload().await;
    let why = format!("as before: the last reload was refused: {config}:2:1: unknown field");
    assert!(refused.contains(&why), "{refused}");
    process.signal(Signal::TERM);
    let ends = notify.next().await;
    assert!(ends.starts_with("STOPPING=1\nSTATUS=draining"), "{ends}");
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test]
async fn the_watchdog_is_notified_if_configured() {
    let notify = NotifySocket::new();
    let variables = [("NOTIFY_SOCKET", &*notify.path), ("WATCHDOG_USEC", "20000")];
    let (process, ..) = Process::serve(&["--sandbox"], &variables);
    assert!(notify.next().await.starts_with("READY=1"));
    for _ in 0..3 {
        assert_eq!(notify.next().await, "WATCHDOG=1\n");
    }
    process.signal(Signal::TERM);
    let mut word = notify.next().await;
    while word == "WATCHDOG=1\n" {
        word = notify.next().await;
    }
    assert!(word.starts_with("STOPPING=1"), "{word}");
    assert_eq!(process.wait().code(), Some(0));
}

/// A socket that listens, and where.
fn listening() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn handle(socket: &TcpListener) -> OwnedFd {
    socket.try_clone().unwrap().into()
}

const SERVE: [&str; 4] = ["serve", "--sandbox", "--admin", "127.0.0.1:0"];

#[tokio::test]
async fn sockets_that_are_handed_over_are_used_in_place_of_binding() {
    let (one, first) = listening();
    let (other, second) = listening();
    // Nobody could bind these.
    let arguments = [
        "serve",
        "--sandbox",
        "--listen",
        "192.0.2.1:80",
        "--admin",
        "192.0.2.1:81",
    ];
    for (names, public, admin) in [
        (None, first, second),
        (Some("ordgate.socket:ordgate.socket"), first, second),
        (Some("public:admin"), first, second),
        (Some("admin:public"), second, first),
    ] {
        let process = Process::start_handed(vec![handle(&one), handle(&other)], names, &arguments);
        assert_eq!(process.ready(), (public, admin), "{names:?}");
        let answer = Client::connect(public).await.get("/openapi.json").await;
        assert_eq!(answer.status, 200);
        let answer = Client::connect(admin).await.get("/healthz").await;
        assert_eq!(answer.status, 200);
        process.signal(Signal::TERM);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.out);
        for (key, configured, used) in [
            (
                "server.listen or an unnamed [[listener]]",
                "192.0.2.1:80",
                public,
            ),
            ("admin.listen", "192.0.2.1:81", admin),
        ] {
            let expected = format!("{key} is {configured}, but a socket on {used} was passed and");
            assert!(left.out.contains(&expected), "{}", left.out);
        }
    }
    // One that has a name leaves the other to be bound.
    let process = Process::start_handed(
        vec![handle(&one)],
        Some("admin"),
        &["serve", "--sandbox", "--listen", "127.0.0.1:0"],
    );
    let (public, admin) = process.ready();
    assert!(admin == first && public != first);
    process.signal(Signal::TERM);
    assert_eq!(process.wait().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_drops_no_connection() {
    let (socket, address) = listening();
    // No bound is in the way of who asks without a pause.
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = "[upstream]\nrequests_per_minute = 1000000\nrequests_per_second = 1000000\n\
                  [limit]\nenabled = false\n";
    std::fs::write(file.path(), config).unwrap();
    let path = file.path().display().to_string();
    let arguments = [&SERVE[..], &["--config", &path]].concat();
    let start = || {
        let process = Process::start_handed(vec![handle(&socket)], None, &arguments);
        assert_eq!(process.ready().0, address);
        process
    };
    let stop = |process: Process| {
        process.signal(Signal::TERM);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
    };
    let mut process = start();
    let answered = Arc::new(AtomicUsize::new(0));
    // Clients that ask on one new connection after another. No tokens of the sandbox's: what
    // is not found is asked for again soon, so some are hits, and some are not.
    let mut clients = JoinSet::new();
    for number in 0..3 {
        let answered = answered.clone();
        clients.spawn(async move {
            loop {
                let target = token(1000 * number + answered.load(SeqCst) % 20);
                let answer = Client::connect(address).await.get(&target).await;
                assert_eq!(answer.status, 404, "{target}");
                answered.fetch_add(1, SeqCst);
            }
        });
    }
    for overlaps in [false, true, false, true, false] {
        let before = answered.load(SeqCst);
        until("there are answers", || {
            answered.load(SeqCst) >= before + 60 || clients.len() < 3
        })
        .await;
        assert!(
            clients.try_join_next().is_none(),
            "a request was not answered"
        );
        // One goes before the next one comes, as systemd does it: who asks meanwhile waits
        // in the socket.
        let next = overlaps.then(&start);
        stop(process);
        process = next.unwrap_or_else(&start);
    }
    clients.shutdown().await;
    stop(process);
}
