//! The API: which route a target means, what is wrong with it, and what the reference says to it.
//!
//! Called by the handle in `sandbox` for every request and by tests directly. Everything here is a function of the
//! chain and the request: no clock, no sockets, no counters. Invariants: validation comes before the tag, the tag
//! before the look-up (so a matching tag gets 304 for things that do not exist), and the tag is that of the tip.
//! Deliberately absent: keys, limits and faults (`gate`, `faults`), and the reference's other routes, which are 404.

use http::{HeaderMap, Method, StatusCode};

use super::answer::{Answer, names_tag};
use super::chain::{Block, Chain, Placed};
use super::runes::{self, Operation, Site};
use super::settings::Settings;
use super::target;
use super::tokens;

const VERSION: &str = "v3.0.2 (develop:c7585f4d)";

/// Longest path parameter, counted as scripts count (UTF-16 units after decoding); a longer one is no route.
const LONGEST_PARAMETER: usize = 100;

/// Offsets from here on do not fit the database's integer.
const TOO_FAR: f64 = 9_223_372_036_854_775_808.0;

/// Which of the two APIs a server has. The reference is two servers, each with one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// Both: one server stands for the two.
    #[default]
    Both,
    /// The ordinals API, with the BRC-20 tokens: everything under `/ordinals`.
    Ordinals,
    /// The runes API: everything under `/runes`.
    Runes,
}

impl Api {
    /// Whether a server with this API knows the route.
    fn knows(self, route: &Route) -> bool {
        match route {
            Route::Token(_) | Route::OrdinalsStatus => self != Self::Runes,
            Route::Transaction(_) | Route::Block(_) | Route::RunesStatus => self != Self::Ordinals,
            Route::Unknown => true,
        }
    }
}

/// The state of the chain and of the two indexers, and the answers that follow from it.
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) chain: Chain,
    max_limit: u32,
    /// The token figures are already those of the next block, while everything else is not.
    pub(super) tokens_ahead: bool,
}

/// What a target means.
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
    /// What a path that is still percent-encoded means to a server with this API, or nothing where it cannot be
    /// decoded. A path of the other API is unknown to it.
    pub(super) fn of(api: Api, path: &str) -> Option<Self> {
        let decoded = target::decode_path(path)?;
        let mut segments: Vec<&str> = decoded.split('/').skip(1).collect();
        // Every route answers without its version, too.
        if segments.get(1) == Some(&"v1") {
            segments.remove(1);
        }
        let parameter = |text: &str, make: fn(String) -> Self| {
            let text = target::decode_segment(text);
            let fits = text.encode_utf16().count() <= LONGEST_PARAMETER;
            if fits {
                make(text.into_owned())
            } else {
                Self::Unknown
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
        Some(if api.knows(&route) {
            route
        } else {
            Self::Unknown
        })
    }
}

/// A page that was asked for, after coercion; both are integers, the offset possibly beyond what is exact.
struct Page {
    offset: f64,
    limit: f64,
}

/// Where the rows of a list come from.
enum Rows<'a> {
    None,
    Block(&'a Block, Option<Operation>),
    Transaction(&'a Block, Placed),
}

impl Model {
    /// The model that these settings describe; of them only seed, heights, blocks, the largest block and the
    /// largest page concern it.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {
            chain: Chain::new(settings.seed, settings.start_height, settings.blocks)
                .with_largest(settings.largest_block),
            max_limit: settings.max_limit.max(1),
            tokens_ahead: false,
        }
    }

    /// What the reference answers, both of its servers in one. `path_and_query` is the raw target in origin form. Never
    /// fails: what is wrong with the request is the answer.
    #[must_use]
    pub fn answer(&self, method: &Method, path_and_query: &str, headers: &HeaderMap) -> Answer {
        self.answer_at(Api::Both, method, path_and_query, headers)
    }

    /// The same for a server with this API.
    #[must_use]
    pub fn answer_at(
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
        if target::is_refused_outright(raw) {
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
        let matches = tag.is_some_and(|tag| names_tag(headers, tag));
        let page = match &route {
            Route::Unknown => return Answer::no_route(method, raw),
            Route::Transaction(id) => check_tx_id(id).and_then(|()| self.page(query)),
            Route::Block(block) => check_block(block).and_then(|()| self.page(query)),
            Route::RunesStatus | Route::OrdinalsStatus | Route::Token(_) => Ok(Page {
                offset: 0.0,
                limit: 1.0,
            }),
        };
        // The filter is declared on blocks only; on transactions it is one more unknown parameter. It is checked last.
        let filter = match (&route, &page) {
            (Route::Block(_), Ok(_)) => read_filter(query),
            _ => Ok(None),
        };
        let (page, filter) = match (page, filter) {
            (Ok(page), Ok(filter)) => (page, filter),
            (Err(message), _) | (_, Err(message)) => return Answer::invalid(&message),
        };
        if matches {
            return Answer::not_modified(method);
        }
        match &route {
            Route::Transaction(id) => {
                let found = self.chain.find_tx(id);
                self.list(
                    tag,
                    &page,
                    found.map_or(Rows::None, |(block, placed)| {
                        Rows::Transaction(block, placed)
                    }),
                )
            }
            Route::Block(block) => {
                let found = self.find_block(block);
                self.list(
                    tag,
                    &page,
                    found.map_or(Rows::None, |block| Rows::Block(block, filter)),
                )
            }
            Route::Token(ticker) => self.token(tag, ticker),
            Route::RunesStatus => self.status(tag, "runes"),
            Route::OrdinalsStatus => self.status(tag, "ordinals"),
            Route::Unknown => Answer::no_route(method, raw),
        }
    }

    /// The reference's answer when the look-up runs out of time; when the one for the tag does, there is no tag.
    pub(super) fn timed_out(&self, path_and_query: &str, tagged: bool) -> Answer {
        let (path, _) = target::split(path_and_query);
        let route = Route::of(Api::Both, path).unwrap_or(Route::Unknown);
        let tag = if tagged { self.tag(&route) } else { None };
        Answer::database_error(tag.as_deref(), super::answer::STATEMENT_TIMEOUT)
    }

    /// The tag of everything under the route's indexer: runes go by the tip's hash, ordinals by the highest timestamp.
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
        let offset = read_integer(query, "offset", 0.0, 0.0, f64::INFINITY)?;
        let limit = read_integer(query, "limit", 20.0, 1.0, most)?;
        Ok(Page { offset, limit })
    }

    fn find_block(&self, text: &str) -> Option<&Block> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let digits = text.trim_start_matches('0');
            let height = if digits.is_empty() {
                0
            } else {
                digits.parse().ok()?
            };
            self.chain.at(height)
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
            None => Answer::tagged(
                StatusCode::NOT_FOUND,
                tag,
                "{\"error\":\"Not found\"}".to_owned(),
            ),
        }
    }

    fn list(&self, tag: Option<&str>, page: &Page, rows: Rows<'_>) -> Answer {
        if page.offset >= TOO_FAR {
            let text = target::script_text(page.offset);
            let plain = text.bytes().all(|byte| byte.is_ascii_digit());
            let (code, message) = if plain {
                (
                    "22003",
                    format!("value \"{text}\" is out of range for type bigint"),
                )
            } else {
                (
                    "22P02",
                    format!("invalid input syntax for type bigint: \"{text}\""),
                )
            };
            return Answer::database_error(tag, (code, &message));
        }
        let mut writer = PageWriter::new(page);
        match rows {
            Rows::None => {}
            Rows::Block(block, filter) => {
                let hash = self.chain.hash(block);
                let placements = self.chain.placements(block);
                for placed in placements.into_iter().rev() {
                    writer.transaction(&self.chain, block, &hash, placed, filter);
                }
            }
            Rows::Transaction(block, placed) => {
                writer.transaction(&self.chain, block, &self.chain.hash(block), placed, None);
            }
        }
        // The reference counts over the rows that it returns, so past the end there are none at all.
        let total = if writer.written == 0 { 0 } else { writer.seen };
        let body = format!(
            "{{\"limit\":{},\"offset\":{},\"total\":{total},\"results\":[{}]}}",
            target::script_text(page.limit),
            target::script_text(page.offset),
            writer.out,
        );
        Answer {
            items: writer.seen,
            ..Answer::tagged(StatusCode::OK, tag, body)
        }
    }
}

/// Collects the items of one page while it counts all of them.
struct PageWriter {
    out: String,
    events: Vec<runes::Event>,
    from: usize,
    limit: usize,
    seen: usize,
    written: usize,
}

impl PageWriter {
    fn new(page: &Page) -> Self {
        // Both are integers and not negative; the cast saturates, and what saturates lies past every end.
        let (from, limit) = (page.offset as usize, page.limit as usize);
        Self {
            out: String::new(),
            events: Vec::new(),
            from,
            limit,
            seen: 0,
            written: 0,
        }
    }

    /// Takes the events of a transaction in descending order.
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
        for event in self
            .events
            .iter()
            .rev()
            .filter(|event| filter.is_none_or(|only| only == event.operation))
        {
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
            runes::push_item(
                &mut self.out,
                &Site {
                    chain,
                    block,
                    block_hash,
                    tx_id,
                    placed,
                },
                event,
            );
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
    least: f64,
    most: f64,
) -> Result<f64, String> {
    let mut values = target::values(query, name);
    let (first, second) = (values.next(), values.next());
    let number = match (first, second) {
        (None, _) => return Ok(default),
        (Some(text), None) => target::integer(&text),
        // A repeated parameter is a list, and a list is no integer.
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
