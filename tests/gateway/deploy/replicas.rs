//! The example of one of several replicas.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{checked, example};
use crate::support::{Client, Process, Upstream};

const REPLICAS: &str = include_str!("../../../deploy/examples/replicas.toml");

#[tokio::test]
async fn the_example_of_a_replica_has_a_part_of_the_budget() {
    let upstream = Upstream::start();
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("api-keys");
    std::fs::write(&keys, "the-key\n").unwrap();
    std::fs::set_permissions(&keys, PermissionsExt::from_mode(0o600)).unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let file = example(
        REPLICAS,
        &[
            ("https://api.example", upstream.url()),
            ("/etc/ordgate/api-keys", path("api-keys")),
            ("/var/lib/ordgate", path("state")),
        ],
    );
    let file = file.path().display().to_string();
    let printed = checked(&file);
    assert!(printed.contains("replicas = 4"), "{printed}");
    let variables = [
        ("ORDGATE_SHARED_REPLICAS", "5"),
        ("ORDGATE_SHARED_NAME", "the third"),
    ];
    let (_process, public, admin) = Process::serve(&["--config", &file], &variables);
    let status = Client::connect(admin).await.get("/status").await.json();
    let shared = &status["shared"];
    assert_eq!(shared["name"], "the third");
    assert_eq!(shared["replicas"], 5);
    let key = &shared["keys"][0];
    assert_eq!(key["floor"], json!({ "minute": 100, "second": 4 }), "{key}");
    assert_eq!(key["granted"], json!({ "minute": 0, "second": 0 }), "{key}");
    // Nobody knows what was spent in its place.
    let answer = Client::connect(public)
        .await
        .get(crate::support::TOKEN)
        .await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let why = "none has used this state directory in the last minute";
    assert!(answer.text().contains(why), "{}", answer.text());
    assert!(shared["unknown_because"].as_str().unwrap().contains(why));
    assert!(shared["waiting_seconds"].as_f64().unwrap() > 1.0);
    assert_eq!(upstream.count(), 0);
}
