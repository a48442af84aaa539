//! The client with real servers: what it connects to, and what it says when it cannot.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::shared::allowance::{
    Demand, Machine, ProcessId, Reply, Report, RequestCounts, Settings,
};
use ordgate::shared::engine::server::{EngineUrl, RedisEngine};
use ordgate::shared::engine::{Allowances, SharedError};

use super::servers::{Answer, Cluster, Server, is_installed, wait_for};

const BUDGET: &str = "{ordgate:b:00112233445566778899aabbccddeeff}";

/// Long enough for a busy machine; a stopped server costs each call this much.
const TIMEOUT: Duration = Duration::from_millis(500);

/// An engine with a process that reports to it.
struct Reporter {
    engine: Arc<RedisEngine>,
    clock: Clock,
    machine: Machine,
}

impl Reporter {
    fn new(url: &str) -> Self {
        let clock = Clock::manual();
        let settings = Settings {
            process: ProcessId(7),
            name: "one".into(),
            floor: RequestCounts::new(30, 5),
            total: RequestCounts::new(120, 20),
            reserve: RequestCounts::new(60, 10),
            silence: Duration::from_secs(140),
        };
        Self {
            engine: RedisEngine::new(EngineUrl::parse(url).unwrap(), TIMEOUT, clock.clone()),
            clock,
            machine: Machine::new(settings),
        }
    }

    fn next(&mut self) -> Report {
        let now = self.clock.since_boot();
        self.machine.report(now, &Demand::default(), 1)
    }

    async fn report(&mut self) -> Result<Reply, SharedError> {
        let report = self.next();
        self.engine.report(BUDGET, &report).await
    }

    /// Reports until one is counted; after each failure, more than the longest pause of
    /// the breaker passes.
    async fn counted_again(&mut self) {
        for _ in 0..60 {
            match self.report().await {
                Ok(Reply::Counted(_)) => return,
                Ok(Reply::Stale) => panic!("each report has a higher number"),
                Err(_) => self.clock.advance(Duration::from_secs(5)),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{:?}", self.engine.snapshot());
    }
}

fn refused(result: Result<Reply, SharedError>) -> String {
    match result {
        Err(SharedError::Refused(text)) => text.into(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_report_is_counted_and_a_forgotten_script_is_sent_again() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut reporter = Reporter::new(&server.url());
    assert!(!reporter.engine.snapshot().is_up, "nothing was asked yet");
    for _ in 0..3 {
        let Ok(Reply::Counted(counted)) = reporter.report().await else {
            panic!("{:?}", reporter.engine.snapshot());
        };
        assert_eq!((counted.processes, counted.majority), (1, true));
        server.call(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(
        server.call(&["KEYS", "*"]).list(),
        [Answer::Text(BUDGET.into())]
    );
    let snapshot = reporter.engine.snapshot();
    assert!(snapshot.is_up && snapshot.round_trip.is_some() && snapshot.last_error.is_none());
}

#[tokio::test]
async fn user_password_and_database_are_used_and_a_wrong_password_is_not_repeated() {
    if !is_installed() {
        return;
    }
    let server = Server::start_with(&["--requirepass", "first secret"]);
    let mut admin = server.connection();
    admin.call(&["AUTH", "first secret"]);
    // All that the documentation asks for, and no more.
    let rights = "-@all +@read +@write +@scripting -@dangerous +info +select +time";
    let mut user = vec![
        "ACL",
        "SETUSER",
        "ordgate",
        "on",
        ">second:secret",
        "~{ordgate*",
    ];
    user.extend(rights.split(' '));
    assert_eq!(admin.call(&user), Answer::Text("OK".into()));
    let at = |user: &str| format!("redis://{user}@127.0.0.1:{}/3", server.port);
    // The first one begins a generation, with all that the script does.
    for user in ["ordgate:second%3Asecret", ":first%20secret"] {
        let counted = Reporter::new(&at(user)).report().await;
        assert!(counted.is_ok(), "{user}: {counted:?}");
    }
    admin.call(&["SELECT", "3"]);
    assert_eq!(admin.call(&["DBSIZE"]), Answer::Number(1));
    for user in [":wrong-secret", "ordgate:wrong-secret", ""] {
        let text = refused(Reporter::new(&at(user)).report().await);
        assert!(!text.contains("secret"), "{text}");
    }
}

/// The server would have to refuse each of them, and says so in its log.
#[tokio::test]
async fn a_server_that_refuses_every_connection_is_asked_less_often() {
    if !is_installed() {
        return;
    }
    let server = Server::start_with(&["--requirepass", "first secret"]);
    let mut reporter = Reporter::new(&format!("redis://:wrong@127.0.0.1:{}/3", server.port));
    for _ in 0..10 {
        refused_or_absent(reporter.report().await);
        reporter.clock.advance(Duration::from_millis(200));
    }
    assert!(reporter.engine.snapshot().is_absent);
    // From now on one attempt a second, at the most.
    let before = reporter.engine.snapshot().errors[3];
    for _ in 0..100 {
        refused_or_absent(reporter.report().await);
        reporter.clock.advance(Duration::from_millis(100));
    }
    let snapshot = reporter.engine.snapshot();
    let attempts = snapshot.errors[3] - before;
    assert!((5..=15).contains(&attempts), "{attempts} in ten seconds");
    assert!(snapshot.failed_ago.unwrap() <= Duration::from_secs(2));
}

fn refused_or_absent(result: Result<Reply, SharedError>) {
    assert!(
        matches!(result, Err(SharedError::Refused(_) | SharedError::Absent)),
        "{result:?}"
    );
}

fn line(lines: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    lines.read_line(&mut line).ok().filter(|read| *read > 0)?;
    Some(line.trim_end().to_owned())
}

/// A server that knows no command, and says so as Redis does: with the first arguments.
fn quoting_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut lines = BufReader::new(stream.unwrap());
            let mut answers = Vec::new();
            while let Some(head) = line(&mut lines) {
                let words = 0..head[1..].parse().unwrap();
                let words = words.filter_map(|_: usize| line(&mut lines).and(line(&mut lines)));
                let words: Vec<_> = words.collect();
                let (command, arguments) = words.split_first().unwrap();
                let quoted = arguments.join("' '");
                answers.push(format!(
                    "-ERR unknown command '{command}', with args beginning with: '{quoted}'\r\n"
                ));
                if lines.buffer().is_empty() {
                    let answer = answers.drain(..).collect::<String>();
                    lines.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            }
        }
    });
    port
}

#[tokio::test]
async fn the_password_is_not_in_an_error_though_the_server_repeats_it() {
    let port = quoting_server();
    for (user, words) in [
        ("ordgate:s3cret@", "authentication failed"),
        (":s3cret@", "authentication failed"),
        ("", "unknown command"),
    ] {
        let mut reporter = Reporter::new(&format!("redis://{user}127.0.0.1:{port}"));
        let text = refused(reporter.report().await);
        assert!(text.contains(words), "{user} {text}");
        let snapshot = format!("{:?}", reporter.engine.snapshot());
        assert!(!snapshot.contains("s3cret"), "{snapshot}");
    }
}

#[tokio::test]
async fn a_socket_in_the_file_system_is_reached() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let path = format!("{}/engine.sock", server.directory());
    let other = Server::start_with(&["--unixsocket", &path]);
    let mut reporter = Reporter::new(&format!("unix://{path}"));
    reporter.counted_again().await;
    assert_eq!(other.call(&["DBSIZE"]), Answer::Number(1));
}

#[tokio::test]
async fn a_stopped_server_is_not_waited_for_any_more_until_it_answers() {
    if !is_installed() {
        return;
    }
    let server = Server::start();
    let mut reporter = Reporter::new(&server.url());
    assert!(matches!(reporter.report().await, Ok(Reply::Counted(_))));
    server.stop();
    for _ in 0..5 {
        assert_eq!(reporter.report().await, Err(SharedError::Late));
        reporter.clock.advance(Duration::from_millis(200));
    }
    assert_eq!(reporter.report().await, Err(SharedError::Late), "1 s of it");
    for _ in 0..3 {
        assert_eq!(reporter.report().await, Err(SharedError::Absent));
    }
    let snapshot = reporter.engine.snapshot();
    assert!(snapshot.is_absent && !snapshot.is_up);
    assert_eq!(snapshot.errors[..2], [6, 3]);
    assert_eq!(snapshot.last_error, Some(SharedError::Late));
    reporter.clock.advance(Duration::from_millis(250));
    assert_eq!(reporter.report().await, Err(SharedError::Late), "one trial");
    assert_eq!(reporter.report().await, Err(SharedError::Absent));
    server.proceed();
    reporter.counted_again().await;
    assert!(!reporter.engine.snapshot().is_absent);
}

#[tokio::test]
async fn a_server_that_is_gone_is_found_again() {
    if !is_installed() {
        return;
    }
    let mut server = Server::start();
    let mut reporter = Reporter::new(&server.url());
    assert!(matches!(reporter.report().await, Ok(Reply::Counted(_))));
    server.kill();
    for _ in 0..3 {
        let error = reporter.report().await;
        assert!(
            matches!(error, Err(SharedError::Connection(_))),
            "{error:?}"
        );
    }
    server.start_again();
    reporter.counted_again().await;
}

/// After a failover the same address may lead to another server.
#[tokio::test]
async fn a_copy_refuses_and_its_connection_is_not_kept() {
    if !is_installed() {
        return;
    }
    let (primary, copy) = (Server::start(), Server::start());
    let mut reporter = Reporter::new(&copy.url());
    assert!(matches!(reporter.report().await, Ok(Reply::Counted(_))));
    copy.follow(&primary);
    for _ in 0..2 {
        let text = refused(reporter.report().await);
        assert!(text.to_lowercase().contains("read"), "{text}");
    }
    let before: u64 = copy.info("total_connections_received").parse().unwrap();
    refused(reporter.report().await);
    let after: u64 = copy.info("total_connections_received").parse().unwrap();
    assert!(after >= before + 2, "one by the test, one by the client");
    copy.promote();
    reporter.counted_again().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_followed_through_a_failover_and_a_loss() {
    if !is_installed() {
        return;
    }
    let mut cluster = Cluster::start();
    let mut reporter = Reporter::new(&cluster.url());
    reporter.counted_again().await;
    let holder = |cluster: &Cluster| {
        let has = |server: &Server| {
            let role = server.info("role");
            role == "master" && server.call(&["DBSIZE"]) == Answer::Number(1)
        };
        let servers = &cluster.servers;
        (0..servers.len()).find(|at| has(&servers[*at]))
    };
    let first = holder(&cluster).expect("a primary has the rows");
    assert!(first < 3);
    let copy = &cluster.servers[first + 3];
    assert_eq!(
        copy.call(&["CLUSTER", "FAILOVER"]),
        Answer::Text("OK".into())
    );
    wait_for("the copy is promoted", || copy.info("role") == "master");
    reporter.counted_again().await;
    // The one that is left dies; the first one has become its copy.
    wait_for("the first one follows", || {
        cluster.servers[first].info("master_link_status") == "up"
    });
    cluster.servers[first + 3].kill();
    wait_for("the first is the primary again", || {
        cluster.servers[first].info("role") == "master"
    });
    reporter.counted_again().await;
}
