//! `[chain]`: how long answers are kept in cache mode `chain`, and where tips are
//! read.

use std::time::Duration;

use super::assign::{self, KnownUpstreams};
use super::containers::{NamedTable, named};
use super::key::{KeyTable as _, keys};
use super::kinds::{
    DAY, MILLI, ParsedText, STRING, YEAR, integer, optional, seconds, text, time, when,
};
use super::problem::{FileSpan, Path};
use crate::chain::{self, FinalitySettings, TipSource};
use crate::upstream::DEFAULT;
use crate::validate::HASH_DIGITS;

const TARGET: ParsedText<String> = text(
    "a path on the upstream, such as \"/runes/v1/\"",
    "^/[!-\"$-~]*$",
    |text| {
        let is_plain = text.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
        when(text.starts_with('/') && is_plain, text)
    },
);

keys! {
    /// Routes with cache.mode = "chain": answers are kept by the blocks that they
    /// depend on rather than by time.
    ///
    /// An answer is final when all blocks that it depends on are `final_depth` or
    /// more below the tip; recent when it depends on newer blocks; and live when any
    /// block may change it, such as a token's figures. While no tip is known, because
    /// the status path fails, what is not final is fresh for a second.
    pub(super) struct ChainKeys {
        /// How many blocks below the tip a block is final.
        final_depth: u32 = integer(1..=10_000) => FinalitySettings::default().final_depth, shown();
        /// How long final answers are kept. Clients get them as immutable.
        final_ttl: Duration = time(seconds(1), YEAR) => FinalitySettings::default().final_ttl;
        /// How long after a new tip its indexer may still be writing: a live answer that
        /// was fetched within that time is fetched once more after it.
        ///
        /// Apart from that, live answers are fresh until the next tip, ten minutes at
        /// most.
        live_ttl: Duration = time(MILLI, DAY) => FinalitySettings::default().live_ttl;
        /// How long answers that are empty, not found or refused (any 4xx) are fresh.
        absent_ttl: Duration = time(MILLI, DAY) => FinalitySettings::default().absent_ttl;
        /// The number of zeros that a block hash in a request must begin with; 0 for
        /// test chains such as regtest and signet.
        ///
        /// Other hashes get 400 and cost no upstream request. The reference upstream
        /// demands eight.
        hash_zeros: u8 = integer(0..=HASH_DIGITS as u64) => 8;
        /// Where each indexer of the upstream reports its tip: [chain.tip.NAME].
        ///
        /// "ordinals" and "runes" are there by default. These requests come first in the
        /// upstream's budget, which keeps up to a quarter for them. Where they would be
        /// more, `every` is so much longer, and a warning says how long.
        tip: Vec<NamedTable<TipKeys>> = named("") => Vec::new();
    }
}

keys! {
    /// Where an indexer reports its tip.
    pub(super) struct TipKeys {
        /// A path on the upstream that answers with a JSON object, such as
        /// "/runes/v1/". A new tip needs it.
        path: Option<String> = optional(TARGET) => None, example("\"/runes/v1/\"");
        /// The member of that object that has the tip's height.
        height: String = STRING => "block_height".to_owned();
        /// How often ordgate asks. Clients are told to keep an answer no longer than
        /// this, unless it is final.
        every: Duration = time(Duration::from_millis(100), DAY) => seconds(5);
        /// The upstream to ask: "default", or the name of an [upstreams.NAME].
        ///
        /// Without it, that is the upstream that the routes of this tip name, or else
        /// the one of the same name as the tip, or else [upstream].
        upstream: Option<String> = optional(STRING) => None, example("\"default\"");
    }
}

/// The indexers of the API, as the reference upstream has them.
const INDEXERS: [(&str, &str); 2] = [("ordinals", "/ordinals/v1/"), ("runes", "/runes/v1/")];

/// The tips that routes may go by.
pub(super) struct Tips {
    pub(super) sources: Vec<TipSource>,
    /// The number of the upstream that each tip names.
    pub(super) named: Vec<Option<u16>>,
    /// Whether the file's tips could not be read, which has been reported: routes
    /// may name one of them.
    pub(super) is_incomplete: bool,
    /// The least number of zeros that a block hash begins with.
    pub(super) hash_zeros: u8,
}

/// The settings of `[chain]`, without its tips, and the tips. `is_wrong` says that
/// it could not be read at all.
pub(super) fn settings(
    keys: &ChainKeys,
    path: &Path<'_>,
    upstreams: &KnownUpstreams<'_>,
    is_wrong: bool,
) -> (chain::Settings, Tips) {
    let known = INDEXERS.map(|(name, path)| source(name, Some(path), &TipKeys::defaults()));
    let mut tips = Tips {
        named: vec![None; known.len()],
        sources: known.into(),
        is_incomplete: keys.tip.is_wrong || is_wrong,
        hash_zeros: *keys.hash_zeros,
    };
    for tip in &keys.tip.value {
        add_tip(&mut tips, tip, &path.key("tip"), upstreams);
    }
    // For routes whose indexer reports no tip.
    tips.sources
        .push(source("none", None, &TipKeys::defaults()));
    let settings = chain::Settings {
        times: FinalitySettings {
            final_depth: *keys.final_depth,
            final_ttl: *keys.final_ttl,
            live_ttl: *keys.live_ttl,
            absent_ttl: *keys.absent_ttl,
        },
        hash_zeros: *keys.hash_zeros,
        tips: Vec::new(),
    };
    (settings, tips)
}

fn source(name: &str, path: Option<&str>, keys: &TipKeys) -> TipSource {
    TipSource {
        name: name.into(),
        path: path.map(Into::into),
        height: keys.height.as_str().into(),
        every: *keys.every,
        upstream: 0,
        upstream_name: DEFAULT.into(),
    }
}

/// Adds a `[chain.tip.NAME]`, or changes the one of its name.
fn add_tip(
    tips: &mut Tips,
    tip: &NamedTable<TipKeys>,
    path: &Path<'_>,
    upstreams: &KnownUpstreams<'_>,
) {
    let path = path.key(&tip.name);
    let known = tips
        .sources
        .iter()
        .position(|known| *known.name == *tip.name);
    let own_path = tip.keys.path.value.as_deref();
    if known.is_none() && !tip.keys.path.is_set() && !tip.is_wrong {
        let at: &FileSpan = &tip.at;
        path.key("path")
            .problem(at, "is missing: a new tip needs it");
    }
    let named = assign::named(&path, &tip.keys.upstream, upstreams);
    let inherited = known.and_then(|at| tips.sources[at].path.as_deref());
    let source = source(&tip.name, own_path.or(inherited), &tip.keys);
    match known {
        Some(at) => {
            tips.sources[at] = source;
            tips.named[at] = named;
        }
        None => {
            tips.sources.push(source);
            tips.named.push(named);
        }
    }
}
