//! The OpenAPI 3.1 document of the public listener, made from the route table.
//! The schemas are those of the API's specification; what it leaves open is as
//! the reference upstream does it.

use serde_json::{Map, Value, json};

use crate::route::{Methods, Parameter, ResponseSchema, Route, RouteTable};
use crate::validate::{HASH_DIGITS, ParameterType};

/// The path of the document.
pub(crate) const PATH: &str = "/openapi.json";

/// The document.
pub fn document(routes: &RouteTable) -> Value {
    let paths: Map<String, Value> = routes
        .routes()
        .iter()
        .map(|route| (route.request.path.to_string(), path(route)))
        .collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ordinals and Runes read API, through ordgate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "BRC-20 token details by ticker, rune activity by transaction and by block. No key is needed here.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": {
                "Brc20TokenResponse": brc20_token_response(),
                "Brc20Token": brc20_token(),
                "Brc20Supply": object(&[("max_supply", decimal()), ("minted_supply", decimal()), ("holders", integer())], &[]),
                "RuneActivityPage": rune_activity_page(),
                "RuneActivity": rune_activity(),
                "Rune": rune(),
                "Location": location(),
                "NotFound": object(&[("error", json!({ "type": "string", "const": "Not found" }))], &[]),
                "Problem": problem(),
            },
            "headers": headers(),
            "responses": refusals(),
        },
    })
}

fn path(route: &Route) -> Value {
    let mut operations = Map::new();
    let Methods::Listed(methods) = &route.request.methods else {
        // A route without a list of methods passes every request to the upstream.
        return json!({ "description": "Passed to the upstream unchanged" });
    };
    for method in methods {
        operations.insert(
            method.as_str().to_lowercase(),
            operation(route, method.as_str()),
        );
    }
    Value::Object(operations)
}

fn operation(route: &Route, method: &str) -> Value {
    let parameters = route.request.params.iter().map(|p| parameter(p, "path"));
    let parameters = parameters.chain(route.request.query.iter().map(|p| parameter(p, "query")));
    let content = |schema: Value| match method {
        "HEAD" => json!({}),
        _ => json!({ "application/json": { "schema": schema } }),
    };
    let found = match route.docs.response {
        ResponseSchema::Json => json!({}),
        ResponseSchema::Brc20Token => reference("schemas", "Brc20TokenResponse"),
        ResponseSchema::RuneActivity => reference("schemas", "RuneActivityPage"),
    };
    let mut responses = Map::new();
    let fields = [
        "ETag",
        "Age",
        "Cache-Status",
        "X-Request-Id",
        "RateLimit",
        "RateLimit-Policy",
    ];
    let fields: Map<String, Value> = fields
        .iter()
        .map(|name| ((*name).to_owned(), reference("headers", name)))
        .collect();
    responses.insert(
        "200".into(),
        json!({ "description": "The requested resource", "headers": fields, "content": content(found) }),
    );
    responses.insert(
        "304".into(),
        json!({ "description": "The client's stored response is still valid" }),
    );
    if route.docs.response == ResponseSchema::Brc20Token {
        responses.insert(
            "404".into(),
            json!({ "description": "There is no such token", "content": content(reference("schemas", "NotFound")) }),
        );
    }
    for status in ["400", "405", "414", "429", "431", "502", "503", "504"] {
        responses.insert(status.into(), reference("responses", name_of(status)));
    }
    let id = match method {
        "GET" => route.name.to_string(),
        _ => format!("{}-{}", route.name, method.to_lowercase()),
    };
    let mut operation = json!({
        "operationId": id,
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": responses,
    });
    if let (Some(summary), Some(operation)) = (&route.docs.summary, operation.as_object_mut()) {
        operation.insert("summary".into(), json!(summary));
    }
    operation
}

fn parameter(parameter: &Parameter, location: &str) -> Value {
    let mut schema = match &parameter.kind {
        ParameterType::Hex64 => json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" }),
        ParameterType::Block { zeros } => {
            json!({ "type": "string", "pattern": format!("^([0-9]{{1,10}}|{})$", hash(*zeros)) })
        }
        ParameterType::Ticker => json!({ "type": "string", "minLength": 1, "maxLength": 100 }),
        ParameterType::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ParameterType::Enumeration(values) => json!({ "type": "string", "enum": values }),
        ParameterType::Text { min, max, pattern } => {
            let mut schema = json!({ "type": "string", "minLength": min, "maxLength": max });
            if let Some((pattern, _)) = pattern {
                schema["pattern"] = json!(format!("^(?:{pattern})$"));
            }
            schema
        }
    };
    if let Some(default) = &parameter.default {
        let number =
            matches!(parameter.kind, ParameterType::Integer { .. }).then(|| default.parse::<u64>());
        schema["default"] = match number {
            Some(Ok(number)) => json!(number),
            _ => json!(default),
        };
    }
    let mut value = json!({
        "name": parameter.name,
        "in": location,
        "required": location == "path",
        "schema": schema,
    });
    if let Some(description) = &parameter.description {
        value["description"] = json!(description);
    }
    value
}

/// The pattern of a block hash with at least this many leading zeros.
fn hash(zeros: u8) -> String {
    let others = HASH_DIGITS.saturating_sub(usize::from(zeros));
    let zeros = match zeros {
        0 => String::new(),
        zeros => format!("0{{{zeros}}}"),
    };
    match others {
        0 => zeros,
        others => format!("{zeros}[0-9a-fA-F]{{{others}}}"),
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

fn name_of(status: &str) -> &'static str {
    match status {
        "400" => "BadRequest",
        "405" => "MethodNotAllowed",
        "414" => "TargetTooLong",
        "429" => "TooManyRequests",
        "431" => "HeadTooLarge",
        "502" => "BadGateway",
        "503" => "ServiceUnavailable",
        _ => "GatewayTimeout",
    }
}

fn refusals() -> Value {
    let refusal = |description: &str, retry: bool| {
        let mut value = json!({
            "description": description,
            "content": { "application/problem+json": { "schema": reference("schemas", "Problem") } },
        });
        if retry {
            value["headers"] = json!({ "Retry-After": reference("headers", "Retry-After") });
        }
        value
    };
    json!({
        "BadRequest": refusal("A parameter is invalid; the body names it, the received value and the allowed ones", false),
        "MethodNotAllowed": refusal("The path does not support the method; Allow lists the supported ones", false),
        "TargetTooLong": refusal("The request target is too long", false),
        "TooManyRequests": refusal("The client has exceeded its rate limit", true),
        "HeadTooLarge": refusal("The request's header section is too large", false),
        "BadGateway": refusal("The upstream sent no valid response", false),
        "ServiceUnavailable": refusal("The upstream's budget is used up, or ordgate is overloaded", true),
        "GatewayTimeout": refusal("The upstream did not respond in time", false),
    })
}

fn headers() -> Value {
    let header =
        |description: &str, schema: Value| json!({ "description": description, "schema": schema });
    json!({
        "ETag": header("A digest of the body", string()),
        "Age": header("Seconds since the upstream's response was received", integer()),
        "Cache-Status": header("How the cache handled the request (RFC 9211)", string()),
        "X-Request-Id": header("The request's id in the logs", string()),
        "RateLimit": header("The remainder of the client's rate limit", string()),
        "RateLimit-Policy": header("The client's rate limit", string()),
        "Retry-After": header("Seconds until the client should retry", integer()),
    })
}

/// The schema of an object; the members of the second list are optional.
fn object(members: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let required: Vec<_> = members.iter().map(|(name, _)| *name).collect();
    let all = members.iter().chain(optional);
    let properties: Map<String, Value> = all
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn integer() -> Value {
    json!({ "type": "integer" })
}

fn string() -> Value {
    json!({ "type": "string" })
}

fn decimal() -> Value {
    json!({ "type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?$", "description": "A decimal number, as a string for its precision" })
}

fn hex64() -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
}

fn brc20_token_response() -> Value {
    object(
        &[
            ("token", reference("schemas", "Brc20Token")),
            ("supply", reference("schemas", "Brc20Supply")),
        ],
        &[],
    )
}

fn brc20_token() -> Value {
    object(
        &[
            (
                "id",
                json!({ "type": "string", "pattern": "^[0-9a-f]{64}i[0-9]+$" }),
            ),
            (
                "number",
                json!({ "type": "integer", "description": "The inscription's number; negative for cursed ones" }),
            ),
            ("block_height", integer()),
            ("tx_id", hex64()),
            ("address", string()),
            ("ticker", string()),
            ("max_supply", decimal()),
            ("mint_limit", json!({ "type": ["string", "null"] })),
            ("decimals", integer()),
            (
                "deploy_timestamp",
                json!({ "type": "integer", "description": "Milliseconds of Unix time" }),
            ),
            ("minted_supply", decimal()),
            ("tx_count", integer()),
        ],
        &[("self_mint", json!({ "type": "boolean" }))],
    )
}

fn rune_activity_page() -> Value {
    object(
        &[
            ("limit", integer()),
            ("offset", integer()),
            (
                "total",
                json!({ "type": "integer", "description": "The number of results; 0 if offset is past the last one" }),
            ),
            (
                "results",
                json!({ "type": "array", "items": reference("schemas", "RuneActivity") }),
            ),
        ],
        &[],
    )
}

fn rune_activity() -> Value {
    object(
        &[
            ("rune", reference("schemas", "Rune")),
            (
                "operation",
                json!({ "type": "string", "enum": ["etching", "mint", "burn", "send", "receive"] }),
            ),
            ("location", reference("schemas", "Location")),
        ],
        &[
            ("address", string()),
            ("receiver_address", string()),
            ("amount", decimal()),
        ],
    )
}

fn rune() -> Value {
    object(
        &[
            (
                "id",
                json!({ "type": "string", "pattern": "^[0-9]+:[0-9]+$" }),
            ),
            ("number", integer()),
            ("name", string()),
            ("spaced_name", string()),
        ],
        &[],
    )
}

fn location() -> Value {
    object(
        &[
            ("block_hash", hex64()),
            ("block_height", integer()),
            ("tx_id", hex64()),
            ("tx_index", integer()),
            (
                "timestamp",
                json!({ "type": "integer", "description": "Seconds of Unix time" }),
            ),
        ],
        &[
            ("vout", integer()),
            (
                "output",
                json!({ "type": "string", "pattern": "^[0-9a-f]{64}:[0-9]+$" }),
            ),
        ],
    )
}

fn problem() -> Value {
    object(
        &[
            ("type", string()),
            ("title", string()),
            ("status", integer()),
            ("detail", string()),
            (
                "error",
                json!({ "type": "string", "description": "The same as detail, for clients of the upstream API" }),
            ),
            ("request_id", string()),
        ],
        &[
            ("parameter", string()),
            ("received", string()),
            ("allowed", string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// Collects every reference in a document.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    found.push(to.clone());
                }
                members
                    .values()
                    .for_each(|member| references(member, found));
            }
            Value::Array(elements) => elements
                .iter()
                .for_each(|element| references(element, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn the_document_has_the_paths_and_parameters_of_the_route_table() {
        let config = Config::shipped().ok().unwrap();
        let document = document(&config.routes);
        let get = &document["paths"]["/runes/v1/blocks/{block}/activity"]["get"];
        assert_eq!(get["operationId"], "rune-block-activity");
        let names: Vec<_> = get["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| &p["name"])
            .collect();
        assert_eq!(names, ["block", "limit", "offset", "operation_type"]);
        assert_eq!(get["parameters"][1]["schema"]["maximum"], 60);
        assert_eq!(get["parameters"][1]["schema"]["default"], 20);
        assert_eq!(document["paths"].as_object().unwrap().len(), 3);
    }

    #[test]
    fn every_reference_resolves() {
        let config = Config::shipped().ok().unwrap();
        let document = document(&config.routes);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for to in found {
            let pointer = to.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{to}");
        }
    }
}
