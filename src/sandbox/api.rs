//! The API: routes, validation, and the reference's answers.
//!
//! Everything here is a function of the model and the request. A route is a row of [`ROUTES`] with the function that
//! answers it. Invariants: validation comes before the comparison of tags, and a matching tag gets 304 also for objects
//! that do not exist; the tag is that of the tip. The lenient spellings of numbers that the reference accepts (`1e1`,
//! `0x10`) and its answers to malformed percent-encoding are not modelled.

use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::json;

use super::answer::{Answer, matches_tag};
use super::chain::{Block, Chain, Placed};
use super::provider::Counts;
use super::runes::{Event, OPERATIONS, events, item};
use super::tokens;

/// The API of a server. The reference has a server for each of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Both APIs on one server.
    Both,
    /// The ordinals API, with the BRC-20 tokens: everything under `/ordinals`.
    Ordinals,
    /// The runes API: everything under `/runes`.
    Runes,
}

/// The state of the chain and of the two indexers.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) chain: Chain,
    /// The most items on a page.
    pub(super) max_limit: u32,
    /// Whether the figures of tokens are those of the next block.
    pub(super) tokens_ahead: bool,
}

/// A route of one of the two APIs.
pub(super) struct Route {
    api: Api,
    /// Its path without the version, which may be left out. `{}` is the parameter.
    path: &'static str,
    /// Where its requests are counted.
    pub(super) counter: fn(&mut Counts) -> &mut u64,
    /// The answer to a valid request, or what is invalid.
    answer: fn(&Model, &Asked<'_>) -> Result<Answer, String>,
}

/// A request as a server has read it.
pub(super) struct Received<'a> {
    /// What the server serves.
    pub(super) api: Api,
    pub(super) method: &'a Method,
    /// The path with its query.
    pub(super) target: &'a str,
    pub(super) headers: &'a HeaderMap,
}

/// A request for a route.
struct Asked<'a> {
    /// The decoded parameter of the path.
    parameter: String,
    query: &'a str,
    /// The entity tag of its answer.
    tag: Option<&'a str>,
}

const ROUTES: [Route; 5] = [
    Route {
        api: Api::Runes,
        path: "/runes",
        counter: |counts| &mut counts.status,
        answer: |model, asked| Ok(status(model, asked, "runes")),
    },
    Route {
        api: Api::Runes,
        path: "/runes/transactions/{}/activity",
        counter: |counts| &mut counts.transaction,
        answer: transaction_activity,
    },
    Route {
        api: Api::Runes,
        path: "/runes/blocks/{}/activity",
        counter: |counts| &mut counts.block,
        answer: block_activity,
    },
    Route {
        api: Api::Ordinals,
        path: "/ordinals",
        counter: |counts| &mut counts.status,
        answer: |model, asked| Ok(status(model, asked, "ordinals")),
    },
    Route {
        api: Api::Ordinals,
        path: "/ordinals/brc-20/tokens/{}",
        counter: |counts| &mut counts.token,
        answer: token,
    },
];

/// The route of a path on a server of this API, and its decoded parameter.
pub(super) fn route(api: Api, path: &str) -> Option<(&'static Route, String)> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments: Vec<_> = path.split('/').collect();
    if segments.get(2) == Some(&"v1") {
        segments.remove(2);
    }
    let here = |route: &&Route| api == Api::Both || api == route.api;
    ROUTES.iter().filter(here).find_map(|route| {
        let parts: Vec<_> = route.path.split('/').collect();
        let mut parameter = String::new();
        for (part, segment) in parts.iter().zip(&segments) {
            match *part {
                "{}" => parameter = percent_decode_str(segment).decode_utf8().ok()?.into_owned(),
                _ if part != segment => return None,
                _ => {}
            }
        }
        (parts.len() == segments.len()).then_some((route, parameter))
    })
}

impl Model {
    /// The answer to a request.
    pub(super) fn answer(&self, request: &Received<'_>) -> Answer {
        let Received {
            api,
            method,
            target,
            headers,
        } = *request;
        if *method == Method::OPTIONS {
            return Answer::preflight(headers);
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let found = route(api, path).filter(|_| matches!(*method, Method::GET | Method::HEAD));
        let Some((route, parameter)) = found else {
            return Answer::no_route(method, target);
        };
        let tag = self.tag(route.api);
        let asked = Asked {
            parameter,
            query,
            tag: tag.as_deref(),
        };
        match (route.answer)(self, &asked) {
            Err(message) => Answer::invalid(&message),
            Ok(answer) if asked.tag.is_some_and(|tag| matches_tag(headers, tag)) => {
                answer.not_modified()
            }
            Ok(answer) => answer,
        }
    }

    /// The entity tag of an API: the tip's hash for runes, the highest timestamp for ordinals. An empty index has none.
    fn tag(&self, api: Api) -> Option<String> {
        let tip = self.chain.tip()?;
        Some(match api {
            Api::Runes => self.chain.hash(tip),
            Api::Ordinals | Api::Both => tip.highest_timestamp.to_string(),
        })
    }
}

fn status(model: &Model, asked: &Asked<'_>, indexer: &str) -> Answer {
    let version = format!("bitcoin-indexer-{indexer}-api v3.0.2 (develop:c7585f4d)");
    let mut body = json!({ "server_version": version, "status": "ready" });
    if let Some(tip) = model.chain.tip() {
        body["block_height"] = tip.height.into();
    }
    Answer::new(StatusCode::OK, asked.tag, &body)
}

fn token(model: &Model, asked: &Asked<'_>) -> Result<Answer, String> {
    let details = tokens::details(&model.chain, &asked.parameter, model.tokens_ahead);
    Ok(match details {
        Some(details) => Answer::new(StatusCode::OK, asked.tag, &details),
        None => {
            let body = json!({ "error": "Not found" });
            Answer::new(StatusCode::NOT_FOUND, asked.tag, &body)
        }
    })
}

fn transaction_activity(model: &Model, asked: &Asked<'_>) -> Result<Answer, String> {
    let id = &asked.parameter;
    if id.len() != 64 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("params/tx_id must match pattern \"^[a-fA-F0-9]{64}$\"".to_owned());
    }
    let page = Page::of(model, asked)?;
    let found = model.chain.find_tx(id);
    let rows = found.map(|(block, placed)| (block, vec![placed]));
    Ok(page.answer(model, asked, rows, None))
}

fn block_activity(model: &Model, asked: &Asked<'_>) -> Result<Answer, String> {
    let (chain, name) = (&model.chain, asked.parameter.as_str());
    let is_height = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let is_hex = name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let block = match is_height {
        true => name.parse().ok().and_then(|height| chain.at(height)),
        false if is_hex && name.starts_with("00000000") => chain.by_hash(name),
        false => {
            return Err("params/block must match pattern \"^[0-9]+$\", \
                        params/block must match pattern \"^[0]{8}[a-fA-F0-9]{56}$\", \
                        params/block must match a schema in anyOf"
                .to_owned());
        }
    };
    let page = Page::of(model, asked)?;
    let filter = operation(asked.query)?;
    let rows = block.map(|block| (block, chain.placements(block)));
    Ok(page.answer(model, asked, rows, filter))
}

/// The requested page of a list.
struct Page {
    limit: i128,
    offset: i128,
}

impl Page {
    fn of(model: &Model, asked: &Asked<'_>) -> Result<Self, String> {
        let offset = integer(asked.query, "offset", 0, (0, i128::MAX))?;
        let limit = integer(asked.query, "limit", 20, (1, model.max_limit.into()))?;
        Ok(Self { limit, offset })
    }

    /// The page of the events of a block's transactions, the last event first.
    fn answer(
        &self,
        model: &Model,
        asked: &Asked<'_>,
        rows: Option<(&Block, Vec<Placed>)>,
        filter: Option<&str>,
    ) -> Answer {
        let Ok(offset) = i64::try_from(self.offset) else {
            let message = format!("value \"{}\" is out of range for type bigint", self.offset);
            return Answer::database_error(asked.tag, "22003", &message);
        };
        let rows = rows.into_iter().flat_map(|(block, placements)| {
            let last_first = placements.into_iter().rev();
            last_first.map(move |placed| (block, placed))
        });
        let (mut results, mut items) = (Vec::new(), 0);
        for (block, placed) in rows {
            let events = events(&model.chain, placed);
            let is_listed = |event: &&Event| filter.is_none_or(|only| only == event.operation);
            for event in events.iter().rev().filter(is_listed) {
                if items >= offset && (results.len() as i128) < self.limit {
                    results.push(item(&model.chain, block, placed, event));
                }
                items += 1;
            }
        }
        // The reference counts in the query of the rows, so a page past the end has a total of zero.
        let total = if results.is_empty() { 0 } else { items };
        let limit = self.limit as u64;
        let body = json!({ "limit": limit, "offset": offset, "total": total, "results": results });
        Answer {
            items: items as usize,
            ..Answer::new(StatusCode::OK, asked.tag, &body)
        }
    }
}

/// The values of a query parameter, decoded.
pub(super) fn values(query: &str, name: &str) -> Vec<String> {
    let decoded = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    let pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let named = pairs.filter(|(key, _)| decoded(key) == name);
    named.map(|(_, value)| decoded(value)).collect()
}

fn integer(
    query: &str,
    name: &str,
    default: i128,
    (least, most): (i128, i128),
) -> Result<i128, String> {
    let number = match values(query, name).as_slice() {
        [] => return Ok(default),
        [text] => text.parse::<i128>().ok(),
        // A repeated parameter is a list, which is not an integer.
        _ => None,
    };
    match number {
        None => Err(format!("querystring/{name} must be integer")),
        Some(number) if number > most => Err(format!("querystring/{name} must be <= {most}")),
        Some(number) if number < least => Err(format!("querystring/{name} must be >= {least}")),
        Some(number) => Ok(number),
    }
}

fn operation(query: &str) -> Result<Option<&'static str>, String> {
    let values = values(query, "operation_type");
    let known = |text: &String| OPERATIONS.into_iter().find(|known| known == text);
    match values.as_slice() {
        [] => Ok(None),
        [text] if known(text).is_some() => Ok(known(text)),
        _ => {
            let each = "querystring/operation_type must be equal to constant, ".repeat(5);
            Err(each + "querystring/operation_type must match a schema in anyOf")
        }
    }
}

#[cfg(test)]
mod tests;
