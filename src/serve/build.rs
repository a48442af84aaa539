//! Makes gateways: the first, and those that come after one by reload.
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

use std::sync::Arc;

use bytes::Bytes;

use super::{StartError, threads};
use crate::access_log::AccessLog;
use crate::cache::Cache;
use crate::cache::policy::Mode;
use crate::chain::Chain;
use crate::client_tokens::ClientTokens;
use crate::clock::{Clock, Moment};
use crate::compress::Compressor;
use crate::config::Config;
use crate::fill::{Fill, LowerTiers, StoredNames};
use crate::gateway::{ClientPolicy, Gateway, Records};
use crate::limit::Limit;
use crate::meter::Meter;
use crate::openapi;
use crate::probe;
use crate::respond::{Document, DocumentText, Responder};
use crate::route::Route;
use crate::shared::Shared;
use crate::shared::purges::Generation;
use crate::state::State;
use crate::upstream::keys::Budgets;
use crate::upstream::{ProviderKeys, UpstreamClient, Upstreams};

/// What the process has for as long as it runs, and all its gateways use.
pub struct Process {
    clock: Clock,
    began: Moment,
    /// Makes request ids and boundaries.
    seed: u64,
    /// Tells this run from others, in what is stored.
    run: u64,
    /// Its name in the `via` of requests. It is public, and says nothing of the
    /// seed.
    pseudonym: Arc<str>,
    /// What outlives it.
    state: State,
    /// What replicas share, if there are several.
    shared: Option<Arc<Shared>>,
    /// What the provider's keys have spent.
    budgets: Arc<Budgets>,
}

impl Process {
    /// Opens the state directory, if there is one.
    ///
    /// # Errors
    /// Where it cannot be used.
    pub fn new(config: &Config, clock: Clock) -> Result<Self, StartError> {
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
        let shared = shared.map(|shared| Shared::new(shared.clone(), stored, &clock));
        Ok(Self {
            began: clock.now(),
            // None is a secret. aws-lc's generator is not used: to seed it takes tens of
            // milliseconds, and a start without TLS needs it for nothing else.
            seed: fastrand::u64(..),
            run: fastrand::u64(..),
            pseudonym: format!("ordgate-{:016x}", fastrand::u64(..)).into(),
            budgets: Arc::new(Budgets::new(shared.clone(), state.spent.clone())),
            state,
            shared,
            clock,
        })
    }
}

/// Makes a gateway: the first, or the one that comes after another by reload. Says which
/// routes have no use for what that one has stored. Where it fails, nothing has changed; where it does not,
/// keys and budgets are already those of the new one, which must serve. `substitute` is
/// called in place of the upstreams.
///
/// # Errors
/// Where the upstream cannot be called, or there are no more numbers for routes.
pub fn build(
    mut config: Config,
    keys: &ProviderKeys,
    process: &Process,
    before: Option<&Gateway>,
    substitute: Option<&Arc<dyn UpstreamClient>>,
) -> Result<(Arc<Gateway>, Vec<String>), StartError> {
    config.fit_probes(keys);
    let chain = Arc::new(match before {
        Some(before) => Chain::after(&before.fill.chain, &config.chain),
        None => Chain::new(&config.chain),
    });
    let upstreams = Upstreams::new(
        &config.upstreams,
        keys,
        before.map(|before| &*before.upstreams),
        &process.budgets,
        &process.clock,
        substitute,
    )?;
    let notes = match before {
        Some(before) => number_routes(&mut config, before, &chain, &upstreams)?,
        None => Vec::new(),
    };
    let cache = match before {
        Some(before) => before.cache.after(chain.clone()),
        None => {
            let bytes = config.file.cache.max_bytes;
            Cache::new(bytes, chain.clone())
        }
    };
    if let (Some(shared), Some(settings)) = (&process.shared, &config.file.shared) {
        shared.set_timeout(settings.timeout);
    }
    let fill = Fill::new(
        before.map(|before| &*before.fill),
        Arc::new(config.routes.clone()),
        cache,
        (chain.clone(), upstreams.clone()),
        process.clock.clone(),
        LowerTiers {
            answers: process.state.answers.clone(),
            shared: process.shared.clone(),
            names: StoredNames::of(&config.routes, &upstreams, &chain),
            run: process.run,
            began: process.began,
            stale_wait: config.file.cache.stale_wait,
        },
        (config.trust.clone(), process.pseudonym.clone()),
    );
    if before.is_none() && fill.lower.answers.is_on() {
        threads::block_on(fill.seed())?;
    }
    let clients = client_policy(before, &config, &process.clock);
    let meter = meter(before, &config);
    let compressor = before.map_or_else(
        || Compressor::new(fill.cache.store()),
        |before| before.compressor.clone(),
    );
    let gateway = assemble(&config, clients, fill, (meter, compressor), process);
    Ok((gateway, notes))
}

/// Numbers the routes of a configuration that comes after a gateway, and says which have no use
/// for what was stored under their names.
fn number_routes(
    config: &mut Config,
    before: &Gateway,
    chain: &Chain,
    upstreams: &Upstreams,
) -> Result<Vec<String>, StartError> {
    let known = &before.upstreams;
    let keeps = |route: &Route, old: &Route| {
        let (tip, number) = (route.cache.tip, route.upstream.number);
        let is_of_chain = route.cache.mode == Mode::Chain;
        let has_its_tip =
            || tip == old.cache.tip && chain.accepts_stamps_of(&before.fill.chain, tip);
        route.name == old.name
            && route.meaning() == old.meaning()
            && upstreams.get(number).name() == known.get(old.upstream.number).name()
            && upstreams.stays(number, known)
            && (!is_of_chain || has_its_tip())
    };
    let old_routes = before.routes.routes();
    let kept = |route: &Route| {
        let old = old_routes.iter().find(|old| keeps(route, old));
        old.map(|old| old.number)
    };
    let numbered = config.routes.renumber(&before.routes, kept);
    numbered.ok_or(StartError::RouteNumbers)?;
    let changed = config.routes.routes().iter().filter(|route| {
        old_routes.iter().any(|old| old.name == route.name)
            && before.routes.get(route.number).is_none()
    });
    let note = |route: &Route| {
        format!(
            "the route \"{}\", its tip or its upstream is another one: what was stored for it is not served",
            route.name
        )
    };
    Ok(changed.map(note).collect())
}

/// How clients are identified and limited.
fn client_policy(before: Option<&Gateway>, config: &Config, clock: &Clock) -> ClientPolicy {
    let none = ClientTokens::default();
    let tokens = before.map_or(&none, |before| &before.clients.tokens);
    ClientPolicy {
        trust: config.trust.clone(),
        limit: Limit::after(before.and_then(Gateway::limit), &config.file.limit, clock),
        tokens: tokens.next(
            config.tokens.as_deref(),
            config.file.clients.require_token,
            &config.file.limit,
            clock,
        ),
    }
}

/// Counts requests. A route continues the counts of the one of its name.
fn meter(before: Option<&Gateway>, config: &Config) -> Meter {
    let routes = config.routes.routes();
    let Some(before) = before else {
        return Meter::new(routes.len());
    };
    let old = before.routes.routes();
    let place = |route: &Route| old.iter().position(|old| old.name == route.name);
    before.meter().next(routes.iter().map(place))
}

fn assemble(
    config: &Config,
    clients: ClientPolicy,
    fill: Arc<Fill>,
    (meter, compressor): (Meter, Arc<Compressor>),
    process: &Process,
) -> Arc<Gateway> {
    let document = openapi::document(&config.routes, clients.tokens.is_required);
    let text = DocumentText::of(Bytes::from(document.to_string()));
    let mut documents = openapi::page::files();
    documents.push(Document::new(openapi::PATH, "application/json", text));
    let names = fill.routes.routes().iter();
    let names = names.map(|route| (route.number, &*route.name));
    for (_, upstream) in fill.upstreams.iter() {
        upstream.counters.name_routes(names.clone());
    }
    let limit = clients.limit.as_ref();
    let policy = limit.map(|limit| limit.requests.policy.clone());
    let answers = &config.file.answers;
    let compression = (!answers.compression.is_empty()).then(|| compressor.clone());
    let responder = Responder::new(answers, policy, compression);
    let gateway = Arc::new(Gateway {
        responder: Arc::new(responder.require_token(clients.tokens.is_required)),
        clients,
        stale_wait: config.file.cache.stale_wait,
        records: Records {
            meter,
            access_log: AccessLog::new(&config.file.log.access),
            traced_share: config.traced_share(),
        },
        documents,
        cache: fill.cache.clone(),
        upstreams: fill.upstreams.clone(),
        compressor,
        routes: fill.routes.clone(),
        clock: process.clock.clone(),
        state: process.state.clone(),
        seed: process.seed,
        fill,
    });
    for (number, upstream) in gateway.upstreams.iter() {
        let tips = gateway.tips_of(number);
        let (probes, patience) = probe::budget(&gateway.fill, number, &tips);
        upstream.set_tips(status_paths(&gateway.fill.chain, &tips), probes, patience);
    }
    gateway.upstreams.take_over();
    gateway
}

/// The status paths of the tips that an upstream is asked for; where there is
/// none, all that are known.
fn status_paths(chain: &Chain, tips: &[u16]) -> Vec<Box<str>> {
    let used = tips
        .iter()
        .filter_map(|tip| chain.tip(*tip).source.path.clone());
    let used: Vec<_> = used.collect();
    if !used.is_empty() {
        return used;
    }
    let all = chain.tips();
    all.filter_map(|(_, tip)| tip.source.path.clone()).collect()
}
