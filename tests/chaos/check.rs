//! Whether an answer is one that may be given to a question.

use http::{HeaderMap, Method};
use serde_json::Value;

use super::questions::{About, Question};
use super::world::{HOSTILE, SECRET, World};
use crate::support::wire::Answer;

/// Judges an answer.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn judge(world: &World, asked: &Question, answer: &Answer) -> Result<(), String> {
    let whole = [format!("{:?}", answer.head).as_bytes(), &answer.body].concat();
    if holds(&whole, SECRET) {
        return Err("a key is in it".to_owned());
    }
    if holds(&whole, HOSTILE) {
        return Err("what the upstream must not say is in it".to_owned());
    }
    let conditional = asked.fields.contains("if-none-match");
    let may_be = match (&asked.about, answer.status) {
        (About::Own, 200 | 204) => return Ok(()),
        // There may be too many connections, or requests, for any question at all.
        (_, 429 | 503) => true,
        (About::Invalid, status) => matches!(status, 400 | 404 | 405 | 413 | 414 | 431),
        (About::Own, _) => false,
        (_, 502 | 504) => true,
        (About::NoToken, 404) => {
            return match &answer.body[..] {
                br#"{"error":"Not found"}"# => Ok(()),
                b"" if asked.method == "HEAD" => Ok(()),
                _ => Err("not the upstream's 404".to_owned()),
            };
        }
        (About::Token(_) | About::Block { .. } | About::Transaction(_), 200) => {
            return match asked.method {
                "HEAD" => Ok(()),
                _ => right(world, asked, &answer.body),
            };
        }
        (About::Token(_) | About::Block { .. } | About::Transaction(_), 304) => {
            return match conditional {
                true => Ok(()),
                false => Err("304 without a condition".to_owned()),
            };
        }
        _ => false,
    };
    match may_be {
        true => refusal(asked, answer),
        false => Err(format!("{} is no answer to this", answer.status)),
    }
}

/// What every refusal says.
fn refusal(asked: &Question, answer: &Answer) -> Result<(), String> {
    let field = |name| answer.head.field(name);
    if field("content-type") != Some("application/problem+json") {
        return Err("a refusal that is no problem".to_owned());
    }
    if matches!(answer.status, 429 | 503) {
        let seconds = field("retry-after").and_then(|text| text.parse::<u64>().ok());
        if seconds.is_none_or(|seconds| seconds < 1) {
            return Err("it does not say when to come back".to_owned());
        }
    }
    if asked.method == "HEAD" {
        return Ok(());
    }
    let problem: Value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
    let error = problem["error"].as_str().unwrap_or("");
    match problem["status"] == answer.status && !error.is_empty() {
        true => Ok(()),
        false => Err("a problem that says too little".to_owned()),
    }
}

/// Whether a body is one that the sandbox could have given.
fn right(world: &World, asked: &Question, body: &[u8]) -> Result<(), String> {
    let json: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    match &asked.about {
        About::Token(ticker) => {
            let named = json["token"]["ticker"]
                .as_str()
                .unwrap_or("")
                .to_lowercase();
            if named != *ticker {
                return Err(format!("the token is {named}"));
            }
            match world.was_given(ticker, body) {
                true => Ok(()),
                false => Err("the upstream has never json that".to_owned()),
            }
        }
        About::Block { height, hash, deep } => {
            page(&asked.target, &json)?;
            for item in items(&json) {
                let place = &item["location"];
                let same_height = height.is_none_or(|height| place["block_height"] == height);
                let same_hash = hash
                    .as_ref()
                    .is_none_or(|hash| place["block_hash"] == **hash);
                if !same_height || !same_hash {
                    return Err(format!("an item of another block: {place}"));
                }
            }
            let now = || {
                let answer = world
                    .sandbox
                    .answer(&Method::GET, &asked.target, &HeaderMap::new());
                answer.body
            };
            match *deep && now() != body {
                true => Err("not what the upstream says of a deep block".to_owned()),
                false => Ok(()),
            }
        }
        About::Transaction(id) => {
            page(&asked.target, &json)?;
            match items(&json).all(|item| item["location"]["tx_id"] == **id) {
                true => Ok(()),
                false => Err("an item of another transaction".to_owned()),
            }
        }
        About::NoToken | About::Invalid | About::Own => Err("there is no 200".to_owned()),
    }
}

/// Whether an envelope is of the page that was asked for.
fn page(target: &str, json: &Value) -> Result<(), String> {
    let asked = |name: &str, default: u64| {
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(key, _)| *key == name);
        value.map_or(default, |(_, value)| value.parse().unwrap())
    };
    let (limit, offset) = (asked("limit", 20), asked("offset", 0));
    let count = items(json).count() as u64;
    let fits = json["limit"] == limit && json["offset"] == offset && count <= limit;
    match fits && json["total"].is_u64() && json["results"].is_array() {
        true => Ok(()),
        false => Err("an envelope of another page".to_owned()),
    }
}

fn items(json: &Value) -> impl Iterator<Item = &Value> {
    json["results"].as_array().into_iter().flatten()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}
