//! The sandbox as those see it who hold it.

use http::{HeaderMap, Method};

use super::{Sandbox, Settings};

#[test]
fn every_example_has_content() {
    for blocks in [1, 2, 5, 60, 200] {
        let sandbox = Sandbox::new(Settings {
            blocks,
            ..Settings::default()
        });
        sandbox.reorg(2);
        let examples = sandbox.examples();
        for path in [&examples.tokens, &examples.transactions, &examples.blocks]
            .into_iter()
            .flatten()
        {
            let answer = sandbox.answer(&Method::GET, path, &HeaderMap::new());
            assert_eq!(answer.status, 200, "{path}");
            assert!(!answer.body.ends_with(b"\"results\":[]}"), "{path}");
        }
        for path in examples.first() {
            assert!(!path.is_empty());
        }
    }
}
