//! The sandbox over loopback, spoken to in raw TCP, since only that shows what is really sent.

use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::sandbox::{Api, Fault, FaultKind, Sandbox, Settings};

struct Running {
    sandbox: Sandbox,
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(settings: Settings) -> Running {
    serve(&Sandbox::new(settings), Api::Both).await
}

/// The two servers of one sandbox: ordinals and runes.
async fn start_split(settings: Settings) -> [Running; 2] {
    let sandbox = Sandbox::new(settings);
    [
        serve(&sandbox, Api::Ordinals).await,
        serve(&sandbox, Api::Runes).await,
    ]
}

async fn serve(sandbox: &Sandbox, api: Api) -> Running {
    let sandbox = sandbox.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopped) = oneshot::channel();
    let serving = sandbox.clone().serve(api, listener, async move {
        let _ = stopped.await;
    });
    Running {
        sandbox,
        address,
        stop,
        task: tokio::spawn(serving),
    }
}

impl Running {
    /// Sends one request on a connection of its own and reads until it closes.
    async fn ask(&self, request_line: &str, fields: &str) -> String {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        let request =
            format!("{request_line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        // A connection that is cut may end in an error; what came before it counts.
        let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut bytes))
            .await
            .expect("an end");
        String::from_utf8(bytes).expect("UTF-8")
    }

    async fn get(&self, target: &str) -> String {
        self.ask(&format!("GET {target}"), "").await
    }
}

fn field_names(response: &str) -> Vec<&str> {
    let (head, _) = response.split_once("\r\n\r\n").expect("a head");
    head.lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name)
        .collect()
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a head").1
}

#[tokio::test]
async fn what_is_sent_has_the_recorded_fields() {
    let running = start(Settings::default()).await;
    let full = [
        "vary",
        "access-control-allow-origin",
        "cache-control",
        "etag",
        "content-type",
        "content-length",
    ];
    let tip = running.sandbox.tip().hash;
    let matching = format!("if-none-match: \"{tip}\"\r\n");
    let preflight = "origin: https://a.example\r\naccess-control-request-method: GET\r\n";
    // The reference says content-length: 0 on a 204, which RFC 9110 forbids; the server library leaves it out.
    let granted = [
        "vary",
        "access-control-allow-origin",
        "access-control-allow-methods",
    ];
    for (line, fields, status, expected) in [
        ("GET /runes/v1/", "", "200 OK", &full[..]),
        ("GET http://127.0.0.1/runes/v1/", "", "200 OK", &full),
        ("HEAD /runes/v1/", "", "200 OK", &full),
        ("GET /runes/v1/", &matching, "304 Not Modified", &full[..3]),
        (
            "HEAD /runes/v1/",
            &matching,
            "304 Not Modified",
            &["vary", full[1], full[2], "content-length"],
        ),
        (
            "POST /runes/v1/",
            "content-length: 0\r\n",
            "404 Not Found",
            &["vary", full[1], full[4], full[5]],
        ),
        ("OPTIONS /nope", preflight, "204 No Content", &granted),
    ] {
        let response = running.ask(line, fields).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{line}: {response}"
        );
        let names = field_names(&response);
        let sent: Vec<_> = names
            .iter()
            .copied()
            .filter(|name| !matches!(*name, "date" | "connection"))
            .collect();
        assert_eq!(sent, expected, "{line}");
        assert!(names.contains(&"date"));
    }
    let whole = running.get("/runes/v1/").await;
    assert!(body(&whole).ends_with("\"block_height\":840199}"));
    assert!(body(&running.ask("HEAD /runes/v1/", "").await).is_empty());
    let counts = running.sandbox.counts();
    assert_eq!(
        (
            counts.total,
            counts.status,
            counts.other,
            counts.redirection
        ),
        (9, 8, 1, 2)
    );
    assert_eq!(counts.busiest_minute, 9);
}

#[tokio::test]
async fn one_connection_serves_many_and_ends_with_the_server() {
    let running = start(Settings::default()).await;
    let mut stream = TcpStream::connect(running.address)
        .await
        .expect("a connection");
    for _ in 0..3 {
        stream
            .write_all(b"GET /nope HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .expect("sent");
        let mut seen = Vec::new();
        while !seen.ends_with(b"\"statusCode\":404}") {
            let mut buffer = [0; 1024];
            let read = stream.read(&mut buffer).await.expect("read");
            assert_ne!(read, 0, "the connection closed early");
            seen.extend_from_slice(&buffer[..read]);
        }
    }
    running.stop.send(()).expect("still running");
    timeout(Duration::from_secs(5), running.task)
        .await
        .expect("it ends")
        .expect("without a panic");
    let mut rest = Vec::new();
    let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "connections end with the server");
}

#[tokio::test]
async fn keys_and_limits_are_checked_but_not_on_control_routes() {
    let settings = Settings {
        require_key: Some("secret".to_owned()),
        requests_per_minute: NonZeroU32::new(2),
        ..Settings::default()
    };
    let running = start(settings).await;
    let refused = running.get("/runes/v1/").await;
    assert!(
        refused.starts_with("HTTP/1.1 401 ") && body(&refused) == "{\"error\":\"Unauthorized\"}"
    );
    let key = "x-api-key: secret\r\n";
    for remaining in ["1", "0"] {
        let response = running.ask("GET /runes/v1/", key).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(
            response.contains("ratelimit-limit: 2\r\n") && response.contains("ratelimit-reset: ")
        );
        assert!(response.contains(&format!("ratelimit-remaining: {remaining}\r\n")));
    }
    let late = running.ask("GET /runes/v1/", key).await;
    assert!(
        late.starts_with("HTTP/1.1 429 ")
            && late.contains("retry-after: ")
            && !late.contains("secret")
    );
    let counts = running.get("/sandbox/counts").await;
    let json: serde_json::Value = serde_json::from_str(body(&counts)).expect("JSON");
    assert_eq!(
        (&json["total"], &json["answers"]["4xx"]),
        (&4.into(), &2.into())
    );
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let running = start(Settings::default()).await;
    let target = "/runes/v1/blocks/840023/activity?limit=60";
    let right = running.get(target).await;
    let length = body(&right).len();
    let order = |kind| {
        running
            .sandbox
            .fault(Fault::once(kind).on("/runes/v1/blocks/"))
    };

    order(FaultKind::Truncate);
    let cut = running.get(target).await;
    assert!(cut.contains(&format!("content-length: {length}\r\n")));
    assert_eq!(body(&cut), &body(&right)[..body(&cut).len()]);
    assert!(!body(&cut).is_empty() && body(&cut).len() < length);

    order(FaultKind::Close);
    assert_eq!(running.get(target).await, "");

    order(FaultKind::Stall(Duration::from_millis(60)));
    let begun = Instant::now();
    assert_eq!(body(&running.get(target).await), body(&right));
    assert!(begun.elapsed() >= Duration::from_millis(60));

    order(FaultKind::Drip(Duration::from_millis(2)));
    let begun = Instant::now();
    assert_eq!(body(&running.get(target).await), body(&right));
    assert!(begun.elapsed() >= Duration::from_millis(30));

    order(FaultKind::Html);
    assert!(
        running
            .get(target)
            .await
            .contains("content-type: text/html; charset=utf-8\r\n")
    );

    order(FaultKind::Garbage);
    assert!(serde_json::from_str::<serde_json::Value>(body(&running.get(target).await)).is_err());

    order(FaultKind::Redirect);
    let moved = running.get(target).await;
    assert!(
        moved.starts_with("HTTP/1.1 302 ")
            && moved.contains(&format!("location: {target}&followed=1\r\n"))
    );

    order(FaultKind::Oversize {
        bytes: 3 << 20,
        declared: true,
    });
    let large = running.get(target).await;
    assert_eq!(body(&large).len(), 3 << 20);
    assert!(large.contains("content-length: 3145728\r\n") && body(&large).ends_with("]}"));

    order(FaultKind::Oversize {
        bytes: 1 << 20,
        declared: false,
    });
    let large = running.get(target).await;
    assert!(large.contains("transfer-encoding: chunked\r\n") && body(&large).len() > 1 << 20);

    for (status, wait) in [
        (500, None),
        (503, Some(7)),
        (429, Some(3)),
        (401, None),
        (403, None),
        (410, None),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        order(FaultKind::Status {
            status,
            retry_after: wait,
        });
        let response = running.get(target).await;
        assert!(
            response.starts_with(&format!("HTTP/1.1 {} ", status.as_u16())),
            "{response}"
        );
        assert_eq!(response.contains("retry-after: "), wait.is_some());
    }
    assert_eq!(
        running.get("/runes/v1/").await.split(' ').nth(1),
        Some("200"),
        "another path is not struck"
    );
    assert_eq!(body(&running.get(target).await), body(&right));
    assert_eq!(running.sandbox.counts().unanswered, 1);
}

#[tokio::test]
async fn faults_are_ordered_and_cleared_over_http() {
    let running = start(Settings::default()).await;
    let ordered = running
        .ask(
            "POST /sandbox/fault?kind=503&times=9&path=%2Frunes&retry-after=2",
            "",
        )
        .await;
    assert!(ordered.starts_with("HTTP/1.1 200 "), "{ordered}");
    assert!(
        running
            .get("/runes/v1/")
            .await
            .contains("retry-after: 2\r\n")
    );
    assert!(
        running
            .get("/ordinals/v1/")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    running.ask("DELETE /sandbox/fault", "").await;
    assert!(running.get("/runes/v1/").await.starts_with("HTTP/1.1 200 "));
    assert!(
        running
            .ask("POST /sandbox/fault?kind=none", "")
            .await
            .starts_with("HTTP/1.1 400 ")
    );
}

#[tokio::test]
async fn time_costs_and_errors_follow_the_settings() {
    let settings = Settings {
        latency: Duration::from_millis(20),
        item_cost: Duration::from_micros(20),
        error_rate: 1.0,
        block_every: Some(Duration::from_millis(20)),
        reorg_every: NonZeroU32::new(2),
        ..Settings::default()
    };
    let running = start(settings).await;
    let begun = Instant::now();
    let response = running.get("/runes/v1/").await;
    assert!(response.starts_with("HTTP/1.1 500 ") && response.contains("\"code\":\"57014\""));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert!(
        running
            .get("/runes/v1/blocks/x/activity")
            .await
            .starts_with("HTTP/1.1 400 "),
        "validation comes first"
    );
    while running.sandbox.tip().height < 840_203 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "blocks must arrive"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_page_costs_its_whole_block() {
    let running = start(Settings {
        item_cost: Duration::from_micros(20),
        ..Settings::default()
    })
    .await;
    let begun = Instant::now();
    running
        .get("/runes/v1/blocks/840023/activity?limit=1")
        .await;
    assert!(
        begun.elapsed() >= Duration::from_millis(60),
        "3,000 items at 20 microseconds"
    );
}

/// The head without its date, and the body.
fn undated(response: &str) -> String {
    let lines = response.split_inclusive("\r\n");
    lines.filter(|line| !line.starts_with("date: ")).collect()
}

#[tokio::test]
async fn each_of_two_servers_knows_its_own_api_alone() {
    let both = start(Settings::default()).await;
    let [ordinals, runes] = start_split(Settings::default()).await;
    let examples = both.sandbox.examples();
    let own = [
        (&ordinals, &runes, "/ordinals/v1/".to_owned()),
        (&ordinals, &runes, "/ordinals".to_owned()),
        (&ordinals, &runes, examples.token().to_owned()),
        (&ordinals, &runes, examples.token().replacen("/v1", "", 1)),
        (&runes, &ordinals, "/runes/v1/".to_owned()),
        (&runes, &ordinals, "/runes/".to_owned()),
        (&runes, &ordinals, examples.block().to_owned()),
        (
            &runes,
            &ordinals,
            examples.transaction().replacen("/v1", "", 1),
        ),
    ];
    for (server, other, path) in &own {
        let right = server.get(path).await;
        assert!(right.starts_with("HTTP/1.1 200 "), "{path}: {right}");
        assert_eq!(undated(&right), undated(&both.get(path).await), "{path}");
        // Byte for byte like any other path that no route has.
        let nowhere = format!("/nowhere{path}");
        let unknown = both.get(&nowhere).await.replace(&nowhere, path);
        let length = body(&unknown).len();
        let unknown = unknown.replace(
            &format!("content-length: {}\r\n", length + "/nowhere".len()),
            &format!("content-length: {length}\r\n"),
        );
        let wrong = other.get(path).await;
        assert_eq!(undated(&wrong), undated(&unknown), "{path}");
        let text = format!(
            "{{\"message\":\"Route GET:{path} not found\",\"error\":\"Not Found\",\"statusCode\":404}}"
        );
        assert_eq!(body(&wrong), text);
        // Not even with the tag of the tip that it does not tell.
        let tip = format!("if-none-match: \"{}\"\r\n", both.sandbox.tip().hash);
        let wrong = other.ask(&format!("GET {path}"), &tip).await;
        assert!(wrong.starts_with("HTTP/1.1 404 "), "{path}: {wrong}");
    }
    // What is wrong with a path is so at both.
    for server in [&ordinals, &runes] {
        assert!(server.get("/%zz").await.starts_with("HTTP/1.1 400 "));
        assert!(server.get("/nope").await.starts_with("HTTP/1.1 404 "));
    }
    let counts = [Api::Ordinals, Api::Runes, Api::Both].map(|api| {
        let counts = runes.sandbox.counts_at(api);
        (counts.total, counts.other, counts.status, counts.success)
    });
    assert_eq!(counts, [(14, 10, 2, 4), (14, 10, 2, 4), (28, 20, 4, 8)]);
    assert_eq!(runes.sandbox.counts(), runes.sandbox.counts_at(Api::Both));
}

#[tokio::test]
async fn two_servers_share_the_chain_and_nothing_else() {
    let [ordinals, runes] = start_split(Settings {
        requests_per_minute: NonZeroU32::new(2),
        ..Settings::default()
    })
    .await;
    let before = runes.sandbox.tip().height;
    ordinals.ask("POST /sandbox/advance", "").await;
    let height = format!("\"block_height\":{}}}", before + 1);
    for (server, path) in [(&ordinals, "/ordinals/v1/"), (&runes, "/runes/v1/")] {
        assert!(body(&server.get(path).await).ends_with(&height), "{path}");
    }
    // A fault strikes where it was ordered, and is cleared there.
    runes.ask("POST /sandbox/fault?kind=503&times=9", "").await;
    let statuses = async || {
        let [first, second] = [
            ordinals.get("/ordinals/v1/").await,
            runes.get("/runes/v1/").await,
        ];
        [first, second].map(|response| response[9..12].to_owned())
    };
    assert_eq!(statuses().await, ["200", "503"]);
    ordinals.ask("DELETE /sandbox/fault", "").await;
    // The first has spent its minute, of which the 503 took nothing.
    assert_eq!(statuses().await, ["429", "503"]);
    runes.ask("DELETE /sandbox/fault", "").await;
    assert_eq!(statuses().await, ["429", "200"]);
    for (server, total) in [(&ordinals, 4), (&runes, 4)] {
        let counts = server.get("/sandbox/counts").await;
        let json: serde_json::Value = serde_json::from_str(body(&counts)).expect("JSON");
        assert_eq!(json["total"], total);
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_arrive_once_however_many_servers_there_are() {
    const EVERY: Duration = Duration::from_secs(10);
    let [ordinals, runes] = start_split(Settings {
        block_every: Some(EVERY),
        ..Settings::default()
    })
    .await;
    let before = runes.sandbox.tip().height;
    tokio::time::sleep(EVERY * 4 + EVERY / 2).await;
    assert_eq!(runes.sandbox.tip().height, before + 4);
    ordinals.stop.send(()).expect("still running");
    ordinals.task.await.expect("without a panic");
    tokio::time::sleep(EVERY * 2 + EVERY / 2).await;
    assert_eq!(
        runes.sandbox.tip().height,
        before + 6,
        "the other one goes on"
    );
}
