//! The OpenAPI 3.1 document of the public listener, made from the route table:
//! operations here, `parameters`, `responses` of ordgate's own, and `schemas` of
//! bodies. `page` shows it. The schemas are those of the API's specification; what it leaves open is
//! as the reference upstream does it. A parameter's schema accepts what `validate`
//! accepts.

pub(crate) mod page;
mod parameters;
mod responses;
mod schemas;

use http::Method;
use parameters::{conditional, parameter};
use responses::{headers, refusals};
use schemas::{EXAMPLE_PAGE, EXAMPLE_TOKEN, schemas};
use serde_json::{Map, Value, json};

use crate::route::{HeaderMode, Methods, ResponseSchema, Route, RouteTable};

/// The path of the document.
pub(crate) const PATH: &str = "/openapi.json";

/// The statuses of ordgate's own errors, and the names of their descriptions.
const REFUSALS: [(&str, &str); 15] = [
    ("400", "BadRequest"),
    ("401", "Unauthorized"),
    ("403", "Forbidden"),
    ("405", "MethodNotAllowed"),
    ("408", "RequestTimeout"),
    ("414", "TargetTooLong"),
    ("429", "TooManyRequests"),
    ("431", "HeadTooLarge"),
    ("500", "InternalError"),
    ("501", "NotImplemented"),
    ("502", "BadGateway"),
    ("503", "ServiceUnavailable"),
    ("504", "GatewayTimeout"),
    ("505", "VersionNotSupported"),
    ("508", "LoopDetected"),
];

/// Fields of every answer.
const FIELDS: [&str; 6] = [
    "ETag",
    "Age",
    "Cache-Control",
    "Cache-Status",
    "RateLimit",
    "RateLimit-Policy",
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
        "tags": tags(routes),
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
    }
    document
}

/// The tag of a route.
const fn tag(schema: ResponseSchema) -> (&'static str, &'static str) {
    match schema {
        ResponseSchema::Brc20Token => ("BRC-20", "Tokens of the BRC-20 standard"),
        ResponseSchema::RuneActivity => ("Runes", "What happened to runes"),
        ResponseSchema::Json => ("Other", "Further routes of this gateway"),
    }
}

/// The tags of the routes that there are.
fn tags(routes: &RouteTable) -> Value {
    let mut tags = Map::new();
    for route in routes.routes() {
        let (name, description) = tag(route.docs.response);
        tags.insert(
            name.to_owned(),
            json!({ "name": name, "description": description }),
        );
    }
    tags.into_iter().map(|(_, tag)| tag).collect()
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
    let parameters = parameters.chain([conditional()]);
    let id = match method {
        "GET" => route.name.to_string(),
        _ => format!("{}-{}", route.name, method.to_lowercase()),
    };
    let mut operation = json!({
        "operationId": id,
        "tags": [tag(route.docs.response).0],
        "parameters": parameters.collect::<Vec<_>>(),
        "responses": responses(route, method),
    });
    if let Some(summary) = &route.docs.summary {
        operation["summary"] = match method {
            "HEAD" => json!(format!("{summary}: the header fields only")),
            _ => json!(summary),
        };
    }
    operation
}

fn responses(route: &Route, method: &str) -> Value {
    let content = |schema: Value, example: Value| match method {
        "HEAD" => json!({}),
        _ if example.is_null() => json!({ "application/json": { "schema": schema } }),
        _ => json!({ "application/json": { "schema": schema, "example": example } }),
    };
    let example = |text: &str| serde_json::from_str(text).unwrap_or_default();
    let (found, example) = match route.docs.response {
        ResponseSchema::Json => (json!({}), Value::Null),
        ResponseSchema::Brc20Token => (
            reference("schemas", "Brc20TokenResponse"),
            example(EXAMPLE_TOKEN),
        ),
        ResponseSchema::RuneActivity => (
            reference("schemas", "RuneActivityPage"),
            example(EXAMPLE_PAGE),
        ),
    };
    let named = |name: &str| (name.to_owned(), reference("headers", name));
    let fields: Map<_, _> = FIELDS
        .iter()
        .chain(&["X-Request-Id"])
        .map(|n| named(n))
        .collect();
    let unchanged: Map<_, _> = ["ETag", "Cache-Control"].iter().map(|n| named(n)).collect();
    let mut responses = json!({
        "200": { "description": "The requested resource", "headers": fields, "content": content(found, example) },
        "304": { "description": "The client's stored response is still valid: one of the tags in If-None-Match is that of the resource", "headers": unchanged },
    });
    for (status, name) in REFUSALS {
        responses[status] = reference("responses", name);
    }
    responses["404"] = reference("responses", "NoRoute");
    if route.docs.response == ResponseSchema::Brc20Token {
        responses["404"] = reference("responses", "NoToken");
    }
    if route.headers == HeaderMode::All {
        responses["413"] = reference("responses", "BodyTooLarge");
    }
    responses
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
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
        assert_eq!(
            names,
            [
                "block",
                "limit",
                "offset",
                "operation_type",
                "if-none-match"
            ]
        );
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
