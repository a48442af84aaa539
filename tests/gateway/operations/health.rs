//! `ordgate health`, and the time in which a stopping process still accepts connections.

use std::net::SocketAddr;

use rustix::process::Signal;

use super::file;
use crate::support::process::Left;
use crate::support::upstream::refusing;
use crate::support::{Client, Process, ROUTES, Setup, TOKEN, Upstream, until};

/// Environment variables, by name.
type Variables<'a> = &'a [(&'a str, &'a str)];

fn health(arguments: &[&str], variables: Variables<'_>) -> Left {
    Process::run(&[&["health"], arguments].concat(), variables)
}

/// It says why not, and ends with 1.
fn says(left: &Left, parts: &[&str]) {
    assert_eq!(left.code(), Some(1), "{}", left.errors);
    assert_eq!(left.out, "");
    for part in parts {
        assert!(left.errors.contains(part), "{part}: {}", left.errors);
    }
}

#[tokio::test]
async fn health_finds_a_ready_process_by_flag_variable_and_configuration() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let admin = gateway.admin.to_string();
    let (_held, path) = file(&format!("[admin]\nlisten = \"{admin}\"\n{ROUTES}"));
    let (_other, elsewhere) = file(&format!("[admin]\nlisten = \"127.0.0.1:1\"\n{ROUTES}"));
    let rows: [(&[&str], Variables<'_>); 4] = [
        (&["--admin", &admin], &[]),
        (&[], &[("ORDGATE_ADMIN", &admin)]),
        (&["--config", &path], &[]),
        // What is said directly comes first, and then the file need not be right.
        (
            &["--admin", &admin, "--config", "/nowhere"],
            &[("ORDGATE_CONFIG", &elsewhere)],
        ),
    ];
    for (arguments, variables) in rows {
        let left = health(arguments, variables);
        assert_eq!(left.code(), Some(0), "{arguments:?}: {}", left.errors);
        assert_eq!((&*left.out, &*left.errors), ("ready\n", ""));
    }
}

#[tokio::test]
async fn health_says_why_a_process_is_not_ready() {
    // Nothing listens there.
    let (_held, closed) = refusing();
    says(
        &health(&["--admin", &closed.to_string()], &[]),
        &["no ordgate can be reached"],
    );
    // Something else listens there.
    let other = Upstream::start();
    let admin = other.address().to_string();
    says(
        &health(&["--admin", &admin], &[]),
        &["not an ordgate admin listener"],
    );
    // Its tips are not known: the upstream fails.
    let (_closed, address) = refusing();
    let gateway = Setup::at(&format!("http://{address}"))
        .chain()
        .config("admin.ready_needs_tips = true")
        .start();
    let admin = gateway.admin.to_string();
    let left = health(&["--admin", &admin], &[]);
    says(&left, &["is not ready: the tip", "has never been known"]);
    assert_eq!(left.errors.matches("not ready").count(), 1);
    // No configuration.
    says(
        &health(&["--config", "/nowhere/at/all.toml"], &[]),
        &["/nowhere/at/all.toml", "--admin"],
    );
}

/// What `/readyz` answers.
async fn readyz(admin: SocketAddr) -> u16 {
    Client::connect(admin).await.get("/readyz").await.status
}

#[tokio::test]
async fn a_second_signal_ends_the_drain_delay() {
    for (first, second) in [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::INT)] {
        let upstream = Upstream::start();
        let (_held, path) = file(&format!("[server]\ndrain_delay = \"1h\"\n{ROUTES}"));
        let (process, public, admin) = Process::before(&upstream, &["--config", &path], &[]);
        assert_eq!(readyz(admin).await, 200);
        process.signal(first);
        until("it drains", || process.errors().contains("draining")).await;
        while readyz(admin).await != 503 {
            tokio::task::yield_now().await;
        }
        says(
            &health(&["--admin", &admin.to_string()], &[]),
            &["is not ready: draining"],
        );
        // New connections are served.
        assert_eq!(Client::connect(public).await.get(TOKEN).await.status, 200);
        process.signal(second);
        let left = process.wait();
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        assert!(left.errors.contains("ends drain_delay"), "{}", left.errors);
        let begins = "connections are accepted until server.drain_delay is over";
        assert!(left.errors.contains(begins), "{}", left.errors);
    }
}
