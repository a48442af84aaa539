//! `ordgate health`, and the time in which a stopping process still accepts connections.

use super::file;
use crate::support::process::Left;
use crate::support::{Process, ROUTES, Setup, Upstream};

/// Environment variables, by name.
type Variables<'a> = &'a [(&'a str, &'a str)];

fn health(arguments: &[&str], variables: Variables<'_>) -> Left {
    Process::run(&[&["health"], arguments].concat(), variables)
}

#[tokio::test]
async fn health_finds_a_ready_process_by_flag_variable_and_configuration() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).start();
    let admin = gateway.admin.to_string();
    let (_held, path) = file(&format!(
        "builtin_routes = false\n[admin]\nlisten = \"{admin}\"\n{ROUTES}"
    ));
    let (_other, elsewhere) = file(&format!(
        "builtin_routes = false\n[admin]\nlisten = \"127.0.0.1:1\"\n{ROUTES}"
    ));
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
    let nobody = health(&["--admin", "127.0.0.1:1"], &[]);
    let expected = "not ready: nothing listens on 127.0.0.1:1\n";
    assert_eq!((&*nobody.out, &*nobody.errors), (expected, ""));
    assert_eq!(nobody.code(), Some(1));
}
