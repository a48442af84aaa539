//! What kind of day a play has: how fast blocks come, how slow and how reliable
//! the upstream is, and what ordgate is configured to.

use crate::dice::Dice;
use crate::world::Time;

/// A play's circumstances. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) length: Time,
    /// Between clients' requests.
    pub(crate) client_every: Time,
    pub(crate) block_every: Time,
    /// Of the changes of the chain, how many are reorgs.
    pub(crate) reorgs: u64,
    /// Whether reorgs are deeper than what counts as final, and are taken up at
    /// once, while clients ask for nothing that is recent.
    pub(crate) deep: bool,
    /// Of the steps of the runes indexer, how many lead far back, block by block or at once.
    pub(crate) rewinds: u64,
    /// Whether the runes indexer's answers have no tag.
    pub(crate) tagless: bool,
    /// Of the answers of the runes indexer, how many come from an endpoint that is behind.
    pub(crate) behind: u64,
    /// Of the clients' requests, how many are for tokens.
    pub(crate) tokens: u64,
    /// Between an indexer's steps.
    pub(crate) lag: Time,
    /// From the sending to the tag, from the tag to the body, from the body to
    /// the delivery.
    pub(crate) latency: [Time; 3],
    /// Answers that fail, of a hundred.
    pub(crate) failures: u64,
    /// Whether now and then no probe is answered.
    pub(crate) clouds: bool,
    /// Between an operator's purges; 0 for none.
    pub(crate) purge_every: Time,
    /// Clients that go away, of a hundred.
    pub(crate) impatient: u64,
    pub(crate) setup: Setup,
}

/// How ordgate is configured. Times are in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) window: usize,
    pub(crate) every: Time,
    pub(crate) live_ttl: Time,
    pub(crate) while_revalidate: Time,
    pub(crate) if_error: Time,
}

const SETUP: Setup = Setup {
    window: 10,
    every: 5_000,
    live_ttl: 30_000,
    while_revalidate: 0,
    if_error: 20_000,
};

/// Configurations that are played; few, so that each is read once.
pub(crate) const SETUPS: [Setup; 7] = [
    SETUP,
    Setup {
        window: 60,
        ..SETUP
    },
    // Large enough that a block is proved by one item of it, not by a window.
    Setup {
        window: 200,
        ..SETUP
    },
    Setup {
        window: 7,
        every: 2_000,
        live_ttl: 8_000,
        ..SETUP
    },
    Setup {
        window: 10,
        while_revalidate: 3_000,
        if_error: 6_000,
        ..SETUP
    },
    Setup {
        window: 7,
        if_error: 0,
        ..SETUP
    },
    QUIET,
];

/// What is live is asked for often by its time.
const QUIET: Setup = Setup {
    every: 1_000,
    live_ttl: 2_000,
    ..SETUP
};

impl Weather {
    pub(crate) fn of(dice: &mut Dice) -> Self {
        let setup = *dice.pick(&SETUPS);
        let calm = Self {
            length: 14_000,
            client_every: 300,
            block_every: 9_000,
            reorgs: 25,
            deep: false,
            rewinds: 0,
            tagless: false,
            behind: 0,
            tokens: 20,
            lag: 800,
            latency: [20, 0, 20],
            failures: 0,
            clouds: false,
            purge_every: 0,
            impatient: 0,
            setup,
        };
        let all = [
            calm,
            calm,
            Self {
                length: 32_000,
                client_every: 200,
                block_every: 6_000,
                reorgs: 50,
                deep: true,
                rewinds: 25,
                tokens: 5,
                ..calm
            },
            Self {
                length: 32_000,
                client_every: 200,
                block_every: 8_000,
                reorgs: 50,
                deep: true,
                rewinds: 5,
                tagless: true,
                tokens: 5,
                lag: 1_500,
                latency: [40, 10, 100],
                ..calm
            },
            Self {
                length: 28_000,
                client_every: 250,
                block_every: 3_000,
                reorgs: 50,
                tagless: true,
                tokens: 5,
                lag: 1_200,
                latency: [100, 50, 300],
                ..calm
            },
            Self {
                block_every: 3_000,
                reorgs: 50,
                tokens: 5,
                behind: 30,
                latency: [60, 20, 100],
                ..calm
            },
            // Slow answers, so that much is under way when something happens.
            Self {
                client_every: 260,
                block_every: 4_000,
                reorgs: 35,
                latency: [200, 100, 700],
                impatient: 3,
                ..calm
            },
            Self {
                block_every: 3_000,
                reorgs: 50,
                lag: 1_500,
                latency: [100, 50, 300],
                purge_every: 6_000,
                impatient: 3,
                ..calm
            },
            Self {
                block_every: 6_000,
                latency: [300, 200, 2_500],
                failures: 15,
                clouds: true,
                purge_every: 15_000,
                impatient: 5,
                ..calm
            },
            Self {
                length: 32_000,
                client_every: 200,
                block_every: 8_000,
                reorgs: 50,
                deep: true,
                tokens: 5,
                ..calm
            },
            // Between two blocks, tokens are asked for many times.
            Self {
                length: 60_000,
                client_every: 200,
                block_every: 25_000,
                tokens: 85,
                lag: 2_500,
                latency: [30, 10, 100],
                setup: QUIET,
                ..calm
            },
            Self {
                length: 28_000,
                client_every: 700,
                block_every: 7_000,
                reorgs: 40,
                lag: 3_000,
                latency: [50, 20, 100],
                failures: 8,
                clouds: true,
                ..calm
            },
        ];
        *dice.pick(&all)
    }

    pub(crate) fn fails(&self) -> bool {
        self.failures > 0 || self.clouds
    }
}

impl Setup {
    /// As proxy.toml has it: the shipped routes with pages of another size.
    pub(crate) fn text(&self) -> String {
        let routes = include_str!("../../proxy.toml");
        let routes = &routes[routes.find("\n[[route]]").unwrap()..];
        let cache = format!(
            "stale_if_error = \"{}ms\", stale_while_revalidate = \"{}ms\"",
            self.if_error, self.while_revalidate
        );
        let routes = routes
            .replace(
                "upstream_page = 60",
                &format!("upstream_page = {}", self.window),
            )
            .replace("max = 60", &format!("max = {}", self.window.max(60)))
            .replace("stale_if_error = \"5m\"", &cache);
        let tip = |name: &str| {
            format!(
                "[chain.tip.{name}]\npath = \"/{name}/v1/\"\nevery = \"{}ms\"\n",
                self.every
            )
        };
        format!(
            "api = \"all\"\n[upstream]\nurl = \"http://127.0.0.1:9\"\n[limit]\nenabled = false\n[chain]\nfinal_depth = 6\nlive_ttl = \"{}ms\"\n{}{}{routes}",
            self.live_ttl,
            tip("ordinals"),
            tip("runes"),
        )
    }
}
