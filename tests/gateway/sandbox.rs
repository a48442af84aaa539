//! The gateway in front of the sandbox: its answers equal the sandbox's byte for
//! byte.

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};

use crate::support::Setup;

#[tokio::test]
async fn answers_are_the_upstreams_own() {
    let sandbox = Sandbox::new(Settings::default());
    let setup = Setup::alone().sandbox(&sandbox).manual();
    let gateway = setup.config("chain.hash_zeros = 0").start();
    let examples = sandbox.examples();
    let mut paths = Vec::new();
    paths.extend(examples.tokens.iter().take(40).cloned());
    paths.extend(examples.transactions.iter().take(40).cloned());
    paths.extend(examples.blocks.iter().take(40).cloned());
    let height = sandbox.tip().height - 20;
    let block = format!("/runes/v1/blocks/{height}/activity");
    let by_hash = format!(
        "/runes/v1/blocks/{}/activity",
        sandbox.hash_at(height).unwrap()
    );
    for base in [&block, &by_hash, &examples.transactions[0]] {
        for limit in [1, 2, 20, 59, 60] {
            for offset in [0, 1, 19, 20, 1_000_000] {
                paths.push(format!("{base}?limit={limit}&offset={offset}"));
            }
        }
    }
    for operation in ["etching", "mint", "burn", "send", "receive"] {
        paths.push(format!("{block}?operation_type={operation}"));
        paths.push(format!(
            "{block}?operation_type={operation}&limit=3&offset=2"
        ));
    }
    // What there is not.
    paths.push("/ordinals/v1/brc-20/tokens/no-such-ticker".to_owned());
    paths.push(format!(
        "/runes/v1/transactions/{}/activity",
        "ab".repeat(32)
    ));
    paths.push(format!("/runes/v1/blocks/{:0>64}/activity", "ab"));
    // The reference takes no hash that begins otherwise, and says so itself.
    let unlikely = format!("/runes/v1/blocks/{}/activity", "ab".repeat(32));
    paths.push(unlikely.clone());
    paths.push("/runes/v1/blocks/4000000000/activity".to_owned());
    assert!(paths.len() > 100, "{}", paths.len());

    let mut client = gateway.client().await;
    let mut absent = Vec::new();
    for path in &paths {
        let own = sandbox.answer(&Method::GET, path, &HeaderMap::new());
        for _miss_then_hit in 0..2 {
            let answer = client.get(path).await;
            assert_eq!(answer.status, own.status.as_u16(), "{path}");
            assert!(answer.body == own.body, "{path}: {}", answer.text());
            assert_eq!(answer.must("content-type"), own.headers["content-type"]);
        }
        if own.status != 200 {
            absent.push((own.status.as_u16(), &**path));
        }
        let head = client.request("HEAD", path, &[]).await;
        assert_eq!(head.number("content-length"), own.body.len() as u64);
    }
    let token = "/ordinals/v1/brc-20/tokens/no-such-ticker";
    assert_eq!(absent, [(404, token), (400, &*unlikely)]);
    // Each question was asked once, however it was repeated; but the 400, which
    // has no time, thrice.
    let sent = gateway.of_upstreams("sent");
    assert!(sent <= paths.len() as u64 + 2, "{sent} of {}", paths.len());
}

#[tokio::test]
async fn a_sandbox_that_demands_a_key_gets_the_operators_only() {
    let settings = Settings {
        require_key: Some("the-key".to_owned()),
        ..Settings::default()
    };
    let sandbox = Sandbox::new(settings);
    let path = sandbox.examples().token().to_owned();
    let with = Setup::alone().sandbox(&sandbox).keys("the-key").start();
    assert_eq!(with.get(&path).await.status, 200);
    let without = Setup::alone().sandbox(&sandbox).start();
    let fields = [("x-api-key", "the-key")];
    let answer = without.request("GET", &path, &fields).await;
    assert_eq!(answer.status, 502, "a client's own key goes no further");
    answer.problem();
}
