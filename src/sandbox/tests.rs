//! The sandbox through its public methods.

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
            let answer = sandbox.answer(path);
            assert_eq!(answer.status, 200, "{path}");
            assert!(!answer.body.ends_with(b"\"results\":[]}"), "{path}");
        }
        assert!(!examples.first().contains(&""));
    }
}

#[test]
fn the_token_indexer_may_be_one_block_ahead() {
    let sandbox = Sandbox::new(Settings::default());
    let token = || sandbox.answer("/ordinals/v1/brc-20/tokens/pepe");
    let before = token();
    sandbox.tokens_ahead();
    let ahead = token();
    assert_eq!(ahead.headers, before.headers);
    assert_ne!(ahead.body, before.body);
    sandbox.advance(1);
    assert_eq!(token().body, ahead.body);
}
