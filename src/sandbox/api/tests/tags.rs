//! Entity tags and reorgs.

use serde_json::Value;

use super::{conditional, get, json, model, some_tx};

#[test]
fn the_tip_decides_the_entity_tag() {
    let mut model = model();
    let hash = model.chain.hash(model.chain.tip().expect("a tip"));
    let unknown = format!("/runes/v1/transactions/{}/activity", "f".repeat(64));
    for (target, tag, status) in [
        (
            "/runes/v1/blocks/840001/activity?limit=1",
            format!("\"{hash}\""),
            304,
        ),
        (unknown.as_str(), format!("\"{hash}\""), 304),
        ("/runes/v1/", format!("W/\"{hash}\""), 304),
        ("/runes/v1/", hash.clone(), 304),
        ("/runes/v1/", format!("\"abc\", W/\"{hash}\""), 304),
        ("/runes/v1/", "*".to_owned(), 200),
        ("/runes/v1/", "\"1\"".to_owned(), 200),
        (
            "/runes/v1/transactions/xyz/activity",
            format!("\"{hash}\""),
            400,
        ),
        ("/ordinals/v1/", format!("\"{hash}\""), 200),
        (
            "/runes/v1/blocks/1/activity?offset=Infinity",
            format!("\"{hash}\""),
            304,
        ),
    ] {
        assert_eq!(
            conditional(&model, target, &tag).status,
            status,
            "{target} {tag}"
        );
    }
    // After a block with an earlier timestamp than its parent, body and height change and the tag does not.
    while model
        .chain
        .tip()
        .expect("a tip")
        .height
        .wrapping_sub(840_000)
        % 11
        != 4
    {
        model.chain.push();
    }
    let token = "/ordinals/v1/brc-20/tokens/pepe";
    let (before, status) = (get(&model, token), get(&model, "/ordinals/v1/"));
    let tag = before.headers["etag"].to_str().expect("a tag").to_owned();
    model.chain.push();
    let after = get(&model, token);
    assert_eq!(after.headers["etag"], tag);
    assert_ne!(after.body, before.body);
    assert_ne!(get(&model, "/ordinals/v1/").body, status.body);
    assert_eq!(
        conditional(&model, token, &tag).status,
        304,
        "a false 304, as recorded"
    );
    assert_eq!(
        conditional(&model, "/ordinals/v1/brc-20/tokens/nope", &tag).status,
        304
    );
    // The token indexer commits first: only the body changes.
    model.chain.push();
    let before = get(&model, token);
    model.tokens_ahead = true;
    assert_ne!(get(&model, token).body, before.body);
    assert_eq!(get(&model, token).headers, before.headers);
}

#[test]
fn a_reorg_moves_transactions_and_empties_the_orphan() {
    let mut model = model();
    let tip = *model.chain.tip().expect("a tip");
    let orphan = model.chain.hash(&tip);
    let parent = model
        .chain
        .hash(model.chain.at(tip.height - 1).expect("a parent"));
    let tx = some_tx(&model, tip.height);
    let by_tx = format!("/runes/v1/transactions/{tx}/activity");
    let by_height = format!("/runes/v1/blocks/{}/activity", tip.height);
    let before = json(&model, &by_tx);
    model.chain.rollback(1);
    for target in [&by_tx, &by_height] {
        assert_eq!(json(&model, target)["total"], 0);
        assert_eq!(get(&model, target).headers["etag"], format!("\"{parent}\""));
    }
    model.chain.apply();
    model.chain.push();
    assert_eq!(
        json(&model, &format!("/runes/v1/blocks/{orphan}/activity"))["total"],
        0
    );
    let after = json(&model, &by_tx);
    assert_eq!(after["total"], before["total"]);
    for member in ["block_hash", "tx_index", "timestamp"] {
        let at = |body: &Value| body["results"][0]["location"][member].clone();
        assert_ne!(at(&after), at(&before), "{member}");
    }
}
