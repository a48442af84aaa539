//! The API: routes, validation, and the reference's answers.
//!
//! Everything here is a function of the model and the request. Invariants: validation comes before the comparison of
//! tags, and a matching tag gets 304 also for objects that do not exist; the tag is that of the tip. The lenient spellings
//! of numbers that the reference accepts (`1e1`, `0x10`) and its answers to malformed percent-encoding are not modelled.

use std::borrow::Cow;

use http::request::Parts;
use http::{Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use url::form_urlencoded::parse;

use super::Settings;
use super::answer::{Answer, database_error, matches_tag};
use super::chain::{Block, Chain, Placed};
use super::runes::{Event, OPERATIONS, events, item};
use super::{rest, tokens};

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

/// What a path names, with its decoded parameter.
pub(super) enum Resource {
    OrdinalsStatus,
    Token(String),
    RunesStatus,
    Transaction(String),
    Block(String),
}

impl Resource {
    /// The resource of a path on a server of this API.
    pub(super) fn of(api: Api, path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments: Vec<_> = path.split('/').skip(1).collect();
        if segments.get(1) == Some(&"v1") {
            segments.remove(1);
        }
        let decoded = |segment| {
            let text = percent_decode_str(segment).decode_utf8();
            text.ok().map(Cow::into_owned)
        };
        let (resource, of) = match segments[..] {
            ["ordinals"] => (Self::OrdinalsStatus, Api::Ordinals),
            ["ordinals", "brc-20", "tokens", ticker] => {
                (Self::Token(decoded(ticker)?), Api::Ordinals)
            }
            ["runes"] => (Self::RunesStatus, Api::Runes),
            ["runes", "transactions", id, "activity"] => {
                (Self::Transaction(decoded(id)?), Api::Runes)
            }
            ["runes", "blocks", block, "activity"] => (Self::Block(decoded(block)?), Api::Runes),
            _ => return None,
        };
        (api == Api::Both || api == of).then_some(resource)
    }
}

/// The state of the chain and of the two indexers.
pub(super) struct Model {
    pub(super) chain: Chain,
    /// The chain of the token indexer, while it is another one.
    pub(super) ahead: Option<Chain>,
    /// The most items on a page.
    max_limit: u32,
}

/// A status and a body, and how many rows the reference reads for it; or what is invalid.
type Found = Result<(StatusCode, Value, usize), String>;

impl Model {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            chain: Chain::new(settings.seed, settings.blocks, settings.largest_block),
            ahead: None,
            max_limit: settings.max_limit.max(1),
        }
    }

    /// The answer to a request.
    pub(super) fn answer(&self, api: Api, request: &Parts) -> Answer {
        let (method, uri) = (&request.method, &request.uri);
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        let Some(resource) = Resource::of(api, uri.path()).filter(|_| is_read) else {
            let rest = self.rest(api, uri).filter(|_| is_read);
            return rest.unwrap_or_else(|| Answer::no_route(method, uri));
        };
        // An empty index has no tag.
        let tag = match resource {
            Resource::OrdinalsStatus | Resource::Token(_) => {
                let highest = self.chain.highest_timestamp();
                highest.map(|highest| highest.to_string())
            }
            Resource::RunesStatus | Resource::Transaction(_) | Resource::Block(_) => {
                self.chain.tip().map(|tip| self.chain.hash(tip))
            }
        };
        let (status, body, items) = match self.find(&resource, uri.query().unwrap_or("")) {
            Ok(found) => found,
            Err(message) => return Answer::invalid(&message),
        };
        let tag = tag.as_deref();
        let answer = Answer::new(status, tag, &body);
        match tag.is_some_and(|tag| matches_tag(&request.headers, tag)) {
            true => answer.not_modified(),
            false => Answer { items, ..answer },
        }
    }

    /// The answer of the rest of the API, if it has one: a page of a list, whose query is not validated, or the whole.
    fn rest(&self, api: Api, uri: &Uri) -> Option<Answer> {
        let path: Vec<_> = uri.path().split('/').skip(1).collect();
        let other = match path[0] {
            "runes" => Api::Ordinals,
            _ => Api::Runes,
        };
        let (tag, mut found) = rest::find(&self.chain, &path).filter(|_| api != other)?;
        if let Value::Array(all) = found {
            let query = uri.query().unwrap_or("");
            let number = |name, default| integer(query, name, default, (0, 60)).unwrap_or(default);
            let (offset, limit, total) = (number("offset", 0), number("limit", 20), all.len());
            let results = all.into_iter().skip(offset as usize).take(limit as usize);
            let results: Vec<_> = results.collect();
            found = json!({ "limit": limit as u64, "offset": offset as u64, "total": total, "results": results });
        }
        Some(Answer::new(StatusCode::OK, Some(&tag), &found))
    }

    fn find(&self, resource: &Resource, query: &str) -> Found {
        let chain = &self.chain;
        match resource {
            Resource::OrdinalsStatus => Ok(self.status("ordinals")),
            Resource::RunesStatus => Ok(self.status("runes")),
            Resource::Token(ticker) => {
                let details = tokens::details(self.ahead.as_ref().unwrap_or(chain), ticker);
                Ok(match details {
                    Some(details) => (StatusCode::OK, details, 0),
                    None => (StatusCode::NOT_FOUND, json!({ "error": "Not found" }), 0),
                })
            }
            Resource::Transaction(id) => {
                if !is_hash(id) {
                    return Err("params/tx_id must match pattern \"^[a-fA-F0-9]{64}$\"".to_owned());
                }
                let found = chain.find_tx(id);
                let rows = found.map(|(block, placed)| (block, vec![placed]));
                self.page(query, rows, None)
            }
            Resource::Block(name) => {
                let is_height = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
                let block = if is_height {
                    name.parse().ok().and_then(|height| chain.at(height))
                } else if is_hash(name) && name.starts_with("00000000") {
                    chain.by_hash(name)
                } else {
                    return Err("params/block must match pattern \"^[0-9]+$\", \
                                params/block must match pattern \"^[0]{8}[a-fA-F0-9]{56}$\", \
                                params/block must match a schema in anyOf"
                        .to_owned());
                };
                let filter = operation(query)?;
                let rows = block.map(|block| (block, chain.transactions(block)));
                self.page(query, rows, filter)
            }
        }
    }

    fn status(&self, indexer: &str) -> (StatusCode, Value, usize) {
        let version = format!("bitcoin-indexer-{indexer}-api v3.0.2 (develop:c7585f4d)");
        let mut body = json!({ "server_version": version, "status": "ready" });
        if let Some(tip) = self.chain.tip() {
            body["block_height"] = tip.height.into();
        }
        (StatusCode::OK, body, 0)
    }

    /// The requested page of the events of a block's transactions, the last event first.
    fn page(
        &self,
        query: &str,
        rows: Option<(&Block, Vec<Placed>)>,
        filter: Option<&str>,
    ) -> Found {
        let offset = integer(query, "offset", 0, (0, i128::MAX))?;
        let limit = integer(query, "limit", 20, (1, self.max_limit.into()))?;
        let Ok(offset) = i64::try_from(offset) else {
            let message = format!("value \"{offset}\" is out of range for type bigint");
            let body = database_error("22003", &message);
            return Ok((StatusCode::INTERNAL_SERVER_ERROR, body, 0));
        };
        let (mut results, mut items) = (Vec::new(), 0);
        if let Some((block, placed)) = rows {
            for placed in placed.into_iter().rev() {
                let events = events(&self.chain, placed.0);
                let is_listed = |event: &&Event| filter.is_none_or(|only| only == event.operation);
                for event in events.iter().rev().filter(is_listed) {
                    if items >= offset && (results.len() as i128) < limit {
                        results.push(item(&self.chain, block, placed, event));
                    }
                    items += 1;
                }
            }
        }
        // The reference counts in the query of the rows, so a page past the end has a total of zero.
        let total = if results.is_empty() { 0 } else { items };
        let limit = limit as u64;
        let body = json!({ "limit": limit, "offset": offset, "total": total, "results": results });
        Ok((StatusCode::OK, body, items as usize))
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The values of a query parameter, decoded.
fn values<'q>(query: &'q str, name: &str) -> Vec<Cow<'q, str>> {
    let named = parse(query.as_bytes()).filter(|(own, _)| own == name);
    named.map(|(_, value)| value).collect()
}

fn integer(
    query: &str,
    name: &str,
    default: i128,
    (least, most): (i128, i128),
) -> Result<i128, String> {
    let number = match &values(query, name)[..] {
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
    let known = OPERATIONS.into_iter().find(|known| values == [*known]);
    match values.is_empty() || known.is_some() {
        true => Ok(known),
        false => {
            let each = "querystring/operation_type must be equal to constant, ".repeat(5);
            Err(each + "querystring/operation_type must match a schema in anyOf")
        }
    }
}

#[cfg(test)]
mod tests;
