//! The schemas of bodies, with an example of each value.

use serde_json::{Value, json};

use super::reference;
use crate::reason::Reason;

/// A token, as the sandbox has it.
pub(super) const EXAMPLE_TOKEN: &str = r#"{"token":{"id":"24306d5ba4ab31f5520acd03c41249cd250e6b39d5d549a4018b9a5e316848a1i0","number":12193627,"block_height":837391,"tx_id":"24306d5ba4ab31f5520acd03c41249cd250e6b39d5d549a4018b9a5e316848a1","address":"bc1pvzjv4pj68gds3492s7zh38jwzjkm7r8n76tmvckgw0am3mvl2hyj2kwp6l","ticker":"ordi","max_supply":"21000000.000000000000000000","mint_limit":"1000.000000000000000000","decimals":18,"deploy_timestamp":1694125412000,"minted_supply":"21000000.000000000000000000","tx_count":252161,"self_mint":false},"supply":{"max_supply":"21000000.000000000000000000","minted_supply":"21000000.000000000000000000","holders":16717}}"#;

/// A page of rune activity, as the sandbox has it.
pub(super) const EXAMPLE_PAGE: &str = r#"{"limit":1,"offset":0,"total":12,"results":[{"rune":{"id":"839901:66","number":9,"name":"SNOWONTHEWIRE","spaced_name":"SNOW•ON•THE•WIRE"},"operation":"send","location":{"block_hash":"0000000000000000000a340c1e8a5353f2ce0d2fd68cfb9fa4ef17d375956301","block_height":840000,"tx_id":"2169bacfa99675b76e199b3e6d922249901a48b93506c78650f515218a26ed4d","tx_index":3,"timestamp":1713571789,"vout":1,"output":"2169bacfa99675b76e199b3e6d922249901a48b93506c78650f515218a26ed4d:1"},"address":"bc1pk7r3a35gvf9n0zqv07easy5g747jf7km6wy2wc0rv9vrtvgmx6cjx2z4xf","receiver_address":"bc1qak9ptwq98rpdwl8aa5d55pj75fmqym6jdt8p8h","amount":"1067"}]}"#;

const HASH: &str = "0000000000000000000a340c1e8a5353f2ce0d2fd68cfb9fa4ef17d375956301";
const TX: &str = "2169bacfa99675b76e199b3e6d922249901a48b93506c78650f515218a26ed4d";

/// An integer.
fn integer(example: i64, description: &str) -> Value {
    described(
        json!({ "type": "integer", "examples": [example] }),
        description,
    )
}

/// An integer that is not negative.
fn counted(example: i64, description: &str) -> Value {
    let schema = json!({ "type": "integer", "minimum": 0, "examples": [example] });
    described(schema, description)
}

fn text(example: &str, description: &str) -> Value {
    described(
        json!({ "type": "string", "examples": [example] }),
        description,
    )
}

fn pattern(pattern: &str, example: &str, description: &str) -> Value {
    let schema = json!({ "type": "string", "pattern": pattern, "examples": [example] });
    described(schema, description)
}

fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = json!(description);
    schema
}

fn hex64(example: &str, description: &str) -> Value {
    pattern("^[0-9a-f]{64}$", example, description)
}

fn decimal(example: &str, description: &str) -> Value {
    let description = format!("{description}: a decimal number, as a string for its precision");
    pattern(r"^-?[0-9]+(\.[0-9]+)?$", example, &description)
}

/// The schemas of bodies.
pub(super) fn schemas() -> Value {
    json!({
        "Brc20TokenResponse": object("token supply", json!({
            "token": reference("schemas", "Brc20Token"),
            "supply": reference("schemas", "Brc20Supply"),
        })),
        "Brc20Token": token(),
        "Brc20Supply": object("max_supply minted_supply holders", json!({
            "max_supply": decimal("21000000.000000000000000000", "The most that can be minted"),
            "minted_supply": decimal("21000000.000000000000000000", "What was minted"),
            "holders": counted(16717, "Addresses that hold the token"),
        })),
        "RuneActivityPage": object("limit offset total results", json!({
            "limit": counted(20, "Results a page, as requested"),
            "offset": counted(0, "Results passed over, as requested"),
            "total": counted(12, "The number of results; 0 if offset is past the last one"),
            "results": { "type": "array", "items": reference("schemas", "RuneActivity") },
        })),
        "RuneActivity": activity(),
        "Rune": object("id number name spaced_name", json!({
            "id": pattern("^[0-9]+:[0-9]+$", "839901:66", "The block and the transaction in it that etched the rune"),
            "number": counted(9, "The rune's number"),
            "name": text("SNOWONTHEWIRE", "The name without spacers"),
            "spaced_name": text("SNOW•ON•THE•WIRE", "The name with spacers"),
        })),
        "Location": location(),
        "NotFound": object("error", json!({
            "error": { "type": "string", "const": "Not found" },
        })),
        "Problem": problem(),
    })
}

fn token() -> Value {
    let required = "id number block_height tx_id address ticker max_supply mint_limit decimals deploy_timestamp minted_supply tx_count";
    let id = "24306d5ba4ab31f5520acd03c41249cd250e6b39d5d549a4018b9a5e316848a1";
    let limit = json!({
        "type": ["string", "null"],
        "description": "The most that one mint can make: a decimal number; null without a limit",
        "examples": ["1000.000000000000000000"],
    });
    let self_mint = json!({
        "type": "boolean",
        "description": "Whether only the deployer can mint",
        "examples": [false],
    });
    object(
        required,
        json!({
            "id": pattern("^[0-9a-f]{64}i[0-9]+$", &format!("{id}i0"), "The inscription that deployed the token"),
            "number": integer(12_193_627, "The inscription's number; negative for cursed ones"),
            "block_height": counted(837_391, "The block of the deployment"),
            "tx_id": hex64(id, "The transaction of the deployment"),
            "address": text("bc1pvzjv4pj68gds3492s7zh38jwzjkm7r8n76tmvckgw0am3mvl2hyj2kwp6l", "The deployer's address"),
            "ticker": text("ordi", "The ticker as it was deployed"),
            "max_supply": decimal("21000000.000000000000000000", "The most that can be minted"),
            "mint_limit": limit,
            "decimals": counted(18, "Digits after the point"),
            "deploy_timestamp": integer(1_694_125_412_000, "When it was deployed, in milliseconds of Unix time"),
            "minted_supply": decimal("21000000.000000000000000000", "What was minted"),
            "tx_count": counted(252_161, "Transactions with the token"),
            "self_mint": self_mint,
        }),
    )
}

fn activity() -> Value {
    let operation = json!({
        "type": "string",
        "enum": ["etching", "mint", "burn", "send", "receive"],
        "description": "What happened",
        "examples": ["send"],
    });
    object(
        "rune operation location",
        json!({
            "rune": reference("schemas", "Rune"),
            "operation": operation,
            "location": reference("schemas", "Location"),
            "address": text("bc1pk7r3a35gvf9n0zqv07easy5g747jf7km6wy2wc0rv9vrtvgmx6cjx2z4xf", "The address that it concerns"),
            "receiver_address": text("bc1qak9ptwq98rpdwl8aa5d55pj75fmqym6jdt8p8h", "The address that received, for send"),
            "amount": decimal("1067", "How much"),
        }),
    )
}

fn location() -> Value {
    object(
        "block_hash block_height tx_id tx_index timestamp",
        json!({
            "block_hash": hex64(HASH, "The block's hash"),
            "block_height": counted(840_000, "The block's height"),
            "tx_id": hex64(TX, "The transaction's id"),
            "tx_index": counted(3, "The transaction's place in the block"),
            "timestamp": counted(1_713_571_789, "The block's time, in seconds of Unix time"),
            "vout": counted(1, "The output's place in the transaction"),
            "output": pattern("^[0-9a-f]{64}:[0-9]+$", &format!("{TX}:1"), "The output"),
        }),
    )
}

fn problem() -> Value {
    object(
        "type title status detail error reason request_id",
        json!({
            "type": text("about:blank", "The kind of problem (RFC 9457)"),
            "title": text("Bad Request", "The status in words"),
            "status": described(json!({ "type": "integer", "minimum": 400, "maximum": 599, "examples": [400] }), "The status code"),
            "detail": text("limit must be an integer from 1 to 60, but \"61\" came", "What was received, what is allowed and what to do"),
            "error": text("limit must be an integer from 1 to 60, but \"61\" came", "The same as detail, for clients of the upstream API"),
            "request_id": text("d9bcd8683448941b", "The request's id in the logs"),
            "trace_id": pattern("^[0-9a-f]{32}$", "4bf92f3577b34da6a3ce929d0e0e4736", "The id of the trace that the request belongs to, if it does"),
            "reason": described(json!({ "type": "string", "enum": &Reason::ALL[..], "examples": [Reason::Invalid] }), "The reason as one word"),
            "parameter": text("limit", "The parameter that is invalid"),
            "received": text("61", "Its value"),
            "allowed": text("an integer from 1 to 60", "The values that are allowed"),
        }),
    )
}

/// The schema of an object with these properties, of which some are required.
fn object(required: &str, properties: Value) -> Value {
    let required: Vec<_> = required.split(' ').collect();
    json!({ "type": "object", "required": required, "properties": properties })
}
