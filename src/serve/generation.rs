//! The making of gateways: the first, and those that come after one by reload.
//!
//! A new gateway takes over from the one before whatever means the same under
//! the new configuration: what is stored, what is being fetched, what is known
//! of the chain, what clients and keys have spent, connections to the upstream,
//! counts. So requests that are still under way on the old one and those on the
//! new one hold to one budget, one limit and one memory.
//!
//! What is stored goes by its route's number. A route keeps its number where
//! what was stored under it is what would be stored now; any other gets one that
//! no route has had, so that nothing is ever answered with another meaning.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::Bytes;

use super::{StartError, threads};
use crate::access_log::AccessLog;
use crate::cache::Cache;
use crate::cache::policy::Mode;
use crate::cache::targeted::TargetList;
use crate::chain::Chain;
use crate::client_tokens::ClientTokens;
use crate::clock::Clock;
use crate::compress::{Compression, Compressor};
use crate::config::Config;
use crate::fill::{Fill, LowerTiers, PlainSettings, StoredNames};
use crate::gateway::{ClientPolicy, Gateway, Records};
use crate::limit::Limit;
use crate::meter::Meter;
use crate::openapi;
use crate::probe;
use crate::reload::ReloadReport;
use crate::respond::{Document, DocumentText, Responder};
use crate::route::{Route, RouteTable};
use crate::shared::Shared;
use crate::shared::purges::Generation;
use crate::state::State;
use crate::trace::tracer::Tracer;
use crate::upstream::keys::Budgets;
use crate::upstream::{ProviderKeys, UpstreamClient, Upstreams};

/// What tells this process from others; it survives reloads.
struct Identity {
    /// Makes request ids and boundaries.
    seed: u64,
    /// Its name in the `via` of requests. It is public, and says nothing of the
    /// seed.
    pseudonym: Arc<str>,
    /// What outlives it.
    state: State,
    /// Records traces, if they are exported.
    tracer: Option<Arc<Tracer>>,
}

impl Identity {
    fn new(state: State) -> Result<Self, StartError> {
        Ok(Self {
            seed: random()?,
            pseudonym: format!("ordgate-{:016x}", random()?).into(),
            state,
            tracer: None,
        })
    }

    /// That of the gateway after another.
    fn after(before: &Gateway) -> Self {
        Self {
            seed: before.seed,
            pseudonym: before.fill.plain.pseudonym.clone(),
            state: before.state.clone(),
            tracer: before.records.tracer.clone(),
        }
    }
}

fn random() -> Result<u64, StartError> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_unspecified| StartError::System {
            what: "randomness",
            error: io::Error::other("no source of it"),
        })?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Builds the gateway and its parts from the settings.
///
/// # Errors
/// Where the upstream cannot be called or the system has no randomness.
pub fn gateway(
    mut config: Config,
    keys: &ProviderKeys,
    clock: Clock,
    stand_in: Option<&Arc<dyn UpstreamClient>>,
) -> Result<Arc<Gateway>, StartError> {
    config.fit_probes(keys);
    let state = match config.state() {
        Some(settings) => State::open(&settings, &clock)?,
        None => State::default(),
    };
    let stored = match state.answers.is_on() {
        true => threads::block_on(state.answers.generation())?,
        false => None,
    };
    let stored = stored.map(|(life, number)| Generation { life, number });
    let shared = config.file.shared.as_ref();
    let shared = shared.map(|shared| Shared::new(shared.settings(), stored, &clock));
    let mut identity = Identity::new(state)?;
    let chain = Arc::new(Chain::new(&config.chain));
    let cache = Cache::new(*config.file.cache.max_bytes, chain.clone(), clock.clone());
    let replicas = shared.clone();
    let budgets = Arc::new(Budgets::new(replicas, identity.state.spent.clone()));
    let upstreams = Upstreams::new(&config.upstreams, keys, None, &budgets, &clock, stand_in)?;
    upstreams.take_over();
    let recorded = config.collector.as_ref().map(|_| config.traces());
    identity.tracer = recorded.map(|traces| Arc::new(Tracer::new(traces, clock.clone())));
    let clients = client_policy(None, &config, &clock);
    let routes = Arc::new(config.routes.clone());
    let lower = LowerTiers {
        answers: identity.state.answers.clone(),
        shared: shared.clone(),
        fill_wait: fill_wait(&config),
        names: StoredNames::of(&routes, &upstreams, &chain),
        run: random()?,
        began: clock.now(),
        stale_wait: *config.file.cache.stale_wait,
    };
    let fill = Fill::new(
        None,
        routes.clone(),
        cache.clone(),
        (chain, upstreams),
        clock,
        lower,
        plain(&config, &identity),
    );
    if fill.lower.answers.is_on() {
        threads::block_on(fill.seed())?;
    }
    let meter = Meter::new(routes.routes().len());
    let compressor = Arc::default();
    Ok(assemble(config, clients, fill, meter, compressor, identity))
}

/// Makes the gateway that comes after another, and says what became of its
/// routes. Nothing has changed where it fails; where it does not, the keys are
/// already those of the new one, which must serve.
///
/// # Errors
/// Why there can be none.
pub(super) fn after(
    before: &Gateway,
    mut config: Config,
    keys: &ProviderKeys,
) -> Result<(Arc<Gateway>, ReloadReport), String> {
    config.fit_probes(keys);
    let known = &before.fill.upstreams;
    let upstreams = Upstreams::new(
        &config.upstreams,
        keys,
        Some(known),
        known.budgets(),
        &before.clock,
        None,
    );
    let upstreams = upstreams.map_err(|error| error.to_string())?;
    let chain = Arc::new(Chain::after(&before.fill.chain, &config.chain));
    let mut done = ReloadReport::default();
    let keeps = |route: &Route, old: &Route| {
        let alike = match route.cache.mode {
            Mode::Chain => {
                let tip = route.cache.tip;
                tip == old.cache.tip && chain.accepts_stamps_of(&before.fill.chain, tip)
            }
            Mode::Respect => {
                before.fill.plain.targeted_fields == TargetList::new(config.targeted.clone())
            }
            Mode::Off | Mode::Override => true,
        };
        let name = upstreams.get(route.upstream.number).name();
        let of_one_upstream = name == known.get(old.upstream.number).name();
        of_one_upstream
            && upstreams.stays(route.upstream.number, known)
            && alike
            && route.has_same_meaning(old)
    };
    let numbers = numbers(&config.routes, &before.routes, keeps, &mut done)?;
    done.notes.extend(moved(&upstreams, known));
    // From here on nothing fails.
    let given = numbers.iter().map(|number| usize::from(*number) + 1).max();
    let given = given.unwrap_or(0).max(before.routes.assigned());
    config.routes.renumber(&numbers, given);
    upstreams.take_over();
    let clients = client_policy(Some(&before.clients), &config, &before.clock);
    let routes = Arc::new(config.routes.clone());
    let before_lower = &before.fill.lower;
    let lower = before_lower.after(
        StoredNames::of(&routes, &upstreams, &chain),
        *config.file.cache.stale_wait,
        fill_wait(&config),
    );
    let identity = Identity::after(before);
    let fill = Fill::new(
        Some(&before.fill),
        routes.clone(),
        before.cache.after(chain.clone()),
        (chain, upstreams),
        before.clock.clone(),
        lower,
        plain(&config, &identity),
    );
    let names = before.routes.routes();
    let places = routes.routes().iter();
    let places = places.map(|route| names.iter().position(|old| old.name == route.name));
    let meter = before.meter().next(places);
    if let (Some(shared), Some(settings)) = (&before_lower.shared, &config.file.shared) {
        let settings = settings.settings();
        shared.reconfigure(settings.timeout, settings.fill_wait);
    }
    let compressor = before.compressor.clone();
    let gateway = assemble(config, clients, fill, meter, compressor, identity);
    Ok((gateway, done))
}

/// Says which upstreams are other servers than before.
fn moved(upstreams: &Upstreams, before: &Upstreams) -> impl Iterator<Item = String> {
    let moved = upstreams.iter().filter(|(number, upstream)| {
        before.named(upstream.name()).is_some() && !upstreams.stays(*number, before)
    });
    moved.map(|(_, upstream)| {
        let key = upstream.settings.key("url");
        format!("{key} has changed: responses stored from the previous upstream are not served")
    })
}

/// Whether replicas share an engine.
fn has_engine(config: &Config) -> bool {
    let settings = config.file.shared.as_ref();
    settings.is_some_and(|settings| settings.engine.is_some())
}

/// How long a response waits while another replica fetches it.
fn fill_wait(config: &Config) -> Duration {
    let settings = config.file.shared.as_ref().filter(|_| has_engine(config));
    settings.map_or(Duration::ZERO, |shared| shared.settings().fill_wait)
}

/// The numbers of the routes of a table that comes after another.
fn numbers(
    routes: &RouteTable,
    before: &RouteTable,
    keeps: impl Fn(&Route, &Route) -> bool,
    done: &mut ReloadReport,
) -> Result<Vec<u16>, String> {
    let mut next = before.assigned();
    let mut numbers = Vec::new();
    for route in routes.routes() {
        let mut old = before.routes().iter();
        let old = old.find(|old| old.name == route.name && keeps(route, old));
        let number = match old {
            Some(old) => {
                done.kept.push(route.name.to_string());
                old.number
            }
            None => {
                done.begun.push(route.name.to_string());
                let number = u16::try_from(next).map_err(|_out_of_range| {
                    "reloads have changed so many routes that there are no route numbers left: ordgate needs a restart".to_owned()
                })?;
                next += 1;
                number
            }
        };
        numbers.push(number);
    }
    let is_there = |old: &Route| routes.routes().iter().any(|route| route.name == old.name);
    let gone = before.routes().iter().filter(|old| !is_there(old));
    done.gone.extend(gone.map(|old| old.name.to_string()));
    Ok(numbers)
}

/// How clients are identified and limited, after the policy before.
fn client_policy(before: Option<&ClientPolicy>, config: &Config, clock: &Clock) -> ClientPolicy {
    let none = ClientTokens::default();
    let tokens = before.map_or(&none, |before| &before.tokens);
    let limit = before.and_then(|before| before.limit.as_ref());
    ClientPolicy {
        trust: config.trust.clone(),
        limit: Limit::after(limit, &config.limit, clock),
        tokens: tokens.next(&config.tokens, &config.limit, clock),
    }
}

fn responder(
    config: &Config,
    clients: &ClientPolicy,
    cache: &Cache,
    compressor: &Arc<Compressor>,
) -> Arc<Responder> {
    let policy = clients.limit.as_ref().map(|limit| limit.requests.policy());
    let compression = Compression::new(&config.compression(), cache.store(), compressor);
    let responder = Responder::new(&config.respond(), policy, compression);
    Arc::new(responder.require_token(clients.tokens.is_required))
}

/// What plain routes need.
fn plain(config: &Config, identity: &Identity) -> PlainSettings {
    PlainSettings {
        trust: config.trust.clone(),
        targeted_fields: TargetList::new(config.targeted.clone()),
        pseudonym: identity.pseudonym.clone(),
    }
}

fn assemble(
    config: Config,
    clients: ClientPolicy,
    fill: Arc<Fill>,
    meter: Meter,
    compressor: Arc<Compressor>,
    identity: Identity,
) -> Arc<Gateway> {
    if let Some(tracer) = &identity.tracer {
        tracer.set(config.traces());
    }
    let document = openapi::document(&config.routes, clients.tokens.is_required);
    let text = DocumentText::of(Bytes::from(document.to_string()));
    let mut documents = openapi::page::files();
    documents.push(Document::new(openapi::PATH, "application/json", text));
    let respond = responder(&config, &clients, &fill.cache, &compressor);
    let routes = fill.routes.routes().iter();
    let names = routes.map(|route| (route.number, &*route.name));
    for (_, upstream) in fill.upstreams.iter() {
        upstream.counters.name_routes(names.clone());
    }
    let access_log = config.access_log();
    let stale_wait = *config.file.cache.stale_wait;
    let gateway = Arc::new(Gateway {
        clients,
        stale_wait,
        records: Records {
            meter,
            access_log: AccessLog::new(&access_log),
            tracer: identity.tracer,
        },
        documents,
        cache: fill.cache.clone(),
        upstreams: fill.upstreams.clone(),
        responder: respond,
        compressor,
        routes: fill.routes.clone(),
        clock: fill.clock.clone(),
        state: identity.state,
        seed: identity.seed,
        fill,
    });
    for (number, upstream) in gateway.upstreams.iter() {
        let tips = gateway.tips_of(number);
        let (probes, patience) = probe::budget(&gateway.fill, number, &tips);
        upstream.set_tips(status_paths(&gateway, &tips), probes, patience);
    }
    gateway.upstreams.share_budgets();
    gateway
}

/// The status paths of the tips that an upstream is asked for; where there is
/// none, all that are known.
fn status_paths(gateway: &Gateway, tips: &[u16]) -> Vec<Box<str>> {
    let path = |tip: &u16| gateway.fill.chain.source(*tip)?.path.clone();
    let used: Vec<_> = tips.iter().filter_map(path).collect();
    match used.is_empty() {
        true => {
            let sources = (0..).map_while(|tip| gateway.fill.chain.source(tip));
            sources.filter_map(|source| source.path.clone()).collect()
        }
        false => used,
    }
}
