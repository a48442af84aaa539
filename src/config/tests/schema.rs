//! The JSON Schema accepts what the reader accepts, and rejects the types and bounds
//! that it rejects.

use regex_lite::Regex;
use serde_json::{Value as Json, json};

use super::problems;
use crate::config::{Config, SHIPPED, schema};
use crate::upstream::ProviderKeys;

/// Whether a value fits a schema, for the keywords that ordgate's has. Others are a
/// panic.
fn fits(value: &Json, schema: &Json) -> bool {
    let Json::Object(keywords) = schema else {
        return *schema != json!(false);
    };
    let object = value.as_object();
    keywords.iter().all(|(keyword, rule)| match &**keyword {
        "$schema" | "title" | "description" | "default" | "examples" | "then" | "deprecated" => {
            true
        }
        "type" => match rule.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("{other}"),
        },
        "enum" => rule.as_array().unwrap().contains(value),
        "const" => rule == value,
        "minimum" => value.as_f64().is_none_or(|n| n >= rule.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= rule.as_f64().unwrap()),
        "pattern" => {
            let regex = Regex::new(rule.as_str().unwrap()).unwrap();
            value.as_str().is_none_or(|text| regex.is_match(text))
        }
        "anyOf" => rule
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| fits(value, rule)),
        "allOf" => rule
            .as_array()
            .unwrap()
            .iter()
            .all(|rule| fits(value, rule)),
        "not" => !fits(value, rule),
        "if" => !fits(value, rule) || fits(value, &keywords["then"]),
        "items" => {
            let mut items = value.as_array().into_iter().flatten();
            items.all(|item| fits(item, rule))
        }
        "required" => {
            let mut names = rule.as_array().unwrap().iter();
            names.all(|name| object.is_none_or(|of| of.contains_key(name.as_str().unwrap())))
        }
        "properties" => {
            let mut members = object.into_iter().flatten();
            members.all(|(name, value)| rule.get(name).is_none_or(|rule| fits(value, rule)))
        }
        "propertyNames" => {
            let mut names = object.into_iter().flatten().map(|(name, _)| json!(name));
            names.all(|name| fits(&name, rule))
        }
        "additionalProperties" => {
            let known = keywords.get("properties").and_then(Json::as_object);
            let mut members = object.into_iter().flatten();
            members.all(|(name, value)| {
                known.is_some_and(|known| known.contains_key(name)) || fits(value, rule)
            })
        }
        other => panic!("the test does not know the keyword {other}"),
    })
}

fn json_of(text: &str) -> Json {
    let table: toml::Table = text
        .parse()
        .unwrap_or_else(|error| panic!("{text}\n{error}"));
    serde_json::to_value(table).unwrap()
}

#[test]
fn the_schema_accepts_what_is_shipped() {
    let schema = schema();
    let bench = |text: &str| {
        let text = text
            .replace("@PORT@", "8080")
            .replace("@ORIGIN_PORT@", "3000");
        text.replace("@DIR@", "/tmp")
    };
    let none = ProviderKeys::default();
    let printed = Config::shipped().unwrap().print(&none).unwrap();
    for text in [
        String::new(),
        SHIPPED.to_owned(),
        printed,
        bench(include_str!("../../../benches/peers.toml")),
        bench(include_str!("../../../benches/peers-chain.toml")),
        bench(include_str!("../../../benches/peers-respect.toml")),
        include_str!("../../../deploy/examples/plain-cache.toml").to_owned(),
        include_str!("../../../deploy/examples/self-hosted.toml").to_owned(),
        include_str!("../../../deploy/examples/sidecar.toml").to_owned(),
        "limit.max_callers = 7".to_owned(),
        "server.listen = [\"127.0.0.1:80\", \"[::1]:80\", \"[fe80::1%2]:80\", \"unix:/run/a b.sock\"]".to_owned(),
        "log.level = \"info,ordgate::access=Debug,hyper=off\"".to_owned(),
        "log.level = \"WARN\"".to_owned(),
        "upstreams.runes.url = [\"http://a.example\", \"http://b.example\"]".to_owned(),
    ] {
        assert_eq!(problems(&text), [""; 0], "{text}");
        assert!(fits(&json_of(&text), &schema), "{text}");
    }
}

#[test]
fn the_schema_rejects_the_types_and_bounds_that_the_reader_rejects() {
    let schema = schema();
    let route = "[[route]]\nname = \"a\"\npath = \"/{x}\"\nparams.x.type = \"hex64\"\n";
    let with = |line: &str| format!("{route}{line}\n");
    assert!(fits(&json_of(route), &schema));
    let lines = [
        "unknown = 1",
        "server.listn = \"127.0.0.1:1\"",
        "server.listen = 8080",
        "server.listen = \"8080\"",
        "server.listen = \"localhost:8080\"",
        "server.listen = \"::1:8080\"",
        "admin.listen = \"localhost:9090\"",
        "server.workers = 1025",
        "server.workers = -1",
        "server.workers = 1.5",
        "server.runtime = \"percore\"",
        "server.drain_timeout = \"ten seconds\"",
        "server.drain_timeout = \"25h\"",
        "server.drain_timeout = 30",
        "server.header_timeout = \"0s\"",
        "server.max_unsent_bytes = \"1KiB\"",
        "server.max_unsent_bytes = 1024",
        "server.max_unsent_bytes = \"64MB\"",
        "server.min_send_rate = \"2GiB\"",
        "admin.hosts = [\"a:9090\"]",
        "admin.hosts = \"a\"",
        "admin.ready_needs_tips = \"true\"",
        "clients.trusted_proxies = [\"junk\"]",
        "clients.trusted_proxies = [3]",
        "clients.token_file = 3",
        "clients.require_token = \"yes\"",
        "answers.cors_origins = [\"app.example\"]",
        "answers.cors_origins = [\"https://app.example/\"]",
        "answers.cors_origins = [\"https://App.example\"]",
        "answers.cors_origins = [\"https://user@app.example\"]",
        "limit.connections = 0",
        "limit.burst = \"many\"",
        "limit.max_callers = 0",
        "limit = { max_callers = 7, max_clients = 7 }",
        "limit.misses_per_minute = 60000001",
        "cache.max_bytes = \"1KiB\"",
        "cache.targeted_field = \"a b\"",
        "chain.final_depth = 0",
        "chain.final_ttl = \"2y\"",
        "chain.final_ttl = \"366d\"",
        "chain.hash_zeros = 65",
        "chain.tips = 3",
        "chain.tip.runes.every = \"1ms\"",
        "chain.tip.runes.path = \"runes\"",
        "chain.look_ahead.refresh = true",
        "upstream.url = \"ftp://x\"",
        "upstream.url = \"https://user:pass@a.example\"",
        "upstream.url = [\"https://a.example\", 7]",
        "upstream.api_key_header = \"a b\"",
        "upstream.requests_per_minute = 0",
        "upstream.requests_per_second = \"none\"",
        "upstream.max_in_flight = 0",
        "upstream.retry.share = 101",
        "upstream.breaker.share = 101",
        "upstream.breaker.pause = \"0s\"",
        "upstream.request_body.min_rate = \"0B\"",
        "upstream.response_body.timeout = \"1s\"",
        "upstreams.default.url = \"https://a.example\"",
        "upstreams.\"a b\".max_lag = 1",
        "upstreams.a.max_lags = 1",
        "upstreams.a = 3",
        "log.format = \"jsn\"",
        "log.level = \"loud\"",
        "log.level = \"ordgate=loud\"",
        "log.level = \"info, warn\"",
        "log.access.sample = 0",
        "log.access.fields = [\"colour\"]",
        "route = 3",
    ];
    let routes = [
        "name2 = \"a\"",
        "methods = [\"POST\"]",
        "headers = \"some\"",
        "query = \"all\"",
        "query.n = { type = \"hax\" }",
        "query.n = { min = 1 }",
        "query.n = { type = \"string\", min = 1 }",
        "query.n = { type = \"integer\", min = -1 }",
        "query.n = { type = \"integer\", default = true }",
        "params.y = { type = \"hex64\", default = \"a\" }",
        "upstream_page = 60",
        "pages = true\nupstream_page = 0",
        "cache = { mode = \"overide\" }",
        "cache = { mode = \"off\", tip = \"runes\" }",
        "cache = { tip = \"runes\" }",
        "cache = { mode = \"off\", store_set_cookie = \"never\" }",
        "cache = { mode = \"override\", times = { 500 = \"1s\" } }",
        "cache = { mode = \"override\", times = { 200 = \"1y\" } }",
        "cache.stale_if_error = \"366d\"",
    ];
    let missing = ["[[route]]\nname = \"a\"", "[[route]]\npath = \"/a\""].map(str::to_owned);
    let whole = lines.map(|line| format!("{line}\n"));
    let routes = routes.map(with);
    for text in whole.into_iter().chain(routes).chain(missing) {
        assert_ne!(problems(&text), [""; 0], "{text}");
        assert!(!fits(&json_of(&text), &schema), "{text}");
    }
}
