//! The OpenAPI 3.1 document of the public listener: `base.json`, whose schemas are those
//! of the API's specification, and a path for each route of the table. `page` shows it.
//! A parameter's schema accepts what `validate` accepts.

pub(crate) mod page;
mod parameters;

use std::collections::BTreeSet;

use http::Method;
use parameters::parameter;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::events;
use crate::reason::Reason;
use crate::route::{HeaderMode, Methods, ResponseSchema, Route, RouteTable};

/// The path of the document.
pub(crate) const PATH: &str = "/openapi.json";

/// What does not depend on the routes.
#[derive(Deserialize)]
struct Base {
    /// The document without its paths.
    document: Value,
    /// The members `security` and `schemes` of a document if clients need a token.
    security: Value,
    /// The responses of each operation.
    responses: Map<String, Value>,
    /// The content of 200, by tag.
    bodies: Map<String, Value>,
    /// The stream of chain events.
    events: Value,
}

/// The document. `requires_token` is whether clients need a token.
pub fn document(routes: &RouteTable, requires_token: bool) -> Value {
    let base: Base =
        serde_json::from_str(include_str!("openapi/base.json")).expect("base.json is valid");
    let mut paths = Map::from_iter([(events::PATH.to_owned(), base.events.clone())]);
    paths.extend(routes.routes().iter().map(|route| path(route, &base)));
    let mut used: BTreeSet<_> = routes.routes().iter().map(tag).collect();
    used.insert("Events");
    let mut document = base.document;
    document["paths"] = paths.into();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["components"]["schemas"]["Problem"]["properties"]["reason"]["enum"] =
        json!(Reason::ALL.to_vec());
    if let Some(tags) = document["tags"].as_array_mut() {
        tags.retain(|tag| tag["name"].as_str().is_some_and(|name| used.contains(name)));
    }
    if requires_token {
        document["security"] = base.security["security"].clone();
        document["components"]["securitySchemes"] = base.security["schemes"].clone();
    }
    document
}

/// The tag of a route.
const fn tag(route: &Route) -> &'static str {
    match route.docs.response {
        ResponseSchema::Brc20Token => "BRC-20",
        ResponseSchema::RuneActivity => "Runes",
        ResponseSchema::Json => "Other",
        ResponseSchema::Any => "The rest",
    }
}

/// The path of a route, in which a tail is a parameter like others, and its operations.
fn path(route: &Route, base: &Base) -> (String, Value) {
    let path = &*route.request.path;
    let tail = path
        .strip_suffix(":*}")
        .and_then(|rest| rest.rsplit_once("{"))
        .map(|(_, name)| {
            json!({
                "name": name,
                "in": "path",
                "required": true,
                "description": "The rest of the path; it may have slashes",
                "schema": { "type": "string" },
            })
        });
    let parameters = (route.request.params.iter().map(|p| parameter(p, "path")))
        .chain(tail)
        .chain(route.request.query.iter().map(|p| parameter(p, "query")))
        .chain([reference("parameters", "If-None-Match")])
        .collect::<Vec<_>>();
    let item = match &route.request.methods {
        Methods::Listed(methods) => methods
            .iter()
            .map(|method| {
                let operation = operation(route, method, &parameters, base);
                (method.as_str().to_lowercase(), operation)
            })
            .collect(),
        // Every request is passed to the upstream.
        Methods::Any => {
            json!({ "description": "Passed to the upstream unchanged", "parameters": parameters })
        }
    };
    (path.replace(":*}", "}"), item)
}

fn operation(route: &Route, method: &Method, parameters: &[Value], base: &Base) -> Value {
    let is_head = method == Method::HEAD;
    let mut responses = base.responses.clone();
    if !is_head {
        responses["200"]["content"] = base.bodies[tag(route)].clone();
    }
    if route.docs.response == ResponseSchema::Brc20Token {
        responses.insert("404".to_owned(), reference("responses", "NoToken"));
    }
    if route.headers == HeaderMode::All {
        responses.insert("413".to_owned(), reference("responses", "BodyTooLarge"));
    }
    let mut operation = json!({
        "operationId": match method.as_str() {
            "GET" => route.name.to_string(),
            other => format!("{}-{}", route.name, other.to_lowercase()),
        },
        "tags": [tag(route)],
        "parameters": parameters,
        "responses": responses,
    });
    if let Some(summary) = &route.docs.summary {
        let of_head = if is_head {
            ": the header fields only"
        } else {
            ""
        };
        operation["summary"] = format!("{summary}{of_head}").into();
    }
    operation
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
        let config = Config::parse("p", "").ok().unwrap();
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
        assert_eq!(names[..4], ["block", "limit", "offset", "operation_type"]);
        assert_eq!(get["parameters"][1]["schema"]["maximum"], 60);
        assert_eq!(get["parameters"][1]["schema"]["default"], 20);
        assert_eq!(document["paths"].as_object().unwrap().len(), 4);
    }

    #[test]
    fn the_rest_of_the_api_is_described_where_it_is_passed_on() {
        for (text, paths) in [("", 4), ("api = \"all\"", 11)] {
            let document = document(&Config::parse("p", text).unwrap().routes, false);
            assert_eq!(document["paths"].as_object().unwrap().len(), paths);
            let is_described = document["tags"].to_string().contains("passed on");
            assert_eq!(is_described, paths == 11);
            let get = &document["paths"]["/ordinals/v1/inscriptions/{id}/content"]["get"];
            let content = &get["responses"]["200"]["content"];
            assert_eq!(content["*/*"].is_object(), paths == 11);
        }
    }

    #[test]
    fn every_reference_resolves() {
        let config = Config::parse("p", "").ok().unwrap();
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
        let config = Config::parse("p", "").ok().unwrap();
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

    #[test]
    fn a_path_has_a_parameter_for_each_name_and_examples_are_valid() {
        let text = r#"
            [[route]]
            name = "own"
            path = "/own/{word}/{rest:*}"
            params.word = { type = "string", pattern = "[a-z]{3}" }
            query.n = { type = "integer", min = 50, max = 90 }
            [[route]]
            name = "plain"
            path = "/plain/{rest:*}"
            methods = ["*"]
            query = "any"
            headers = "all"
            cache.mode = "respect"
            "#;
        let config = Config::parse("p", text).unwrap();
        let document = document(&config.routes, false);
        let paths = document["paths"].as_object().unwrap();
        let own = &paths["/own/{word}/{rest}"]["get"]["parameters"];
        assert_eq!(own[1]["name"], "rest");
        assert_eq!(own[0]["example"], Value::Null, "none is known");
        assert_eq!(own[0]["description"], "[a-z]{3}");
        assert_eq!(own[2]["example"], Value::Null, "it would change the answer");
        assert_eq!(paths["/plain/{rest}"]["parameters"][0]["name"], "rest");
        let reasons = &document["components"]["schemas"]["Problem"]["properties"]["reason"];
        let reasons = reasons["enum"].as_array().unwrap();
        for (name, response) in document["components"]["responses"].as_object().unwrap() {
            let example = &response["content"]["application/problem+json"]["example"];
            assert!(reasons.contains(&example["reason"]), "{name}");
        }
    }
}
