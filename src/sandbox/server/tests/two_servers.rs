//! One sandbox with a server for each API.

use super::{Running, body, serve, start};
use crate::sandbox::{Api, Sandbox, Settings};

/// The two servers of one sandbox: ordinals and runes.
async fn start_split(settings: Settings) -> [Running; 2] {
    let sandbox = Sandbox::new(settings);
    [
        serve(&sandbox, Api::Ordinals).await,
        serve(&sandbox, Api::Runes).await,
    ]
}

/// The head without its date, and the body.
fn undated(response: &str) -> String {
    let lines = response.split_inclusive("\r\n");
    lines.filter(|line| !line.starts_with("date: ")).collect()
}

#[tokio::test]
async fn each_server_has_only_its_own_api() {
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
        // Byte for byte like any other unknown path.
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
        // The same with the tip's tag in if-none-match.
        let tip = format!("if-none-match: \"{}\"\r\n", both.sandbox.tip().hash);
        let wrong = other.ask(&format!("GET {path}"), &tip).await;
        assert!(wrong.starts_with("HTTP/1.1 404 "), "{path}: {wrong}");
    }
    // Both servers refuse an invalid path.
    for server in [&ordinals, &runes] {
        assert_eq!(server.status("/%zz").await, "400");
        assert_eq!(server.status("/nope").await, "404");
    }
    let counts = [Api::Ordinals, Api::Runes, Api::Both].map(|api| {
        let counts = runes.sandbox.counts_at(api);
        (counts.total, counts.other, counts.status, counts.success)
    });
    assert_eq!(counts, [(14, 10, 2, 4), (14, 10, 2, 4), (28, 20, 4, 8)]);
    assert_eq!(runes.sandbox.counts(), runes.sandbox.counts_at(Api::Both));
}
