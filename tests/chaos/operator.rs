//! The operator: reloads with other settings and keys, or with invalid ones;
//! purges; drains one server and starts the next. Blocks are mined meanwhile.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::CLIENTS;
use super::faults::{FIRST_BYTE, SILENCE, WHOLE};
use super::front::Front;
use super::world::{BOUND, Listener, SECRET, World};
use crate::dice::Dice;
use crate::support::gateway::{SharedSource, Source, merge, shipped};
use crate::support::transport::tls_listener;
use crate::support::{Answer, Client, Gateway, Setup};

/// The number of keys.
const KEYS: u64 = 6;
/// The time between two actions, in milliseconds.
const PAUSE: (u64, u64) = (200, 700);
/// A drained server ends within this: its requests' deadlines, and what slow
/// readers take.
const DRAIN: Duration = Duration::from_secs(20);

pub(crate) struct Operator {
    world: Arc<World>,
    dice: Dice,
    source: SharedSource,
    urls: Vec<String>,
    gateway: Option<Gateway>,
    listener: Arc<Listener>,
    /// Whether the highest blocks are missing just now.
    halfway: bool,
    /// Whether the server has been ready.
    is_ready: bool,
    /// The files of the certificate.
    _certificate: TempDir,
}

impl Operator {
    pub(crate) fn start(world: &Arc<World>, fronts: &[Front]) -> Self {
        let mut dice = world.dice("operator", 0);
        let urls: Vec<_> = fronts
            .iter()
            .map(|front| format!("http://{}", front.address))
            .collect();
        let keys: Vec<_> = (0..KEYS / 2).map(key).collect();
        world.use_keys(&keys);
        let mut config = shipped();
        let (per_minute, per_second) = (1200, 60);
        merge(&mut config, &base(per_minute, per_second));
        merge(&mut config, &upstreams(&urls, 0, urls.len()));
        let (tls, certificate) = tls_listener();
        merge(&mut config, &tls);
        world.budget_from_now(per_minute, per_second);
        let source: SharedSource = Arc::new(Mutex::new(Source {
            config,
            keys: keys.join(","),
            ..Source::default()
        }));
        runtime(&source, &mut dice);
        let gateway = Setup::reading(&source).start();
        let listener = open(world, &gateway);
        Self {
            world: world.clone(),
            dice,
            source,
            urls,
            gateway: Some(gateway),
            listener,
            halfway: false,
            is_ready: false,
            _certificate: certificate,
        }
    }

    pub(crate) fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    /// Does something.
    pub(crate) async fn act(&mut self) {
        let (least, most) = PAUSE;
        sleep(Duration::from_millis(self.dice.between(least, most))).await;
        match self.dice.below(100) {
            0..45 => self.reload().await,
            45..55 => self.reload_what_cannot_be().await,
            55..75 => self.chain(),
            75..87 => self.purge().await,
            87..92 => self.look().await,
            _ => self.restart().await,
        }
    }

    /// Reloads with valid changes.
    async fn reload(&mut self) {
        let mut text = String::new();
        let mut budget = None;
        let mut keys = None;
        for _ in 0..self.dice.between(1, 4) {
            let more = match self.dice.below(14) {
                0 | 1 => {
                    let dice = &mut self.dice;
                    let chosen = (*dice.pick(&[300, 600, 1200]), *dice.pick(&[10, 20, 40, 80]));
                    budget = Some(chosen);
                    let (per_minute, per_second) = chosen;
                    format!(
                        "upstream.requests_per_minute = {per_minute}\nupstream.requests_per_second = {per_second}\n"
                    )
                }
                2 | 3 => {
                    let first = self.dice.between(0, KEYS - 1);
                    let count = *self.dice.pick(&[1, 1, 2, 3, 5]);
                    let some = (0..count).map(|at| key((first + at) % KEYS));
                    keys = Some(some.collect::<Vec<_>>());
                    String::new()
                }
                4 => {
                    self.change_a_stale_bound();
                    String::new()
                }
                5 => self.failover_settings(),
                _ => self.other_settings(),
            };
            merge(&mut self.source.lock().unwrap().config, &more);
            text.push_str(&more);
        }
        if let Some(keys) = &keys {
            self.source.lock().unwrap().keys = keys.join(",");
        }
        self.take_up(budget, keys, &text).await;
    }

    /// Changes how stale a response of some route may be if the upstream fails.
    fn change_a_stale_bound(&mut self) {
        let mut source = self.source.lock().unwrap();
        let routes = source.config["route"].as_array_mut().unwrap();
        let route = self.dice.below(routes.len());
        let bound = format!("{}s", self.dice.between(1, 300));
        routes[route]["cache"]["stale_if_error"] = bound.into();
    }

    /// Other endpoints, and when another one is used.
    fn failover_settings(&mut self) -> String {
        let dice = &mut self.dice;
        let first = dice.below(self.urls.len());
        let most = dice.between(1, self.urls.len() as u64) as usize;
        format!(
            "{}upstream.return_after = \"{}ms\"\nupstream.max_lag = {}\nupstream.retry = {}\nupstream.max_queue = {}\n",
            upstreams(&self.urls, first, most),
            dice.between(200, 2000),
            dice.between(0, 2),
            dice.percent(70),
            dice.pick(&[8, 1024])
        )
    }

    /// Settings that no check depends on.
    fn other_settings(&mut self) -> String {
        let dice = &mut self.dice;
        match dice.below(6) {
            0 => format!(
                "limit.enabled = {}\nlimit.requests_per_minute = {}\nlimit.burst = {}\n",
                dice.percent(50),
                dice.pick(&[3000, 100_000]),
                dice.pick(&[20, 3000, 100_000])
            ),
            1 => format!("upstream.max_in_flight = {}\n", dice.pick(&[4, 16, 32])),
            2 => format!(
                "chain.live_ttl = \"{}s\"\nchain.absent_ttl = \"{}ms\"\n",
                dice.between(1, 30),
                dice.between(100, 1000)
            ),
            3 => format!(
                "cache.max_bytes = \"{}MiB\"\ncache.stale_wait = \"{}ms\"\n",
                dice.pick(&[1, 4, 8]),
                dice.between(0, 2000)
            ),
            4 => {
                let most = *dice.pick(&[24, 16_384, 16_384]);
                if most < CLIENTS {
                    self.world.turn_away();
                }
                format!("server.max_connections = {most}\n")
            }
            _ => format!(
                "answers.cache_status_key = {}\nanswers.server_timing = {}\n",
                dice.percent(50),
                dice.percent(50)
            ),
        }
    }

    /// Reloads the gateway.
    pub(crate) async fn take_up(
        &mut self,
        budget: Option<(usize, usize)>,
        keys: Option<Vec<String>>,
        text: &str,
    ) {
        if let Some((per_minute, per_second)) = budget {
            self.world.budget_from_now(per_minute, per_second);
        }
        if let Some(keys) = &keys {
            self.world.use_keys(keys);
        }
        let answer = self.admin("POST", "/reload").await;
        if answer.status != 200 {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            self.world
                .violation(format!("a valid reload is refused: {text:?}: {body}"));
        }
        self.world.budget_settled();
        self.world.count("operator", "reloads");
    }

    /// Changes of which one cannot be: none may be taken up.
    async fn reload_what_cannot_be(&mut self) {
        let before = self.source.lock().unwrap().clone();
        let served = self.gateway().server().current_gateway();
        let wrong = *self.dice.pick(&[
            "nonsense = true",
            "upstream.requests_per_minute = 0",
            "upstream.url = \"ftp://127.0.0.1\"",
            "chain.live_ttl = \"soon\"",
            "limit.burst = \"many\"",
            "cache.max_bytes = -1",
            "keys",
        ]);
        {
            let mut source = self.source.lock().unwrap();
            merge(&mut source.config, "upstream.requests_per_second = 7777");
            match wrong {
                "keys" => source.keys = format!("{SECRET}with a blank and \u{7f}"),
                wrong => merge(&mut source.config, wrong),
            }
        }
        let answer = self.admin("POST", "/reload").await;
        if answer.status != 422 {
            self.world
                .violation(format!("a reload with {wrong:?} gets {}", answer.status));
        }
        if !Arc::ptr_eq(&served, &self.gateway().server().current_gateway()) {
            self.world
                .violation(format!("a reload with {wrong:?} has changed something"));
        }
        *self.source.lock().unwrap() = before;
        self.world.count("operator", "reloads refused");
    }

    /// Blocks come, and go.
    fn chain(&mut self) {
        let sandbox = &self.world.sandbox;
        let event = match self.dice.below(10) {
            _ if self.halfway => {
                sandbox.apply();
                self.halfway = false;
                "second halves of reorgs"
            }
            0..6 => {
                sandbox.advance(self.dice.between(1, 2) as u32);
                "blocks"
            }
            6 | 7 => {
                sandbox.reorg(self.dice.between(1, 3) as u32);
                "reorgs"
            }
            8 => {
                sandbox.rollback(self.dice.between(1, 3) as u32);
                self.halfway = true;
                "first halves of reorgs"
            }
            _ => {
                sandbox.tokens_ahead();
                "tokens ahead"
            }
        };
        self.world.count("chain", event);
    }

    async fn purge(&mut self) {
        let question = self.world.questions.good(&mut self.dice);
        let url: String = question
            .target
            .bytes()
            .map(|byte| format!("%{byte:02X}"))
            .collect();
        let query = match self.dice.below(5) {
            0 => "all".to_owned(),
            1 => "route=rune-block-activity".to_owned(),
            2 => "tag=ticker:ordi".to_owned(),
            3 => format!("tag=height:{}%2B", 840_000 + self.dice.below(80)),
            _ => format!("url={url}"),
        };
        let answer = self.admin("POST", &format!("/purge?{query}")).await;
        if answer.status != 200 {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            self.world.violation(format!("a purge by {query}: {body}"));
        }
        self.world.count("operator", "purges");
    }

    /// Looks at all that the admin listener shows.
    async fn look(&mut self) {
        for target in [
            "/status",
            "/metrics",
            "/healthz",
            "/readyz",
            "/explain?url=%2Frunes%2Fv1%2Fblocks%2F840000%2Factivity",
        ] {
            let answer = self.admin("GET", target).await;
            match (target, answer.status) {
                ("/readyz", 200) => self.is_ready = true,
                (_, 200) => {}
                // No tip is known as long as both fronts are frozen, and until the
                // next probe after that.
                ("/readyz", 503) if !self.is_ready => {}
                (_, status) => self.world.violation(format!("{target} gets {status}")),
            }
        }
        self.world.count("operator", "looks");
    }

    /// Drains the server, waits for its end, and starts another.
    async fn restart(&mut self) {
        self.drain().await;
        runtime(&self.source, &mut self.dice);
        let gateway = Setup::reading(&self.source).start();
        self.is_ready = false;
        self.listener = open(&self.world, &gateway);
        self.gateway = Some(gateway);
        self.world.count("operator", "drains");
    }

    async fn drain(&mut self) {
        let began = Instant::now();
        // First, so that clients that see the end of a connection know why.
        self.world.listener.send_replace(None);
        self.listener.drained.set(began).unwrap();
        self.gateway.take().unwrap().end().await;
        if began.elapsed() >= DRAIN {
            self.world
                .violation(format!("a drain took {:?}", began.elapsed()));
        }
    }

    /// Ends the last server.
    pub(crate) async fn end(mut self) {
        self.drain().await;
    }

    async fn admin(&self, method: &str, target: &str) -> Answer {
        let mut client = Client::connect(self.gateway().admin).await;
        let answer = client.request(method, target, &[]).await;
        if memchr::memmem::find(&answer.body, SECRET.as_bytes()).is_some() {
            self.world.violation(format!("{target} shows a key"));
        }
        answer
    }

    /// Changes the source.
    pub(crate) fn write(&self, text: &str, keys: &[String]) {
        let mut source = self.source.lock().unwrap();
        merge(&mut source.config, text);
        source.keys = keys.join(",");
    }

    /// How many requests upstream there may be at once, by the source.
    pub(crate) fn max_in_flight(&self) -> usize {
        let source = self.source.lock().unwrap();
        let most = source.config["upstream"]["max_in_flight"].as_integer();
        usize::try_from(most.unwrap()).unwrap()
    }
}

/// A key of the provider's.
pub(crate) fn key(number: u64) -> String {
    format!("{SECRET}{number}-5f0c1e")
}

fn open(world: &World, gateway: &Gateway) -> Arc<Listener> {
    let listener = Arc::new(Listener {
        address: gateway.public,
        tls: gateway.tls(),
        drained: OnceLock::new(),
    });
    world.listener.send_replace(Some(listener.clone()));
    listener
}

/// How a server's threads share the work is for its whole life.
fn runtime(source: &SharedSource, dice: &mut Dice) {
    let kind = dice.pick(&["per-core", "work-stealing"]);
    let text = format!("server.runtime = \"{kind}\"");
    merge(&mut source.lock().unwrap().config, &text);
}

/// So many of the upstream's base URLs at the most, the one at a place first.
fn upstreams(urls: &[String], first: usize, most: usize) -> String {
    let (before, after) = urls.split_at(first);
    let urls: Vec<_> = after.iter().chain(before).take(most).collect();
    format!("upstream.url = {urls:?}\n")
}

/// Short times, so that a run of seconds sees all of them pass; those for
/// clients are long enough for the slowest that is still in order.
fn base(per_minute: usize, per_second: usize) -> String {
    let (first_byte, whole) = (FIRST_BYTE.as_millis(), WHOLE.as_millis());
    let silence = SILENCE.as_millis();
    let half_closed = 2 * BOUND.as_secs();
    let drain = DRAIN.as_secs();
    format!(
        r#"
        [server]
        listen = "127.0.0.1:0"
        workers = 2
        drain_timeout = "{drain}s"
        half_closed_timeout = "{half_closed}s"
        [admin]
        listen = "127.0.0.1:0"
        [limit]
        enabled = false
        [cache]
        max_bytes = "8MiB"
        stale_wait = "500ms"
        [chain]
        tip.ordinals.every = "500ms"
        tip.runes.every = "500ms"
        [upstream]
        requests_per_minute = {per_minute}
        requests_per_second = {per_second}
        queue_timeout = "500ms"
        connect_timeout = "500ms"
        first_byte_timeout = "{first_byte}ms"
        timeout = "{whole}ms"
        response_body.grace = "{silence}ms"
        idle_timeout = "2s"
        max_body_bytes = "1MiB"
        max_in_flight = 16
        "#
    )
}
