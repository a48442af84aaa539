//! The OpenAPI 3.1 document of the public listener, made from the route table.
//! The schemas are those of the API's specification; what it leaves open is as
//! the reference upstream does it.

use http::Method;
use serde_json::{Map, Value, json};

use crate::reason::Reason;
use crate::route::{Methods, Parameter, ResponseSchema, Route, RouteTable};
use crate::validate::{HASH_DIGITS, ParameterType};

/// The path of the document.
pub(crate) const PATH: &str = "/openapi.json";

/// The statuses of ordgate's own errors, and the names of their descriptions.
const REFUSALS: [(&str, &str); 8] = [
    ("400", "BadRequest"),
    ("405", "MethodNotAllowed"),
    ("414", "TargetTooLong"),
    ("429", "TooManyRequests"),
    ("431", "HeadTooLarge"),
    ("502", "BadGateway"),
    ("503", "ServiceUnavailable"),
    ("504", "GatewayTimeout"),
];

/// The document. `requires_token` is whether clients need a token.
pub fn document(routes: &RouteTable, requires_token: bool) -> Value {
    let paths: Map<String, Value> = routes
        .routes()
        .iter()
        .map(|route| (route.request.path.to_string(), path(route)))
        .collect();
    let key = match requires_token {
        true => "A token of this gateway is needed.",
        false => "No key is needed here.",
    };
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Ordinals and Runes read API, through ordgate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!("BRC-20 token details by ticker, rune activity by transaction and by block. {key}"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "headers": headers(),
            "responses": refusals(),
        },
    });
    if requires_token {
        // Either of the two is enough.
        document["security"] = json!([{ "bearer": [] }, { "key": [] }]);
        document["components"]["securitySchemes"] = json!({
            "bearer": { "type": "http", "scheme": "bearer", "description": "A token that the operator has issued, beginning with og_" },
            "key": { "type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same token" },
        });
        require_token(&mut document);
    }
    document
}

/// Adds the responses to requests without a valid token.
fn require_token(document: &mut Value) {
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    let operations = paths.flat_map(|(_, path)| path.as_object_mut().into_iter().flatten());
    for (_, operation) in operations {
        if let Some(responses) = operation.get_mut("responses") {
            responses["401"] = reference("responses", "Unauthorized");
            responses["403"] = reference("responses", "Forbidden");
        }
    }
}

fn path(route: &Route) -> Value {
    let Methods::Listed(methods) = &route.request.methods else {
        // A route without a list of methods passes every request to the upstream.
        return json!({ "description": "Passed to the upstream unchanged" });
    };
    let methods = methods.iter().map(Method::as_str);
    let operations = methods.map(|method| (method.to_lowercase(), operation(route, method)));
    Value::Object(operations.collect())
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
    let fields = [
        "ETag",
        "Age",
        "Cache-Status",
        "X-Request-Id",
        "RateLimit",
        "RateLimit-Policy",
    ];
    let fields = fields.map(|name| (name.to_owned(), reference("headers", name)));
    let mut responses = json!({
        "200": { "description": "The requested resource", "headers": Map::from_iter(fields), "content": content(found) },
        "304": { "description": "The client's stored response is still valid" },
    });
    if route.docs.response == ResponseSchema::Brc20Token {
        let content = content(reference("schemas", "NotFound"));
        responses["404"] = json!({ "description": "There is no such token", "content": content });
    }
    for (status, name) in REFUSALS {
        responses[status] = reference("responses", name);
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
    if let Some(summary) = &route.docs.summary {
        operation["summary"] = json!(summary);
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
        "Unauthorized": refusal("There is no valid token; WWW-Authenticate and the body say what is wrong with it", false),
        "Forbidden": refusal("The token may not be used by pages of this origin", false),
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
    let header = |description: &str, kind: &str| json!({ "description": description, "schema": { "type": kind } });
    json!({
        "ETag": header("A digest of the body", "string"),
        "Age": header("Seconds since the upstream's response was received", "integer"),
        "Cache-Status": header("How the cache handled the request (RFC 9211)", "string"),
        "X-Request-Id": header("The request's id in the logs", "string"),
        "RateLimit": header("The remainder of the client's rate limit", "string"),
        "RateLimit-Policy": header("The client's rate limit", "string"),
        "Retry-After": header("Seconds until the client should retry", "integer"),
    })
}

/// The schemas of bodies.
fn schemas() -> Value {
    let integer = json!({ "type": "integer" });
    let string = json!({ "type": "string" });
    let hex64 = json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" });
    let decimal = json!({
        "type": "string",
        "pattern": "^-?[0-9]+(\\.[0-9]+)?$",
        "description": "A decimal number, as a string for its precision",
    });
    json!({
        "Brc20TokenResponse": object("token supply", json!({
            "token": reference("schemas", "Brc20Token"),
            "supply": reference("schemas", "Brc20Supply"),
        })),
        "Brc20Token": object("id number block_height tx_id address ticker max_supply mint_limit decimals deploy_timestamp minted_supply tx_count", json!({
            "id": { "type": "string", "pattern": "^[0-9a-f]{64}i[0-9]+$" },
            "number": { "type": "integer", "description": "The inscription's number; negative for cursed ones" },
            "block_height": integer,
            "tx_id": hex64,
            "address": string,
            "ticker": string,
            "max_supply": decimal,
            "mint_limit": { "type": ["string", "null"] },
            "decimals": integer,
            "deploy_timestamp": { "type": "integer", "description": "Milliseconds of Unix time" },
            "minted_supply": decimal,
            "tx_count": integer,
            "self_mint": { "type": "boolean" },
        })),
        "Brc20Supply": object("max_supply minted_supply holders", json!({
            "max_supply": decimal,
            "minted_supply": decimal,
            "holders": integer,
        })),
        "RuneActivityPage": object("limit offset total results", json!({
            "limit": integer,
            "offset": integer,
            "total": { "type": "integer", "description": "The number of results; 0 if offset is past the last one" },
            "results": { "type": "array", "items": reference("schemas", "RuneActivity") },
        })),
        "RuneActivity": object("rune operation location", json!({
            "rune": reference("schemas", "Rune"),
            "operation": { "type": "string", "enum": ["etching", "mint", "burn", "send", "receive"] },
            "location": reference("schemas", "Location"),
            "address": string,
            "receiver_address": string,
            "amount": decimal,
        })),
        "Rune": object("id number name spaced_name", json!({
            "id": { "type": "string", "pattern": "^[0-9]+:[0-9]+$" },
            "number": integer,
            "name": string,
            "spaced_name": string,
        })),
        "Location": object("block_hash block_height tx_id tx_index timestamp", json!({
            "block_hash": hex64,
            "block_height": integer,
            "tx_id": hex64,
            "tx_index": integer,
            "timestamp": { "type": "integer", "description": "Seconds of Unix time" },
            "vout": integer,
            "output": { "type": "string", "pattern": "^[0-9a-f]{64}:[0-9]+$" },
        })),
        "NotFound": object("error", json!({
            "error": { "type": "string", "const": "Not found" },
        })),
        "Problem": object("type title status detail error reason request_id", json!({
            "type": string,
            "title": string,
            "status": integer,
            "detail": string,
            "error": { "type": "string", "description": "The same as detail, for clients of the upstream API" },
            "request_id": string,
            "reason": { "type": "string", "description": "Why, as one word", "enum": &Reason::ALL[..] },
            "parameter": string,
            "received": string,
            "allowed": string,
        })),
    })
}

/// The schema of an object with these properties, of which some are required.
fn object(required: &str, properties: Value) -> Value {
    let required: Vec<_> = required.split(' ').collect();
    json!({ "type": "object", "required": required, "properties": properties })
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
        let document = document(&config.routes, false);
        assert_eq!(document["security"], Value::Null);
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
        for requires_token in [false, true] {
            let document = document(&config.routes, requires_token);
            let mut found = Vec::new();
            references(&document, &mut found);
            assert!(found.len() > 20);
            for to in found {
                let pointer = to.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{to}");
            }
        }
    }

    #[test]
    fn a_required_token_is_described() {
        let config = Config::shipped().ok().unwrap();
        let document = document(&config.routes, true);
        for scheme in document["security"].as_array().unwrap() {
            let name = scheme.as_object().unwrap().keys().next().unwrap();
            let known = &document["components"]["securitySchemes"][name];
            assert!(known["type"].is_string(), "{name}");
        }
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let response = &operation["responses"]["401"]["$ref"];
                assert_eq!(
                    response, "#/components/responses/Unauthorized",
                    "{method} {path}"
                );
            }
        }
    }
}
