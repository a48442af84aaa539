//! The sandbox as a target of load tests: its flags, control routes and ready lines.

use std::net::SocketAddr;

use super::file;
use crate::support::{Client, Process, TOKEN, within};

/// The address of the sandbox in the second ready line of `serve --sandbox`.
fn sandbox_address(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("on http://").unwrap();
    rest.split(';').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_sandbox_in_the_process_takes_the_sandboxs_flags_and_names_its_address() {
    let flags = [
        "--sandbox",
        "--sandbox-listen",
        "127.0.0.1:0",
        "--seed",
        "7",
        "--latency",
        "1ms..2ms",
        "--bandwidth",
        "64MiB",
        "--require-key",
        "s3cret-key",
    ];
    let key = [("ORDGATE_API_KEYS", "s3cret-key")];
    let (process, public, _) = Process::serve(&flags, &key);
    let line = process.line();
    for route in ["/sandbox/examples", "/journal", "/fault", "/reorg"] {
        assert!(line.contains(route), "{line}");
    }
    assert_eq!(Client::connect(public).await.get(TOKEN).await.status, 200);
    let mut control = Client::connect(sandbox_address(&line)).await;
    let journal = control.get("/sandbox/journal?last=1000").await;
    assert_eq!(
        journal.must("content-type"),
        "application/json; charset=utf-8"
    );
    assert!(!journal.text().contains("s3cret"), "{}", journal.text());
    let journal = journal.json();
    let requests = journal["requests"].as_array().unwrap();
    let token = requests.iter().find(|one| one["target"] == TOKEN).unwrap();
    assert_eq!(token["key"], "sent");
    assert_eq!(token["status"], 200);
    let latency = token["latency_ms"].as_f64().unwrap();
    assert!((1.0..=2.0).contains(&latency), "{latency}");
    // A fault with a chance, seen and removed.
    let path = "/sandbox/fault?kind=503&chance=1&path=/runes/v1/blocks";
    let made = control.request("POST", path, &[]).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let listed = control.get("/sandbox/fault").await.json();
    assert_eq!(listed["faults"][0], made.json());
    let removed = format!("/sandbox/fault?id={}", made.json()["id"]);
    assert_eq!(
        control.request("DELETE", &removed, &[]).await.json()["faults"],
        0
    );
    let unknown = control.request("POST", "/sandbox/reorg?dept=2", &[]).await;
    assert_eq!(unknown.status, 400);
    assert!(
        unknown.text().contains("allowed: depth"),
        "{}",
        unknown.text()
    );
}

#[tokio::test]
async fn the_same_seed_gives_the_same_latencies_and_errors() {
    let mut journals = Vec::new();
    for seed in ["7", "7", "8"] {
        let process = Process::start(
            &[
                "sandbox",
                "--listen",
                "127.0.0.1:0",
                "--seed",
                seed,
                "--latency",
                "p50=1ms,p99=4ms",
                "--error-rate",
                "0.3",
            ],
            &[],
        );
        let mut client = Client::connect(sandbox_address(&process.line())).await;
        let fault = "/sandbox/fault?kind=429&chance=0.3";
        client.request("POST", fault, &[]).await;
        for _ in 0..40 {
            client.get(TOKEN).await;
        }
        let journal = client.get("/sandbox/journal").await.json();
        let requests = journal["requests"].as_array().unwrap().iter();
        let told = requests.map(|one| (one["status"].clone(), one["latency_ms"].clone()));
        journals.push(told.collect::<Vec<_>>());
    }
    assert_eq!(journals[0].len(), 40);
    assert_eq!(journals[0], journals[1]);
    assert_ne!(journals[0], journals[2]);
    for status in [200, 429, 500] {
        let has = journals[0].iter().any(|(one, _)| *one == status);
        assert!(has, "{status} in {:?}", journals[0]);
    }
}

#[test]
fn flags_of_the_sandbox_are_checked() {
    // Not only the name: the error that there is no upstream has it too.
    let needed = "arguments were not provided:\n  --sandbox\n";
    for (flags, expected) in [
        (&["serve", "--seed", "1"][..], needed),
        (&["check", "--sandbox-listen", "127.0.0.1:0"], needed),
        (&["sandbox", "--latency", "fast"], "50ms..400ms"),
        (&["sandbox", "--latency", "4ms..1ms"], "50ms..400ms"),
        (&["sandbox", "--latency", "p99=1ms,p50=2ms"], "ascending"),
        (&["sandbox", "--latency", "p50"], "50ms..400ms"),
        (&["sandbox", "--bandwidth", "0B"], "above 0"),
        (&["sandbox", "--error-rate", "2"], "from 0 to 1"),
    ] {
        let left = Process::run(flags, &[]);
        assert_eq!(left.code(), Some(2), "{flags:?}: {}", left.errors);
        assert!(left.errors.contains(expected), "{flags:?}: {}", left.errors);
    }
}

#[tokio::test]
async fn a_load_test_of_the_demo_gets_answers() {
    // More than the shipped limit lets a client send at once.
    const REQUESTS: usize = 3_500;
    let (process, public, _) = Process::serve(&["--sandbox"], &[]);
    assert!(process.line().contains("Clients are not limited."));
    let mut client = Client::connect(public).await;
    let all = async {
        for _ in 0..REQUESTS {
            assert_eq!(client.get(TOKEN).await.status, 200);
        }
    };
    within("the load", all).await;
}

#[test]
fn limits_are_lifted_for_loopback_only_and_unless_they_are_set() {
    let (_held, limited) = file("[limit]\nburst = 2\n");
    let (_held, other) = file("[cache]\nmax_bytes = \"64MiB\"\n");
    let (_held, proxies) = file("[clients]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let header = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = true\n";
    let header = format!("[clients]\ntrusted_proxies = [\"::1\"]\n{header}");
    let (_held, header) = file(&header);
    let token = [("ORDGATE_ADMIN_TOKEN", "a-token")];
    for (flags, is_lifted) in [
        (&["--sandbox"][..], true),
        (&["--sandbox", "--config", &other], true),
        (&["--sandbox", "--listen", "[::1]:8080"], true),
        (&["--sandbox", "--config", &limited], false),
        (&["--sandbox", "--listen", "0.0.0.0:8080"], false),
        (&["--sandbox", "--listen", "unix:ordgate.sock"], false),
        (
            &[
                "--sandbox",
                "--listen",
                "127.0.0.1:0",
                "--listen",
                "unix:ordgate.sock",
            ],
            false,
        ),
        (&["--sandbox", "--config", &proxies], false),
        (&["--sandbox", "--config", &header], false),
        (&["--upstream", "http://127.0.0.1:1"], false),
    ] {
        let left = Process::run(&[&["check"], flags].concat(), &token);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        let lifted = left.out.contains("requests_per_minute = 60000000");
        assert_eq!(lifted, is_lifted, "{flags:?}");
    }
}

/// A socket that the supervisor has passed decides, not the address that it takes the place of.
#[test]
fn limits_are_lifted_by_the_sockets_that_were_passed() {
    for (address, is_lifted) in [("127.0.0.1:0", true), ("0.0.0.0:0", false)] {
        let socket = std::net::TcpListener::bind(address).unwrap();
        let process = Process::start_handed(
            vec![socket.into()],
            None,
            &["serve", "--sandbox", "--admin", "127.0.0.1:0"],
        );
        process.ready();
        let line = process.line();
        assert!(line.contains("A sandbox is its upstream"), "{line}");
        let said = line.contains("Clients are not limited.");
        assert_eq!(said, is_lifted, "{address}: {line}");
    }
}
