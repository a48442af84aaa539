//! The API: routes, validation, and the reference's answers.
//!
//! Called by `Sandbox` for every request, and by tests. Everything here is a function of the chain and the request.
//! Invariants: validation comes before the comparison of tags, and that before the look-up, so a matching tag gets 304
//! also for objects that do not exist; the tag is that of the tip. Keys and limits are in `gate`, faults in `faults`; the
//! other routes of the reference are 404.

use http::{HeaderMap, Method, StatusCode};

use super::answer::{Answer, matches_tag};
use super::chain::{Block, Chain, Placed};
use super::runes::{self, Operation, Site};
use super::settings::Settings;
use super::target;
use super::tokens;

const VERSION: &str = "v3.0.2 (develop:c7585f4d)";

/// The longest path parameter in UTF-16 code units, after decoding; a longer one matches no route.
const MAX_PARAMETER: usize = 100;

/// The lowest offset that does not fit in the database's integer.
const OFFSET_OVERFLOW: f64 = 9_223_372_036_854_775_808.0;

/// The API of a server. The reference has a server for each of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Both APIs on one server.
    #[default]
    Both,
    /// The ordinals API, with the BRC-20 tokens: everything under `/ordinals`.
    Ordinals,
    /// The runes API: everything under `/runes`.
    Runes,
}

impl Api {
    /// True if a server of this API has the route.
    fn has(self, route: &Route) -> bool {
        match route {
            Route::Token(_) | Route::OrdinalsStatus => self != Self::Runes,
            Route::Transaction(_) | Route::Block(_) | Route::RunesStatus => self != Self::Ordinals,
            Route::Unknown => true,
        }
    }

    /// True if a raw path is under the prefix of this API.
    pub(super) fn has_path(self, path: &str) -> bool {
        let first = path.split('/').nth(1);
        match self {
            Self::Both => true,
            Self::Ordinals => first == Some("ordinals"),
            Self::Runes => first == Some("runes"),
        }
    }
}

/// The state of the chain and of the two indexers, and the answers that follow from it.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) chain: Chain,
    max_limit: u32,
    /// Whether the token figures are those of the next block.
    pub(super) tokens_ahead: bool,
}

/// The route of a request with its path parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    RunesStatus,
    OrdinalsStatus,
    Transaction(String),
    Block(String),
    Token(String),
    Unknown,
}

impl Route {
    /// The route of a percent-encoded path on a server of this API; none if the path cannot be decoded. Paths of the
    /// other API are unknown.
    pub(super) fn of(api: Api, path: &str) -> Option<Self> {
        let decoded = target::decode_path(path)?;
        let mut segments: Vec<&str> = decoded.split('/').skip(1).collect();
        // Every route also exists without the version.
        if segments.get(1) == Some(&"v1") {
            segments.remove(1);
        }
        let parameter = |text: &str, make: fn(String) -> Self| {
            let text = target::decode_segment(text);
            match text.encode_utf16().count() <= MAX_PARAMETER {
                true => make(text.into_owned()),
                false => Self::Unknown,
            }
        };
        let route = match segments.as_slice() {
            ["runes"] | ["runes", ""] => Self::RunesStatus,
            ["ordinals"] | ["ordinals", ""] => Self::OrdinalsStatus,
            ["runes", "transactions", id, "activity"] => parameter(id, Self::Transaction),
            ["runes", "blocks", block, "activity"] => parameter(block, Self::Block),
            ["ordinals", "brc-20", "tokens", ticker] => parameter(ticker, Self::Token),
            _ => Self::Unknown,
        };
        Some(
            Some(route)
                .filter(|route| api.has(route))
                .unwrap_or(Self::Unknown),
        )
    }
}

/// The requested page. Both values are integers; a large offset may be inexact.
struct Page {
    offset: f64,
    limit: f64,
}

/// The source of a list's rows.
enum Rows<'a> {
    Block(&'a Block, Option<Operation>),
    Transaction(&'a Block, Placed),
}

impl Model {
    /// A model with these settings, of which it uses seed, start height, blocks, largest block and largest page.
    #[must_use]
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            chain: Chain::new(settings.seed, settings.start_height, settings.blocks)
                .with_largest(settings.largest_block),
            max_limit: settings.max_limit.max(1),
            tokens_ahead: false,
        }
    }

    /// The answer of a server of this API. `path_and_query` is the raw target in origin form.
    #[must_use]
    pub(super) fn answer(
        &self,
        api: Api,
        method: &Method,
        path_and_query: &str,
        headers: &HeaderMap,
    ) -> Answer {
        self.full_answer(api, method, path_and_query, headers)
            .for_method(method)
    }

    fn full_answer(&self, api: Api, method: &Method, raw: &str, headers: &HeaderMap) -> Answer {
        if target::is_unparsable(raw) {
            return Answer::unreadable();
        }
        let (path, query) = target::split(raw);
        let Some(route) = Route::of(api, path) else {
            return Answer::undecodable(raw);
        };
        if *method == Method::OPTIONS {
            return Answer::preflight(headers);
        }
        if *method != Method::GET && *method != Method::HEAD {
            return Answer::no_route(method, raw);
        }
        let tag = self.tag(&route);
        let tag = tag.as_deref();
        let matches = tag.is_some_and(|tag| matches_tag(headers, tag));
        let page = match &route {
            Route::Unknown => return Answer::no_route(method, raw),
            Route::Transaction(id) => check_tx_id(id).and_then(|()| self.page(query)),
            Route::Block(block) => check_block(block).and_then(|()| self.page(query)),
            Route::RunesStatus | Route::OrdinalsStatus | Route::Token(_) => Ok(Page {
                offset: 0.0,
                limit: 1.0,
            }),
        };
        // Only blocks have the filter, which is validated last; on transactions it is an unknown parameter.
        let valid = page.and_then(|page| match matches!(route, Route::Block(_)) {
            true => Ok((page, read_filter(query)?)),
            false => Ok((page, None)),
        });
        let (page, filter) = match valid {
            Ok(valid) => valid,
            Err(message) => return Answer::invalid(&message),
        };
        if matches {
            return Answer::not_modified(method);
        }
        match &route {
            Route::Transaction(id) => {
                let found = self.chain.find_tx(id);
                let rows = found.map(|(block, placed)| Rows::Transaction(block, placed));
                self.list(tag, &page, rows)
            }
            Route::Block(block) => {
                let found = self.find_block(block);
                self.list(tag, &page, found.map(|block| Rows::Block(block, filter)))
            }
            Route::Token(ticker) => self.token(tag, ticker),
            Route::RunesStatus => self.status(tag, "runes"),
            Route::OrdinalsStatus => self.status(tag, "ordinals"),
            Route::Unknown => Answer::no_route(method, raw),
        }
    }

    /// The answer when a database statement times out; without a tag if it is the query for the tag.
    pub(super) fn timed_out(&self, path_and_query: &str, tagged: bool) -> Answer {
        let (path, _) = target::split(path_and_query);
        let route = Route::of(Api::Both, path).unwrap_or(Route::Unknown);
        let tag = if tagged { self.tag(&route) } else { None };
        Answer::database_error(tag.as_deref(), super::answer::STATEMENT_TIMEOUT)
    }

    /// The entity tag of the route's API: the tip's hash for runes, the highest timestamp for ordinals.
    fn tag(&self, route: &Route) -> Option<String> {
        let tip = self.chain.tip()?;
        match route {
            Route::Token(_) | Route::OrdinalsStatus => Some(tip.highest_timestamp.to_string()),
            Route::Transaction(_) | Route::Block(_) | Route::RunesStatus => {
                Some(self.chain.hash(tip))
            }
            Route::Unknown => None,
        }
    }

    fn page(&self, query: &str) -> Result<Page, String> {
        let most = f64::from(self.max_limit);
        let offset = read_integer(query, "offset", 0.0, (0.0, f64::INFINITY))?;
        let limit = read_integer(query, "limit", 20.0, (1.0, most))?;
        Ok(Page { offset, limit })
    }

    fn find_block(&self, text: &str) -> Option<&Block> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            self.chain.at(text.parse().ok()?)
        } else {
            self.chain.by_hash(text)
        }
    }

    fn status(&self, tag: Option<&str>, indexer: &str) -> Answer {
        let height = self
            .chain
            .tip()
            .map(|tip| format!(",\"block_height\":{}", tip.height))
            .unwrap_or_default();
        let body = format!(
            "{{\"server_version\":\"bitcoin-indexer-{indexer}-api {VERSION}\",\"status\":\"ready\"{height}}}"
        );
        Answer::tagged(StatusCode::OK, tag, body)
    }

    fn token(&self, tag: Option<&str>, ticker: &str) -> Answer {
        if ticker.contains('\0') {
            let error = ("22021", "invalid byte sequence for encoding \"UTF8\": 0x00");
            return Answer::database_error(tag, error);
        }
        match tokens::body(&self.chain, ticker, self.tokens_ahead) {
            Some(body) => Answer::tagged(StatusCode::OK, tag, body),
            None => {
                let body = "{\"error\":\"Not found\"}".to_owned();
                Answer::tagged(StatusCode::NOT_FOUND, tag, body)
            }
        }
    }

    fn list(&self, tag: Option<&str>, page: &Page, rows: Option<Rows<'_>>) -> Answer {
        if page.offset >= OFFSET_OVERFLOW {
            let text = target::js_text(page.offset);
            let error = match text.bytes().all(|byte| byte.is_ascii_digit()) {
                true => (
                    "22003",
                    &*format!("value \"{text}\" is out of range for type bigint"),
                ),
                false => (
                    "22P02",
                    &*format!("invalid input syntax for type bigint: \"{text}\""),
                ),
            };
            return Answer::database_error(tag, error);
        }
        // Both are integers and not negative. The cast saturates at an offset past the end of every list.
        let mut writer = PageWriter {
            from: page.offset as usize,
            limit: page.limit as usize,
            ..PageWriter::default()
        };
        match rows {
            None => {}
            Some(Rows::Block(block, filter)) => {
                let hash = self.chain.hash(block);
                let placements = self.chain.placements(block);
                for placed in placements.into_iter().rev() {
                    writer.transaction(&self.chain, block, &hash, placed, filter);
                }
            }
            Some(Rows::Transaction(block, placed)) => {
                writer.transaction(&self.chain, block, &self.chain.hash(block), placed, None);
            }
        }
        // The reference counts in the query of the rows, so a page past the end has a total of zero.
        let total = if writer.written == 0 { 0 } else { writer.seen };
        let body = format!(
            "{{\"limit\":{},\"offset\":{},\"total\":{total},\"results\":[{}]}}",
            target::js_text(page.limit),
            target::js_text(page.offset),
            writer.out,
        );
        Answer {
            items: writer.seen,
            ..Answer::tagged(StatusCode::OK, tag, body)
        }
    }
}

/// Collects the items of a page and counts those of the whole list.
#[derive(Default)]
struct PageWriter {
    out: String,
    events: Vec<runes::Event>,
    from: usize,
    limit: usize,
    seen: usize,
    written: usize,
}

impl PageWriter {
    /// Adds the events of a transaction in descending order.
    fn transaction(
        &mut self,
        chain: &Chain,
        block: &Block,
        block_hash: &str,
        placed: Placed,
        filter: Option<Operation>,
    ) {
        runes::events(chain, placed, &mut self.events);
        let mut tx_id = None;
        let is_listed = |event: &&runes::Event| filter.is_none_or(|only| only == event.operation);
        for event in self.events.iter().rev().filter(is_listed) {
            let wanted = self.seen >= self.from && self.written < self.limit;
            self.seen += 1;
            if !wanted {
                continue;
            }
            if self.written > 0 {
                self.out.push(',');
            }
            self.written += 1;
            let tx_id = tx_id.get_or_insert_with(|| chain.tx_id(placed.key));
            let site = Site {
                chain,
                block,
                block_hash,
                tx_id,
                placed,
            };
            runes::push_item(&mut self.out, &site, event);
        }
    }
}

fn check_tx_id(id: &str) -> Result<(), String> {
    if id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err("params/tx_id must match pattern \"^[a-fA-F0-9]{64}$\"".to_owned())
}

fn check_block(block: &str) -> Result<(), String> {
    let height = !block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit());
    let hex = block.len() == 64 && block.bytes().all(|byte| byte.is_ascii_hexdigit());
    if height || (hex && block.starts_with("00000000")) {
        return Ok(());
    }
    Err("params/block must match pattern \"^[0-9]+$\", \
         params/block must match pattern \"^[0]{8}[a-fA-F0-9]{56}$\", \
         params/block must match a schema in anyOf"
        .to_owned())
}

fn read_integer(
    query: &str,
    name: &str,
    default: f64,
    (least, most): (f64, f64),
) -> Result<f64, String> {
    let mut values = target::values(query, name);
    let (first, second) = (values.next(), values.next());
    let number = match (first, second) {
        (None, _) => return Ok(default),
        (Some(text), None) => target::integer(&text),
        // A repeated parameter is a list, which is not an integer.
        (Some(_), Some(_)) => None,
    };
    let Some(number) = number else {
        return Err(format!("querystring/{name} must be integer"));
    };
    if number > most {
        Err(format!("querystring/{name} must be <= {most}"))
    } else if number < least {
        Err(format!("querystring/{name} must be >= {least}"))
    } else {
        Ok(number)
    }
}

fn read_filter(query: &str) -> Result<Option<Operation>, String> {
    let mut values = target::values(query, "operation_type");
    let Some(text) = values.next() else {
        return Ok(None);
    };
    let known = Operation::ALL
        .into_iter()
        .find(|operation| operation.as_str() == text);
    match (known, values.next()) {
        (Some(operation), None) => Ok(Some(operation)),
        _ => {
            let refusal = "querystring/operation_type must be equal to constant, "
                .repeat(Operation::ALL.len());
            Err(refusal + "querystring/operation_type must match a schema in anyOf")
        }
    }
}

#[cfg(test)]
mod tests;
