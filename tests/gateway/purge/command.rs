//! `ordgate purge`.

use std::io::Write;

use serde_json::Value;

use crate::support::{BLOCK, Client, Process, TOKEN, Upstream};

#[tokio::test]
async fn the_command_purges_and_prints_what() {
    let upstream = Upstream::start();
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    secret.write_all(b"a-token\n").unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let token_file = format!("admin.token_file = \"{}\"\n", secret.path().display());
    file.write_all(token_file.as_bytes()).unwrap();
    let config = file.path().display().to_string();
    let token = [("ORDGATE_ADMIN_TOKEN", "a-token")];
    let (_process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
    let admin = admin.to_string();
    let mut client = Client::connect(public).await;
    let hit = async |client: &mut Client| {
        let answer = client.get(TOKEN).await;
        answer.must("cache-status").starts_with("ordgate; hit")
    };
    for (arguments, variables) in [
        (&["--url", TOKEN][..], &token[..]),
        (&["--url", TOKEN, "--url", BLOCK], &token),
        (&["--tag", "ticker:ORDI", "--config", &config], &[]),
        (&["--route", "brc20-token", "--config", &config], &[]),
        // With an address and a token, the configuration need not be there.
        (&["--all", "--config", "/no/such/file"], &token),
    ] {
        client.get(TOKEN).await;
        assert!(hit(&mut client).await);
        let arguments = [&["purge", "--admin", &admin], arguments].concat();
        let left = Process::run(&arguments, variables);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        let report: Value = serde_json::from_str(&left.out).unwrap();
        assert!(report["purged"][0]["by"].is_string(), "{report}");
        assert!(!hit(&mut client).await, "{arguments:?}");
    }
    client.get(TOKEN).await;
    let wrong = [("ORDGATE_ADMIN_TOKEN", "wrong")];
    let no_file = ["--all", "--config", "/no/such/file"];
    let rows: [(&[&str], &[(&str, &str)], i32, &str); 4] = [
        (&["--all"], &wrong, 1, "ORDGATE_ADMIN_TOKEN"),
        (&["--tag", "what:1"], &token, 1, "block:HASH"),
        (&["--all", "--url", TOKEN], &token, 2, "--all"),
        (&no_file, &[], 2, "/no/such/file"),
    ];
    for (arguments, variables, code, words) in rows {
        let arguments = [&["purge", "--admin", &admin], arguments].concat();
        let left = Process::run(&arguments, variables);
        assert_eq!(left.code(), Some(code), "{arguments:?}: {}", left.errors);
        assert_eq!(left.out, "");
        assert!(
            left.errors.contains(words),
            "{arguments:?}: {}",
            left.errors
        );
        assert!(!left.errors.contains("wrong\""), "{}", left.errors);
    }
    assert!(hit(&mut client).await);
}
